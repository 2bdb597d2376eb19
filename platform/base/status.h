// Error handling for all of kvrun: no exceptions cross platform/ or runtime/.
//
// A Status says what failed, on what, why, and what to do; it is written for the person who typed the
// command. Result<T> holds either a T or a Status that is not ok.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace kvrun {

enum class StatusCode : uint8_t {
  kOk = 0,
  kInvalidArgument,  // the caller passed something that can never work
  kNotFound,         // a file, a device, a key that is not there
  kCorrupt,          // a file whose content contradicts itself
  kUnsupported,      // well-formed, but not something this build can do
  kOutOfMemory,      // host or device memory, or a budget, does not suffice
  kContextFull,      // the sequence has no room for another token
  kIo,               // the operating system refused a read or a write
  kDevice,           // the compute device or its driver failed
  kCancelled,        // a callback asked to stop
  kInternal,         // a bug in kvrun
};

// Short lower-case name, such as "corrupt".
std::string_view StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return {}; }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same code, with "context: " before the message. Use it to add what was being done.
  Status WithContext(std::string_view context) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// Translates an errno value. `what` reads like "cannot open model.gguf".
Status StatusFromErrno(int error_number, std::string_view what);

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace kvrun

#define KVRUN_CONCAT_INNER(a, b) a##b
#define KVRUN_CONCAT(a, b) KVRUN_CONCAT_INNER(a, b)

// Returns from the calling function if `expression`, a Status, is not ok.
#define KVRUN_RETURN_IF_ERROR(expression)                                                        \
  do {                                                                                           \
    if (::kvrun::Status kvrun_status_ = (expression); !kvrun_status_.ok()) return kvrun_status_; \
  } while (false)

// KVRUN_ASSIGN_OR_RETURN(auto file, Open(path)): declares or assigns, or returns the error.
#define KVRUN_ASSIGN_OR_RETURN(lhs, expression) \
  KVRUN_ASSIGN_OR_RETURN_INNER(KVRUN_CONCAT(kvrun_result_, __LINE__), lhs, expression)
#define KVRUN_ASSIGN_OR_RETURN_INNER(result, lhs, expression) \
  auto result = (expression);                                 \
  if (!result.ok()) return result.status();                   \
  lhs = std::move(result).value()
