#include "platform/base/status.h"

#include <system_error>

#include <cerrno>

namespace kvrun {

std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "invalid argument";
    case StatusCode::kNotFound: return "not found";
    case StatusCode::kCorrupt: return "corrupt";
    case StatusCode::kUnsupported: return "unsupported";
    case StatusCode::kOutOfMemory: return "out of memory";
    case StatusCode::kContextFull: return "context full";
    case StatusCode::kIo: return "i/o error";
    case StatusCode::kDevice: return "device error";
    case StatusCode::kCancelled: return "cancelled";
    case StatusCode::kInternal: return "internal error";
  }
  return "unknown";
}

Status Status::WithContext(std::string_view context) const {
  if (ok()) return *this;
  std::string message(context);
  message += ": ";
  message += message_;
  return {code_, std::move(message)};
}

Status StatusFromErrno(int error_number, std::string_view what) {
  StatusCode code = StatusCode::kIo;
  if (error_number == ENOENT || error_number == ENODEV) code = StatusCode::kNotFound;
  if (error_number == ENOMEM) code = StatusCode::kOutOfMemory;
  std::string message(what);
  message += ": ";
  message += std::generic_category().message(error_number);
  return {code, std::move(message)};
}

}  // namespace kvrun
