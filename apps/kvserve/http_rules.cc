#include "apps/kvserve/http_rules.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "apps/common/api.h"
#include "apps/common/printable.h"
#include "apps/kvserve/page.h"

namespace kvrun::serve {
namespace {

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string Lowered(std::string_view text) {
  std::string lowered(text);
  std::transform(lowered.begin(), lowered.end(), lowered.begin(), Lower);
  return lowered;
}

bool IsSameName(std::string_view a, std::string_view b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) { return Lower(x) == Lower(y); });
}

std::string InQuotes(std::string_view text) { return "\"" + cli::Printable(cli::Clipped(text, 100)) + "\""; }

struct HostAndPort {
  std::string host;  // in lower case; an address of IPv6 in brackets
  std::string port;  // "": not given
};
std::optional<HostAndPort> SplitHost(std::string_view field) {
  const size_t end =
      field.substr(0, 1) == "[" ? field.find(']') + 1 : std::min(field.find(':'), field.size());
  const std::string_view host = field.substr(0, end);  // `end` is 0 where the bracket is not closed
  const std::string_view rest = field.substr(end);
  const auto is_of_host = [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view(".-_:[]").find(static_cast<char>(c)) != std::string_view::npos;
  };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (host.empty() || !std::all_of(host.begin(), host.end(), is_of_host)) return std::nullopt;
  if (!rest.empty() && (rest[0] != ':' || !std::all_of(rest.begin() + 1, rest.end(), is_digit)))
    return std::nullopt;
  return HostAndPort{Lowered(host), rest.empty() ? "" : std::string(rest.substr(1))};
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = Lower(c);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

size_t CountFields(const HttpRequest& request, std::string_view name) {
  return static_cast<size_t>(std::count_if(request.fields.begin(), request.fields.end(),
                                           [&](const auto& field) { return IsSameName(field.first, name); }));
}

// What two readers of one request could understand in two ways.
std::optional<Refusal> CheckAmbiguity(const HttpRequest& request, bool is_http_1_1) {
  for (const char* name :
       {"Host", "Content-Length", "Transfer-Encoding", "Origin", "Authorization", "x-api-key", "Expect"}) {
    if (CountFields(request, name) > 1)
      return Refusal{400, std::string("the field ") + name + " is there more than once", "", {}};
  }
  if (is_http_1_1 && CountFields(request, "Host") == 0)
    return Refusal{400, "the field Host is missing", "", {}};
  const bool has_length = CountFields(request, "Content-Length") > 0;
  const bool has_encoding = CountFields(request, "Transfer-Encoding") > 0;
  if (has_length && has_encoding)
    return Refusal{400, "both Content-Length and Transfer-Encoding are given", "", {}};
  const std::string length = request.Field("Content-Length");
  if (has_length && (length.empty() || length.find_first_not_of("0123456789") != std::string::npos))
    return Refusal{400, "Content-Length is not a number", "", {}};
  if (has_encoding && (!is_http_1_1 || !IsSameName(request.Field("Transfer-Encoding"), "chunked")))
    return Refusal{400, "of transfer encodings, chunked in HTTP/1.1 is the one that is taken", "", {}};
  return std::nullopt;
}

// Sets path and query.
std::optional<Refusal> CheckTarget(std::string_view target, HttpRequest* request) {
  if (target == "*" && request->method == "OPTIONS") {
    request->path = "*";
    return std::nullopt;
  }
  constexpr std::string_view kScheme = "http://";
  if (IsSameName(target.substr(0, kScheme.size()), kScheme)) {  // as a client asks a proxy
    target.remove_prefix(kScheme.size());
    const size_t end = std::min(target.find_first_of("/?"), target.size());
    if (!IsSameName(target.substr(0, end), request->Field("Host")))
      return Refusal{400, "the address asked for is not of the host that the field Host names", "", {}};
    target.remove_prefix(end);
    if (target.empty()) target = "/";
  }
  const size_t question = std::min(target.find('?'), target.size());
  request->query = std::string(target.substr(std::min(question + 1, target.size())));
  const std::optional<std::string> path = DecodedPath(target.substr(0, question));
  if (!path) return Refusal{400, "the path " + InQuotes(target.substr(0, question)) + " is not one", "", {}};
  request->path = *path;
  return std::nullopt;
}

// A page of another site could ask through the user's browser: its name may have been made to lead here, and
// requests that need no leave (CORS) are sent before anyone asks.
std::optional<Refusal> CheckSite(const HttpRequest& request, const HttpOptions& options) {
  const std::string host = request.Field("Host");
  const bool has_host = CountFields(request, "Host") > 0;
  if (has_host && !SplitHost(host)) return Refusal{400, "Host " + InQuotes(host) + " is not a host", "", {}};
  if (has_host && options.api_key.empty() && !IsOwnHost(host, options.host))
    return Refusal{403,
                   "Host " + InQuotes(host) +
                       " is not a name of this machine: ask 127.0.0.1 or localhost, or start the server with"
                       " --api-key-file",
                   "",
                   {}};
  const std::string origin = request.Field("Origin");
  if (CountFields(request, "Origin") > 0 && !IsSameOrigin(origin, host))
    return Refusal{403, "a page of another site, " + InQuotes(origin) + ", may not ask this server", "", {}};
  return std::nullopt;
}

}  // namespace

