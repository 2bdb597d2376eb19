// The border between C and C++: no exception crosses it, every error becomes a status and a message.
#pragma once

#include <system_error>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "platform/base/status.h"
#include "runtime/include/kvrun/kvrun.h"

namespace kvrun::capi {

// Keys in the order in which they are written.
using Json = nlohmann::ordered_json;

// Remembers the message for the calling thread (or forgets the last one, if ok) and answers the code.
kvrun_status Report(const Status& status) noexcept;
kvrun_status ReportText(kvrun_status status, const char* text) noexcept;  // text: a literal

// The standard library's way to say that the system gave no thread.
kvrun_status ReportSystemError(const std::system_error& error) noexcept;

// Runs the body of an API function, which answers a Status.
template <typename Body>
kvrun_status Guard(Body&& body) noexcept {
  try {
    return Report(std::forward<Body>(body)());
  } catch (const std::bad_alloc&) {
    return ReportText(KVRUN_OUT_OF_MEMORY,
                      "out of memory: close other programs, or ask for a smaller context");
  } catch (const std::system_error& error) {
    return ReportSystemError(error);
  } catch (const std::exception& error) {
    return Report(Status(StatusCode::kInternal,
                         std::string("a fault in kvrun, not in what was given to it: please report it (") +
                             error.what() + ")"));
  } catch (...) {
    return ReportText(KVRUN_INTERNAL_ERROR,
                      "a fault in kvrun, not in what was given to it: please report it");
  }
}

// kInvalidArgument with the name of the parameter if `pointer` is null.
Status CheckNotNull(const void* pointer, std::string_view name);

std::string ToText(const Json& json);  // on one line; invalid UTF-8 is replaced
// Copies text to memory that kvrun_string_free frees. *out is null on an error.
Status CopyOut(std::string_view text, char** out);
Status CopyOut(const Json& json, char** out);

// Writes all of `from` if there is room for it, and how much it is either way.
template <typename Range, typename T>
void CopyIfRoom(const Range& from, T* to, size_t* count) {
  if (to != nullptr && from.size() <= *count) std::copy(from.begin(), from.end(), to);
  *count = from.size();
}

std::function<bool(uint64_t, uint64_t)> BindProgress(kvrun_progress_fn progress, void* user,
                                                     kvrun_phase phase);

Status CheckStructSize(uint32_t struct_size, size_t known_bytes, std::string_view struct_name);
Status CheckNothingUnknown(const void* given, uint32_t struct_size, size_t known_bytes,
                           std::string_view struct_name);

// Reads an options struct of the caller's version: what it has over the defaults that `options` holds. Null
// is all defaults. A struct that is larger than this version's must be zero where this version has nothing.
template <typename Options>
Status ReadOptions(const Options* given, std::string_view struct_name, Options* options) {
  if (given == nullptr) return Status::Ok();
  const uint32_t struct_size = given->struct_size;
  KVRUN_RETURN_IF_ERROR(CheckStructSize(struct_size, sizeof(Options), struct_name));
  KVRUN_RETURN_IF_ERROR(CheckNothingUnknown(given, struct_size, sizeof(Options), struct_name));
  const size_t n_bytes = struct_size < sizeof(Options) ? struct_size : sizeof(Options);
  std::memcpy(static_cast<void*>(options), given, n_bytes);
  options->struct_size = sizeof(Options);
  return Status::Ok();
}

}  // namespace kvrun::capi
