// Buffers for operations of the CPU as a device, called one by one: with several numbers of threads, and for
// every instruction set that this processor has.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "platform/base/check.h"
#include "runtime/device/host/host_device.h"
#include "runtime/device/host/thread_pool.h"
#include "shaders/shared/step_params.h"

namespace kvrun::testing {

// Calls function(pool) for each instruction set and 1 and 3 threads.
void ForEachHostPool(const std::function<void(host::ThreadPool&)>& function);

// The buffers of one case.
class HostRun {
 public:
  static constexpr size_t kBeyondFloats = 64;  // of NaN, after each buffer

  template <typename T>
  Buffer* Values(std::span<const T> values) {
    return Bytes(std::as_bytes(values));
  }
  template <typename T>
  Buffer* Values(const std::vector<T>& values) {
    return Values(std::span<const T>(values));
  }
  // Of NaN.
  Buffer* Poisoned(size_t n_floats) {
    return Values(std::vector<float>(n_floats, std::numeric_limits<float>::quiet_NaN()));
  }
  Buffer* Step(std::span<const StepToken> tokens);

  // What a buffer holds. That what follows each is as it was is checked in the end.
  template <typename T>
  std::vector<T> Read(const Buffer* buffer) {
    std::vector<T> values(buffer->size_bytes() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), host::Data<std::byte>(buffer), values.size() * sizeof(T));
    return values;
  }

 private:
  Buffer* Bytes(std::span<const std::byte> bytes);
  void ExpectBeyondUntouched();

  std::shared_ptr<host::MemoryAccount> account_ = std::make_shared<host::MemoryAccount>();
  std::vector<std::unique_ptr<Buffer>> buffers_;

 public:
  ~HostRun() { ExpectBeyondUntouched(); }
};

// found[i] is within tolerance of expected[i]; where that is NaN, so is found[i].
::testing::AssertionResult AreClose(std::span<const float> found, std::span<const double> expected,
                                    double tolerance);

}  // namespace kvrun::testing
