#include "tests/support/host_operation_run.h"

#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "runtime/device/host/instruction_sets.h"
#include "tests/support/host_targets.h"
#include "tests/support/or_die.h"

namespace kvrun::testing {

void OnEveryHostTarget(const std::function<void(host::HostDevice&)>& test) {
  ForEachHostTarget([&](int64_t target) {
    for (const uint32_t n_threads : {1U, 3U}) {
      SCOPED_TRACE(::testing::Message() << n_threads << " threads");
      const auto device = OrDie(host::HostDevice::Create({.n_threads = n_threads, .note = {}}));
      EXPECT_EQ(host::InstructionSetName(), hwy::TargetName(target));
      EXPECT_EQ(device->pool().size(), n_threads);
      test(*device);
    }
  });
}

Buffer* HostOperationRun::Words(std::span<const std::byte> bytes, size_t n_poisoned) {
  const size_t size_bytes = bytes.size() + n_poisoned * sizeof(uint32_t);
  buffers_.push_back(OrDie(device_.CreateBuffer(size_bytes, BufferUse::kShared, "test")));
  auto* data = host::Data<std::byte>(buffers_.back().get());
  std::copy(bytes.begin(), bytes.end(), data);
  const std::vector<uint32_t> poison(n_poisoned, kHostPoison);
  if (n_poisoned != 0) std::memcpy(data + bytes.size(), poison.data(), n_poisoned * sizeof(uint32_t));
  return buffers_.back().get();
}

Buffer* HostOperationRun::Step(std::span<const StepToken> tokens) {
  std::vector<StepParams> step(1);
  step[0].n_tokens = step[0].n_outputs = static_cast<uint32_t>(tokens.size());
  std::copy(tokens.begin(), tokens.end(), step[0].tokens);
  return Values(step);
}

void HostOperationRun::Run(const std::function<Status(CommandList&)>& record) {
  const auto list = OrDie(device_.CreateCommandList());
  ASSERT_TRUE(record(*list).ok());
  ASSERT_TRUE(list->Finish().ok());
  const auto value = device_.Submit(*list);
  ASSERT_TRUE(value.ok());
  ASSERT_TRUE(device_.Wait(*value).ok());
}

::testing::AssertionResult HostOperationRun::IsUntouched(const Buffer* buffer, size_t from_word) {
  const auto* words = host::Data<uint32_t>(buffer);
  for (size_t i = from_word; i < buffer->size_bytes() / sizeof(uint32_t); ++i) {
    if (words[i] != kHostPoison) return ::testing::AssertionFailure() << "word " << i << " was overwritten";
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult AreClose(std::span<const float> found, std::span<const double> expected,
                                    std::span<const double> tolerance) {
  if (found.size() != expected.size()) return ::testing::AssertionFailure() << found.size() << " values";
  for (size_t i = 0; i < found.size(); ++i) {
    const double allowed = tolerance.size() == 1 ? tolerance[0] : tolerance[i];
    if (std::abs(found[i] - expected[i]) <= allowed) continue;  // false for NaN
    return ::testing::AssertionFailure() << "value " << i << " of " << found.size() << " is " << found[i]
                                         << " and not " << expected[i] << " +- " << allowed;
  }
  return ::testing::AssertionSuccess();
}

std::vector<float> HostRandomFloats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    const auto steps = static_cast<int32_t>(random() % 16384) - 8192;
    value = (static_cast<float>(steps) + 0.5F) * 0x1p-13F;
    if (std::abs(value) < 0x1p-13F) value = 0x1p-13F;
  }
  return values;
}

}  // namespace kvrun::testing
