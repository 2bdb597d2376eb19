// Operations of the CPU device (runtime/device/host) on made-up buffers: with several numbers of threads, and
// for every instruction set that they are compiled for and that this machine has.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/device/host/host_device.h"
#include "shaders/shared/step_params.h"

namespace kvrun::testing {

// The unit roundoff of 32-bit floats.
inline constexpr double kHostRoundoff = 0x1p-24;
inline constexpr uint32_t kHostPoison = 0x7fc0fead;  // a NaN, and two NaNs as halves
// Words beyond every output that must stay poisoned.
inline constexpr size_t kHostBeyond = 64;

// Calls `test` for each instruction set and number of threads, with a device of its own.
void OnEveryHostTarget(const std::function<void(host::HostDevice&)>& test);

// Buffers that live as long as the run, and one submission at a time.
class HostOperationRun {
 public:
  explicit HostOperationRun(host::HostDevice& device) : device_(device) {}

  template <typename T>
  Buffer* Values(std::span<const T> values) {
    return Words(std::as_bytes(values), 0);
  }
  template <typename T>
  Buffer* Values(const std::vector<T>& values) {
    return Values(std::span<const T>(values));
  }
  // `values`, and kHostBeyond poisoned words after them.
  template <typename T>
  Buffer* Output(const std::vector<T>& values) {
    return Words(std::as_bytes(std::span<const T>(values)), kHostBeyond);
  }
  Buffer* Poisoned(size_t n_words) { return Output(std::vector<uint32_t>(n_words, kHostPoison)); }
  Buffer* Step(std::span<const StepToken> tokens);

  void Run(const std::function<Status(CommandList&)>& record);

  // What lies there, and whether what lies beyond is as it was.
  template <typename T>
  std::vector<T> Read(const Buffer* buffer, size_t count) {
    const auto* data = host::Data<T>(buffer);
    return {data, data + count};
  }
  ::testing::AssertionResult IsUntouched(const Buffer* buffer, size_t from_word);

  host::HostDevice& device() { return device_; }

 private:
  Buffer* Words(std::span<const std::byte> bytes, size_t n_poisoned);

  host::HostDevice& device_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

// found[i] is within tolerance[i] (or the one tolerance) of expected[i].
::testing::AssertionResult AreClose(std::span<const float> found, std::span<const double> expected,
                                    std::span<const double> tolerance);

// Uniform in [-1, 1), none closer to zero than 2^-13.
std::vector<float> HostRandomFloats(size_t count, uint32_t seed);

}  // namespace kvrun::testing
