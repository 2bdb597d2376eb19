// Strands of a list on the CPU: whoever carries them out, each in its order, and what follows after all.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "runtime/device/host/host_device.h"
#include "tests/support/or_die.h"

namespace kvrun::host {
namespace {

using testing::OrDie;
using testing::RunOrDie;

constexpr uint64_t kFloats = 1000;
constexpr uint64_t kBytes = kFloats * sizeof(float);

class HostStrands : public ::testing::TestWithParam<uint32_t> {
 protected:
  void SetUp() override {
    HostDeviceOptions options;
    options.n_threads = GetParam();
    device_ = OrDie(HostDevice::Create(options));
  }
  std::unique_ptr<Buffer> Make(uint64_t n = 1) {
    return OrDie(device_->CreateBuffer(n * kBytes, BufferUse::kShared, "kv"));
  }
  static float* Floats(Buffer& buffer) { return Data<float>(&buffer); }
  static void Copy(CommandList& list, Buffer& from, Buffer* to, uint64_t to_nth = 0) {
    RunOrDie(list.Copy({.from = &from, .to = to, .pieces = {{0, to_nth * kBytes, kBytes}}}));
  }

  std::unique_ptr<HostDevice> device_;
};

INSTANTIATE_TEST_SUITE_P(Threads, HostStrands, ::testing::Values(1U, 2U, 3U, 4U));

// Each strand: in -> a -> b -> its part of `out`, which an operation before has filled, and one after copies.
TEST_P(HostStrands, AreCarriedOutInTheirPlace) {
  for (uint32_t n = 1; n <= 9; ++n) {
    for (const bool awaits : {false, true}) {
      std::vector<std::unique_ptr<Buffer>> buffers;
      const auto make = [&](uint64_t size = 1) -> Buffer& { return *buffers.emplace_back(Make(size)); };
      Buffer& before = make(n);
      Buffer& out = make(n);
      Buffer& after = make(n);
      const auto list = OrDie(device_->CreateCommandList());
      RunOrDie(list->Copy({.from = &before, .to = &out, .pieces = {{0, 0, n * kBytes}}}));
      if (awaits) RunOrDie(list->AwaitHost());
      for (int group = 0; group < 2; ++group) {
        for (uint32_t i = group; i < n; ++i) {
          list->BeginStrand();
          Buffer& in = make();
          Buffer& a = make();
          Buffer& b = make();
          for (uint64_t k = 0; k < kFloats; ++k) {
            Floats(in)[k] = static_cast<float>(1000 * group + 10 * i) + static_cast<float>(k) / 1024.0F;
          }
          Copy(*list, in, &a);
          Copy(*list, a, &b);
          Copy(*list, b, &out, i);
        }
        list->EndStrands();
      }
      RunOrDie(list->Copy({.from = &out, .to = &after, .pieces = {{0, 0, n * kBytes}}}));
      RunOrDie(list->Finish());
      for (uint64_t k = 0; k < n * kFloats; ++k) Floats(before)[k] = -1.0F;
      for (int again = 0; again < 3; ++again) {
        const uint64_t host_value = device_->ReserveHostValues(1);
        const uint64_t value = OrDie(device_->Submit(*list, awaits ? host_value : 0));
        if (awaits) RunOrDie(device_->SignalHost(host_value));
        RunOrDie(device_->Wait(value));
        for (uint32_t i = 0; i < n; ++i) {
          const float begin = i == 0 ? 0.0F : static_cast<float>(1000 + 10 * i);
          for (const uint64_t k : {uint64_t{0}, kFloats - 1}) {
            EXPECT_EQ(Floats(after)[i * kFloats + k], begin + static_cast<float>(k) / 1024.0F)
                << n << " " << i;
          }
        }
      }
    }
  }
}

TEST_P(HostStrands, OfWhichThereAreNoneChangeNothing) {
  const auto list = OrDie(device_->CreateCommandList());
  const std::unique_ptr<Buffer> from = Make();
  const std::unique_ptr<Buffer> to = Make();
  Floats(*from)[7] = 3.0F;
  list->EndStrands();
  list->BeginStrand();
  list->EndStrands();
  Copy(*list, *from, to.get());
  list->BeginStrand();
  list->BeginStrand();
  list->EndStrands();
  RunOrDie(list->Finish());
  RunOrDie(device_->Wait(OrDie(device_->Submit(*list))));
  EXPECT_EQ(Floats(*to)[7], 3.0F);
}

}  // namespace
}  // namespace kvrun::host
