// An answer that is an error, in OpenAI's form.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "apps/common/api.h"

namespace kvrun::serve {

using cli::Json;

// An HTTP status, and what OpenAI's form has. The codes of what parsers throw (400): "invalid_value" (of a
// wrong type, or out of range), "missing_required_parameter", "unsupported_parameter"; none where the body is
// not a JSON object, or is beyond a limit.
class ApiError : public std::runtime_error {
 public:
  ApiError(unsigned http_status, const std::string& message, std::string parameter = "",
           std::string error_code = "")
      : std::runtime_error(message),
        status(http_status),
        param(std::move(parameter)),
        code(std::move(error_code)) {}

  unsigned status;
  std::string param;  // "": null
  std::string code;   // "": null
};

// {"error": {"message", "type", "param", "code"}}; the type follows from the status, as OpenAI's do.
Json ErrorJson(const ApiError& error);

}  // namespace kvrun::serve
