#include "runtime/capi/border.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "runtime/capi/status_code.h"
#include "runtime/engine/text/utf8.h"

namespace kvrun::capi {
namespace {

// No options struct is this large; a size above is memory that was never set.
constexpr uint32_t kMaxStructBytes = 4096;

struct LastError {
  std::string message;
  const char* shown = "";
};

LastError& ThreadLastError() {
  thread_local LastError last_error;
  return last_error;
}

}  // namespace

kvrun_status ReportText(kvrun_status status, const char* text) noexcept {
  ThreadLastError().shown = text;
  return status;
}

kvrun_status Report(const Status& status) noexcept {
  const kvrun_status code = ToC(status.code());
  if (status.ok()) return ReportText(code, "");
  LastError& last_error = ThreadLastError();
  try {
    last_error.message = MessageText(status.message());  // messages quote files and arguments
    last_error.shown = last_error.message.c_str();
  } catch (...) {
    last_error.shown = "out of memory while writing an error message";
  }
  return code;
}

kvrun_status ReportSystemError(const std::system_error& error) noexcept {
  if (error.code() == std::errc::resource_unavailable_try_again) {
    return ReportText(
        KVRUN_OUT_OF_MEMORY,
        "this system allows no more threads: end other programs, or raise its limit (ulimit -u)");
  }
  return Report(StatusFromErrno(error.code().value(), "the system refused what kvrun needs"));
}

Status CheckNotNull(const void* pointer, std::string_view name) {
  if (pointer != nullptr) return Status::Ok();
  return Status(StatusCode::kInvalidArgument, fmt::format("the argument '{}' is NULL", name));
}

Status CopyOut(std::string_view text, char** out) {
  *out = static_cast<char*>(std::malloc(text.size() + 1));
  if (*out == nullptr) throw std::bad_alloc();
  std::copy(text.begin(), text.end(), *out);
  (*out)[text.size()] = '\0';
  return Status::Ok();
}

std::string ToText(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Status CopyOut(const Json& json, char** out) { return CopyOut(std::string_view(ToText(json)), out); }

std::function<bool(uint64_t, uint64_t)> BindProgress(kvrun_progress_fn progress, void* user,
                                                     kvrun_phase phase) {
  if (progress == nullptr) return {};
  return [progress, user, phase](uint64_t done, uint64_t total) {
    return progress(user, phase, done, total) != 0;
  };
}

Status CheckStructSize(uint32_t struct_size, size_t known_bytes, std::string_view struct_name) {
  if (struct_size >= 2 * sizeof(uint32_t) && struct_size <= kMaxStructBytes && struct_size % 4 == 0) {
    return Status::Ok();
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("{}.struct_size is {}; set it to sizeof({}), here {}, with {}_init", struct_name,
                            struct_size, struct_name, known_bytes, struct_name));
}

Status CheckNothingUnknown(const void* given, uint32_t struct_size, size_t known_bytes,
                           std::string_view struct_name) {
  const auto* bytes = static_cast<const unsigned char*>(given);
  for (size_t i = known_bytes; i < struct_size; ++i) {
    if (bytes[i] == 0) continue;
    return Status(StatusCode::kUnsupported,
                  fmt::format("{} sets an option that this version of the library ({}) does not have; "
                              "update the library",
                              struct_name, kvrun_version()));
  }
  return Status::Ok();
}

}  // namespace kvrun::capi

extern "C" {

const char* kvrun_last_error(void) { return kvrun::capi::ThreadLastError().shown; }

void kvrun_string_free(char* text) { std::free(text); }

const char* kvrun_status_name(kvrun_status status) {
  switch (status) {
    case KVRUN_OK: return "ok";
    case KVRUN_INVALID_ARGUMENT: return "invalid argument";
    case KVRUN_NOT_FOUND: return "not found";
    case KVRUN_CORRUPT: return "corrupt";
    case KVRUN_UNSUPPORTED: return "unsupported";
    case KVRUN_OUT_OF_MEMORY: return "out of memory";
    case KVRUN_CONTEXT_FULL: return "context full";
    case KVRUN_IO_ERROR: return "I/O error";
    case KVRUN_DEVICE_ERROR: return "device error";
    case KVRUN_CANCELLED: return "cancelled";
    case KVRUN_INTERNAL_ERROR: return "internal error";
  }
  return "unknown status";
}

}  // extern "C"
