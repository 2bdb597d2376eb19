// Buffers for operations of the CPU as a device, called one by one: with several numbers of threads, and for
// every instruction set that this processor has.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "platform/base/check.h"
#include "runtime/device/host/host_device.h"
#include "runtime/device/host/thread_pool.h"

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

}  // namespace kvrun::testing
