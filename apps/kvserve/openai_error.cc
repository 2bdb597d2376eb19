#include "apps/kvserve/openai_error.h"

namespace kvrun::serve {
namespace {

const char* ErrorType(unsigned status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 429: return "rate_limit_error";
    case 503: return "service_unavailable";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

Json TextOrNull(const std::string& text) { return text.empty() ? Json() : Json(text); }

}  // namespace

Json ErrorJson(const ApiError& error) {
  return {{"error",
           {{"message", error.what()},
            {"type", ErrorType(error.status)},
            {"param", TextOrNull(error.param)},
            {"code", TextOrNull(error.code)}}}};
}

}  // namespace kvrun::serve
