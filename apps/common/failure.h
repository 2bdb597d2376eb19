// How the program fails. Errors are exceptions that end in main(); none crosses the C API (the callbacks
// catch their own).
#pragma once

#include <kvrun/kvrun.h>

#include <stdexcept>
#include <string>

namespace kvrun::cli {

inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;

// The job could not be done.
class Failure : public std::runtime_error {
 public:
  Failure(kvrun_status status, const std::string& message, int exit_code = kExitFailure)
      : std::runtime_error(message), status_(status), exit_code_(exit_code) {}

  kvrun_status status() const { return status_; }
  int exit_code() const { return exit_code_; }

 private:
  kvrun_status status_;
  int exit_code_;
};

// The command line or an environment variable asks for something that makes no sense.
class UsageError : public Failure {
 public:
  explicit UsageError(const std::string& message) : Failure(KVRUN_INVALID_ARGUMENT, message, kExitUsage) {}
};

// Whoever read our standard output has gone: nothing is left to say, and nobody to say it to.
class OutputClosed : public Failure {
 public:
  OutputClosed() : Failure(KVRUN_IO_ERROR, "standard output was closed") {}
};

// Ctrl-C or SIGTERM.
class Interruption : public Failure {
 public:
  Interruption() : Failure(KVRUN_CANCELLED, "interrupted", kExitInterrupted) {}
};

// ask(), where explain(failure) is what a failure says. Where nobody is left to say it to, that stays so.
template <typename Ask, typename Explain>
auto Explained(const Ask& ask, const Explain& explain) {
  try {
    return ask();
  } catch (const OutputClosed&) {
    throw;
  } catch (const Failure& failure) {
    const std::string message = explain(failure);
    if (message == failure.what()) throw;
    throw Failure(failure.status(), message, failure.exit_code());
  }
}

}  // namespace kvrun::cli
