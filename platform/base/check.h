// KVRUN_CHECK: for programmer errors only, never for input. Prints the condition and aborts.
#pragma once

namespace kvrun {
[[noreturn]] void CheckFailed(const char* condition, const char* file, int line);
}  // namespace kvrun

#define KVRUN_CHECK(condition)                                              \
  do {                                                                      \
    if (!(condition)) ::kvrun::CheckFailed(#condition, __FILE__, __LINE__); \
  } while (false)
