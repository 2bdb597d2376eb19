#include "tests/support/host_run.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/host_targets.h"

namespace kvrun::testing {
namespace {

constexpr size_t kBeyondBytes = HostRun::kBeyondFloats * sizeof(float);

}  // namespace

void ForEachHostPool(const std::function<void(host::ThreadPool&)>& function) {
  static host::ThreadPool one(1);
  static host::ThreadPool three(3);
  ForEachHostTarget([&](int64_t) {
    for (host::ThreadPool* pool : {&one, &three}) {
      SCOPED_TRACE(pool->size());
      function(*pool);
    }
  });
}

Buffer* HostRun::Bytes(std::span<const std::byte> bytes) {
  auto memory = host::HostMemory::Allocate(account_, "test", bytes.size() + kBeyondBytes);
  KVRUN_CHECK(memory.ok());
  if (!bytes.empty()) std::memcpy((*memory)->data(), bytes.data(), bytes.size());
  std::memset((*memory)->data() + bytes.size(), 0xff, kBeyondBytes);
  buffers_.push_back(
      std::make_unique<host::HostBuffer>(std::move(*memory), bytes.size(), BufferUse::kShared));
  return buffers_.back().get();
}

void HostRun::ExpectBeyondUntouched() {
  for (const auto& buffer : buffers_) {
    const std::byte* beyond = host::Data<std::byte>(buffer.get()) + buffer->size_bytes();
    EXPECT_TRUE(std::all_of(beyond, beyond + kBeyondBytes, [](std::byte b) { return b == std::byte{0xff}; }))
        << "after a buffer of " << buffer->size_bytes() << " bytes";
  }
}

}  // namespace kvrun::testing