std::string HttpRequest::Field(std::string_view name) const {
  for (const auto& [field, value] : fields) {
    if (IsSameName(field, name)) return value;
  }
  return "";
}

std::string ErrorBody(unsigned status, const std::string& message, const std::string& code) {
  const cli::Json error = {{"message", message},
                           {"type", status < 500 ? "invalid_request_error" : "server_error"},
                           {"param", nullptr},
                           {"code", code.empty() ? cli::Json(nullptr) : cli::Json(code)}};
  return cli::DumpJson({{"error", error}}) + "\n";
}

std::optional<std::string> DecodedPath(std::string_view encoded) {
  if (encoded.substr(0, 1) != "/") return std::nullopt;
  std::string path;
  for (size_t i = 0; i < encoded.size(); ++i) {
    char c = encoded[i];
    if (c == '%') {
      if (i + 2 >= encoded.size()) return std::nullopt;
      const int high = HexDigit(encoded[i + 1]);
      const int low = HexDigit(encoded[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || c == '\\' || (c == '#' && encoded[i] == '#')) return std::nullopt;
    path += c;
  }
  for (size_t begin = 1; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view segment = std::string_view(path).substr(begin, end - begin);
    if (segment == "." || segment == "..") return std::nullopt;
    begin = end + 1;
  }
  return path;
}

bool IsLoopbackName(const std::string& name) {
  in_addr address{};
  if (inet_pton(AF_INET, name.c_str(), &address) == 1) return ntohl(address.s_addr) >> 24 == 127;
  return name == "localhost" || name == "[::1]";
}

bool IsOwnHost(std::string_view host_field, std::string_view own_host) {
  const std::optional<HostAndPort> host = SplitHost(host_field);
  if (!host) return false;
  const std::string own = Lowered(own_host);
  return IsLoopbackName(host->host) || host->host == own || host->host == "[" + own + "]";
}

bool IsSameOrigin(std::string_view origin, std::string_view host_field) {
  const bool is_https = origin.substr(0, 8) == "https://";
  if (!is_https && origin.substr(0, 7) != "http://") return false;
  const std::optional<HostAndPort> from = SplitHost(origin.substr(is_https ? 8 : 7));
  const std::optional<HostAndPort> to = SplitHost(host_field);
  if (!from || !to || from->host != to->host) return false;
  const auto port = [&](const HostAndPort& of) {
    return !of.port.empty() ? of.port : std::string(is_https ? "443" : "80");
  };
  return port(*from) == port(*to);
}

bool IsSameSecret(std::string_view given, std::string_view secret) {
  std::array<char, kLongestKeyBytes> a{};
  std::array<char, kLongestKeyBytes> b{};
  std::copy_n(given.begin(), std::min(given.size(), a.size()), a.begin());
  std::copy_n(secret.begin(), std::min(secret.size(), b.size()), b.begin());
  volatile unsigned difference = given.size() == secret.size() ? 0U : 1U;  // volatile: no early end
  for (size_t i = 0; i < a.size(); ++i) difference = difference | static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

bool HasKey(const HttpRequest& request, const std::string& key) {
  constexpr std::string_view kBearer = "Bearer ";
  const std::string authorization = request.Field("Authorization");
  const bool is_bearer = IsSameName(std::string_view(authorization).substr(0, kBearer.size()), kBearer);
  std::string_view token = is_bearer ? std::string_view(authorization).substr(kBearer.size()) : "";
  token.remove_prefix(std::min(token.find_first_not_of(' '), token.size()));
  const bool is_first = IsSameSecret(token, key);
  const bool is_second = IsSameSecret(request.Field("x-api-key"), key);
  return is_first || is_second;
}

bool NeedsKey(const std::string& method, const std::string& path) {
  const bool is_open = path == "/health" || FindPageFile(path) != nullptr;
  return !is_open || (method != "GET" && method != "HEAD");
}

std::optional<Refusal> CheckHead(std::string_view target, bool is_http_1_1, const HttpOptions& options,
                                 HttpRequest* request) {
  if (std::optional<Refusal> refusal = CheckAmbiguity(*request, is_http_1_1)) return refusal;
  if (std::optional<Refusal> refusal = CheckSite(*request, options)) return refusal;
  if (std::optional<Refusal> refusal = CheckTarget(target, request)) return refusal;
  if (!options.api_key.empty() && NeedsKey(request->method, request->path) &&
      !HasKey(*request, options.api_key))
    return Refusal{401,
                   "this server asks for its key: send the field \"Authorization: Bearer KEY\"",
                   "invalid_api_key",
                   {{"WWW-Authenticate", "Bearer"}}};
  const std::string expected = request->Field("Expect");
  if (!expected.empty() && !IsSameName(expected, "100-continue"))
    return Refusal{417, "of expectations (the field Expect), 100-continue is the one that is met", "", {}};
  return std::nullopt;
}

}  // namespace kvrun::serve
