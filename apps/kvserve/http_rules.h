// Who may ask, and for what: decided by the head of a request alone, with nothing read or written.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "apps/kvserve/http_server.h"

namespace kvrun::serve {

// Longer ones are refused by HttpServer::Create.
inline constexpr size_t kLongestKeyBytes = 512;

// An answer of the server's own.
struct Refusal {
  unsigned status = 0;
  std::string message;
  std::string code;   // "": null
  HttpFields fields;  // besides those of every answer
};
// The body of an error in OpenAI's form.
std::string ErrorBody(unsigned status, const std::string& message, const std::string& code = "");

// Percent-decoded. Nothing: it does not begin with "/", has a bad escape, a control character, a backslash or
// a segment "." or "..".
std::optional<std::string> DecodedPath(std::string_view encoded);
// localhost, 127.0.0.0/8 or [::1] (in brackets), in lower case and without a port.
bool IsLoopbackName(const std::string& name);
// The field Host names this machine: by a name of loopback or as `own_host`, with a port or without.
bool IsOwnHost(std::string_view host_field, std::string_view own_host);
// The field Origin is http:// or https:// of what the field Host says.
bool IsSameOrigin(std::string_view origin, std::string_view host_field);
// Takes as long for any `given` of one length.
bool IsSameSecret(std::string_view given, std::string_view secret);
bool HasKey(const HttpRequest& request, const std::string& key);
// All but GET of the page's files and of /health.
bool NeedsKey(const std::string& method, const std::string& path);

// Fills in path and query from the target; `request` has method and fields. Nothing: it may go on.
std::optional<Refusal> CheckHead(std::string_view target, bool is_http_1_1, const HttpOptions& options,
                                 HttpRequest* request);

}  // namespace kvrun::serve
