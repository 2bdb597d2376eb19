// Two devices as one: which gets a list, with which arguments, and what happens in between. The prefill
// device is a fake that writes down what it is asked for; the decode device is the CPU.
#include "runtime/device/pair/pair_device.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/logged_device.h"
#include "tests/support/or_die.h"

namespace kvrun::testing {
namespace {

using pair::kMaxDecodeRows;
using pair::PairBuffer;
using pair::PairDevice;
using pair::Side;
using Log = DeviceLog;

class PairDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto prefill = std::make_unique<LoggedDevice>();
    prefill_ = prefill.get();
    auto decode = OrDie(host::HostDevice::Create({.n_threads = 1, .note = {}}));
    const auto make_shared = [this](uint64_t size_bytes, BufferUse,
                                    std::string_view part) -> Result<pair::SharedBuffer> {
      auto memory = OrDie(host::HostMemory::Allocate(account_, part, size_bytes));
      std::byte* const bytes = memory->data();
      return pair::SharedBuffer{
          std::make_unique<LoggedBuffer>(std::string(part), std::move(memory), prefill_->log), bytes};
    };
    device_ = std::make_unique<PairDevice>(pair::PairParts{.prefill = std::move(prefill),
                                                           .decode = std::move(decode),
                                                           .make_shared = make_shared,
                                                           .notes = {"a note of the pair"}});
  }

  std::unique_ptr<Buffer> NewBuffer(const std::string& name, uint64_t n_floats = 4096,
                                    BufferUse use = BufferUse::kDevice) {
    return OrDie(device_->CreateBuffer(n_floats * sizeof(float), use, name));
  }
  // A finished list of RmsNorm.
  std::unique_ptr<CommandList> NormList(uint32_t n_rows, const Buffer& x, const Buffer& weight, Buffer* out) {
    auto list = OrDie(device_->CreateCommandList());
    RunOrDie(list->RmsNorm(x, weight, 1e-5F, n_rows, 4, out));
    RunOrDie(list->Finish());
    return list;
  }
  Log TakeLog() { return std::exchange(prefill_->log, {}); }

  std::shared_ptr<host::MemoryAccount> account_ = std::make_shared<host::MemoryAccount>();
  LoggedDevice* prefill_ = nullptr;
  std::unique_ptr<PairDevice> device_;
};

TEST_F(PairDeviceTest, RowsOfTheFirstOperationChoose) {
  const auto x = NewBuffer("x");
  const auto weight = NewBuffer("weight");
  const auto out = NewBuffer("out");
  const KvShape kv{.n_kv_heads = 1, .head_dim = 8, .n_ctx = 64};
  const KvRecordShape record{KvType::kF16, KvType::kF16, 1, 8, 4};
  const auto is_prefill = [&](const auto& record_operation) {
    TakeLog();
    const auto list = OrDie(device_->CreateCommandList());
    RunOrDie(record_operation(*list));
    return !TakeLog().empty();
  };
  for (const uint32_t rows : {1U, kMaxDecodeRows - 1, kMaxDecodeRows, kMaxDecodeRows + 1, 256U}) {
    const bool expected = rows > kMaxDecodeRows;
    SCOPED_TRACE(rows);
    EXPECT_EQ(expected,
              is_prefill([&](CommandList& l) { return l.RmsNorm(*x, *weight, 0, rows, 4, out.get()); }));
    EXPECT_EQ(expected, is_prefill([&](CommandList& l) { return l.SwiGlu(*x, rows, 4, out.get()); }));
    EXPECT_EQ(expected, is_prefill([&](CommandList& l) { return l.GatherRows(*x, *x, rows, 4, out.get()); }));
    EXPECT_EQ(expected,
              is_prefill([&](CommandList& l) { return l.Attend({.kv_shape = {}, .n_tokens = rows}); }));
    EXPECT_EQ(expected, is_prefill([&](CommandList& l) {
                return l.AttendSlots({.attention = {.kv_shape = {}, .n_tokens = rows}});
              }));
    EXPECT_EQ(expected, is_prefill([&](CommandList& l) {
                return l.AccumulateGram({.rows = x.get(), .n_rows = rows, .sums = out.get()});
              }));
    EXPECT_EQ(expected,
              is_prefill([&](CommandList& l) { return l.ProjectKeys(*x, kv, 0, rows, {}, 4, out.get()); }));
  }
  for (const uint32_t n_groups : {1U, kMaxDecodeRows / 4, kMaxDecodeRows / 4 + 1}) {
    const bool expected = n_groups * 4 > kMaxDecodeRows;
    EXPECT_EQ(expected, is_prefill([&](CommandList& l) {
                return l.EncodeRecords(*x, kv, 0, n_groups, record, {}, out.get());
              }));
    EXPECT_EQ(expected, is_prefill([&](CommandList& l) {
                return l.DecodeRecords(*x, record, {}, n_groups, 0, kv, out.get());
              }));
  }
  EXPECT_TRUE(is_prefill([&](CommandList& l) { return l.SumWeights({.n_rows = 1, .kv_shape = {}}); }));
  EXPECT_TRUE(is_prefill([&](CommandList& l) { return l.AttentionMass({.n_rows = 1, .kv_shape = {}}); }));
  EXPECT_TRUE(is_prefill([&](CommandList& l) { return l.AluRate(1, 1, out.get()); }));
  EXPECT_FALSE(is_prefill([&](CommandList& l) { return l.ReadRate(1, 1, out.get()); }));
}

TEST_F(PairDeviceTest, AListIsWhollyOneDevices) {
  const auto x = NewBuffer("x");
  const auto out = NewBuffer("out");
  const auto large = OrDie(device_->CreateCommandList());
  RunOrDie(large->RmsNorm(*x, *x, 0, 40, 4, out.get()));
  RunOrDie(large->GatherRows(*x, *x, 1, 4, out.get()));
  EXPECT_EQ(TakeLog(), (Log{"rms_norm", "gather_rows"}));
  const auto small = OrDie(device_->CreateCommandList());
  RunOrDie(small->RmsNorm(*x, *x, 0, 1, 4, out.get()));
  RunOrDie(small->GatherRows(*x, *x, 40, 4, out.get()));
  EXPECT_EQ(TakeLog(), Log{});
}

// The devices' memory is one: what each writes, the other has; only when work goes over are caches looked
// after, and only of what was written.
TEST_F(PairDeviceTest, CachesAreFlushedAndInvalidatedOnlyAtASwitch) {
  const auto x = NewBuffer("x", 256, BufferUse::kUpload);
  const std::vector<float> twos(4, 2.0F);
  const auto weight = OrDie(device_->CreateConstants(std::as_bytes(std::span(twos)), "weight"));
  const auto a = NewBuffer("a", 256);
  const auto b = NewBuffer("b", 256);
  EXPECT_EQ(TakeLog(), Log{"flush weight"});
  const auto large = NormList(64, *x, *weight, a.get());
  const auto small = NormList(1, *x, *weight, b.get());
  const auto small_too = NormList(2, *x, *weight, b.get());
  TakeLog();

  RunOrDie(device_->Submit(*large).status());
  RunOrDie(device_->Submit(*large).status());
  EXPECT_EQ(TakeLog(), (Log{"submit 3", "submit 6"}));
  reinterpret_cast<float*>(x->host().data())[0] = 3.0F;
  RunOrDie(device_->Submit(*small).status());
  EXPECT_EQ(TakeLog(), (Log{"wait 6", "invalidate a"}));
  const uint64_t value = OrDie(device_->Submit(*small_too));
  RunOrDie(device_->Wait(value));
  EXPECT_EQ(TakeLog(), Log{});
  float result = 0.0F;
  RunOrDie(device_->Download(*b, std::as_writable_bytes(std::span(&result, 1))));
  EXPECT_NEAR(result, 4.0F, 1e-3F) << "the CPU has computed in this memory";

  RunOrDie(device_->Submit(*large).status());
  EXPECT_EQ(TakeLog(), (Log{"flush b", "submit 9"}));
  RunOrDie(device_->Submit(*large).status());
  EXPECT_EQ(TakeLog(), Log{"submit 12"});
}

TEST_F(PairDeviceTest, BuffersThatAreGoneAreLeftAlone) {
  const auto x = NewBuffer("x", 256);
  const auto kept = NewBuffer("kept", 256);
  auto gone = NewBuffer("gone", 256);
  auto large = NormList(64, *x, *x, gone.get());
  const auto large_too = NormList(64, *x, *x, kept.get());
  RunOrDie(device_->Wait(OrDie(device_->Submit(*large))));
  RunOrDie(device_->Submit(*large_too).status());
  large.reset();
  gone.reset();
  TakeLog();
  const auto small = NormList(1, *x, *x, kept.get());
  RunOrDie(device_->Wait(OrDie(device_->Submit(*small))));
  EXPECT_EQ(TakeLog(), (Log{"wait 6", "invalidate kept"}));
}

// What the CPU wrote may still be in its caches: the caller's Invalidate must not take it away.
TEST_F(PairDeviceTest, InvalidateDoesNothingWhileTheCpuComputes) {
  const auto shared = NewBuffer("shared", 256, BufferUse::kShared);
  const auto large = NormList(64, *shared, *shared, shared.get());
  const auto small = NormList(1, *shared, *shared, shared.get());
  RunOrDie(device_->Submit(*large).status());
  TakeLog();
  RunOrDie(shared->Flush(4, 8));
  RunOrDie(shared->Invalidate(8, 16));
  EXPECT_EQ(TakeLog(), (Log{"flush shared 4+8", "invalidate shared 8+16"}));
  RunOrDie(device_->Wait(OrDie(device_->Submit(*small))));
  TakeLog();
  RunOrDie(shared->Flush(4, 8));
  RunOrDie(shared->Invalidate(8, 16));
  EXPECT_EQ(TakeLog(), Log{"flush shared 4+8"});
}

TEST_F(PairDeviceTest, OneTimelineOfBoth) {
  const auto x = NewBuffer("x", 256);
  const auto y = NewBuffer("y", 256);
  const auto large = NormList(64, *x, *x, y.get());
  const auto small = NormList(1, *x, *x, y.get());
  EXPECT_EQ(OrDie(device_->Completed()), 0U);
  EXPECT_EQ(OrDie(device_->Submit(*large)), 1U);
  EXPECT_EQ(OrDie(device_->Submit(*large)), 2U);
  EXPECT_EQ(OrDie(device_->Completed()), 0U);
  prefill_->completed = 5;  // the first list, and a part of the second
  EXPECT_EQ(OrDie(device_->Completed()), 1U);
  TakeLog();
  RunOrDie(device_->Wait(1));
  EXPECT_EQ(TakeLog(), Log{"wait 3"});
  EXPECT_EQ(OrDie(device_->Submit(*small)), 3U);
  EXPECT_EQ(OrDie(device_->Submit(*small)), 4U);
  EXPECT_EQ(TakeLog(), (Log{"wait 6", "invalidate y"}));
  RunOrDie(device_->Wait(4));
  EXPECT_EQ(OrDie(device_->Completed()), 4U);
  RunOrDie(device_->Wait(2));  // again
  EXPECT_EQ(TakeLog(), Log{});
  EXPECT_EQ(OrDie(device_->Submit(*large)), 5U);
  EXPECT_EQ(OrDie(device_->Completed()), 4U);
  prefill_->completed = 9;
  EXPECT_EQ(OrDie(device_->Completed()), 5U);
}

TEST_F(PairDeviceTest, TheHostsValuesReachWhicheverWaits) {
  const auto x = NewBuffer("x", 256);
  const auto large = NormList(64, *x, *x, x.get());
  const auto small = NormList(1, *x, *x, x.get());
  const uint64_t first = device_->ReserveHostValues(3);
  EXPECT_EQ(first, 1U);
  EXPECT_EQ(prefill_->last_host_value, 3U);
  RunOrDie(device_->SignalHost(first));
  const uint64_t ahead = OrDie(device_->Submit(*small, first + 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(OrDie(device_->Completed()), 0U);
  std::thread other([&] { RunOrDie(device_->SignalHost(first + 1)); });
  RunOrDie(device_->Wait(ahead));
  other.join();
  EXPECT_EQ(OrDie(device_->Completed()), ahead);
  TakeLog();
  RunOrDie(device_->Submit(*large, first + 2).status());
  RunOrDie(device_->SignalHost(first + 2));
  EXPECT_EQ(TakeLog(), (Log{"flush x", "submit 3 after 3", "signal 3"}));
  EXPECT_EQ(device_->ReserveHostValues(1), first + 3);
}

// The switch waits, while the thread that signals goes on.
TEST_F(PairDeviceTest, ASwitchWaitsForWhatTheHostSignals) {
  const auto x = NewBuffer("x", 256);
  const auto large = NormList(64, *x, *x, x.get());
  const auto small = NormList(1, *x, *x, x.get());
  const uint64_t first = device_->ReserveHostValues(1);
  const uint64_t ahead = OrDie(device_->Submit(*small, first));
  TakeLog();
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(OrDie(device_->Completed()), 0U);
    RunOrDie(device_->SignalHost(first));
  });
  RunOrDie(device_->Submit(*large).status());
  other.join();
  EXPECT_EQ(TakeLog(), (Log{"signal 1", "flush x", "submit 3"}));
  RunOrDie(device_->Wait(ahead));
}

// Each operation's buffers, all different, as the device's own and in order.
TEST_F(PairDeviceTest, ArgumentsAreTheDevicesOwn) {
  std::vector<std::unique_ptr<Buffer>> buffers;
  for (int i = 0; i < 24; ++i) buffers.push_back(NewBuffer("b", 4));
  std::vector<std::byte> zeros(sizeof(float) * 32 * 4);
  const MatrixSource source{.data = zeros, .n_rows = 4};
  const auto matrix = OrDie(device_->CreateMatrix(TensorType::kF32, 32, std::span(&source, 1)));
  EXPECT_GT(matrix->size_bytes(), 1000U) << "of both";
  const auto at = [&](int i) { return buffers[static_cast<size_t>(i)].get(); };
  const AttentionArgs attention{.qkv = at(0),
                                .step = at(1),
                                .kv = at(2),
                                .kv_shape = {},
                                .n_tokens = 99,
                                .angles = at(3),
                                .norms = at(4),
                                .output = at(5),
                                .scratch = at(6),
                                .parts_after = {at(7), 1},
                                .parts_before = {at(8), 2}};
  const IndexSides sides{.query_side = at(9), .key_side = at(10), .bias = at(11), .scales = at(12)};
  SlotAttentionArgs slots{.attention = attention};
  for (uint32_t i = 0; i < kMaxSlotSources; ++i) {
    const int first = 9 + 2 * static_cast<int>(i);
    slots.Add({.slots = at(first), .shape = {}, .table = at(first + 1)});
  }
  const auto expect = [&](const char* name, std::vector<int> wanted, const auto& record) {
    const auto list = OrDie(device_->CreateCommandList());
    prefill_->given = {};
    RunOrDie(record(*list));
    std::vector<const Buffer*> own;
    for (const int i : wanted) own.push_back(static_cast<PairBuffer*>(at(i))->On(Side::kPrefill));
    EXPECT_EQ(prefill_->given.buffers, own) << name;
  };
  using List = CommandList;
  const std::vector<int> of_attention = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<int> of_slots = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  expect("embed", {0, 1}, [&](List& l) { return l.Embed(*matrix, *at(0), 99, at(1)); });
  EXPECT_EQ(prefill_->given.matrix, static_cast<pair::PairMatrix&>(*matrix).On(Side::kPrefill));
  expect("rms_norm", {0, 1, 2}, [&](List& l) { return l.RmsNorm(*at(0), *at(1), 0, 99, 1, at(2)); });
  expect("matmul", {0, 1, 2, 3, 4, 5}, [&](List& l) {
    return l.MatMul({.weight = matrix.get(),
                     .input = at(0),
                     .output = at(1),
                     .bias = at(2),
                     .n_tokens = 99,
                     .norm = {.weight = at(3), .rows = at(4)},
                     .gate = {.gate_up = at(5)}});
  });
  EXPECT_EQ(prefill_->given.matrix, static_cast<pair::PairMatrix&>(*matrix).On(Side::kPrefill));
  expect("rope_and_store", of_attention, [&](List& l) { return l.RopeAndStore(attention); });
  expect("attend", of_attention, [&](List& l) { return l.Attend(attention); });
  expect("finish_attention", of_attention, [&](List& l) { return l.FinishAttention(attention); });
  expect("swiglu", {0, 1}, [&](List& l) { return l.SwiGlu(*at(0), 99, 1, at(1)); });
  expect("gather_rows", {0, 1, 2}, [&](List& l) { return l.GatherRows(*at(0), *at(1), 99, 1, at(2)); });
  expect("rope_and_encode", of_slots, [&](List& l) { return l.RopeAndEncode(slots); });
  expect("attend_slots", of_slots, [&](List& l) { return l.AttendSlots(slots); });
  const KvRecordShape record{KvType::kF16, KvType::kF16, 1, 8, 4};
  expect("encode", {0, 1, 2},
         [&](List& l) { return l.EncodeRecords(*at(0), {}, 0, 99, record, {at(1)}, at(2)); });
  expect("decode", {0, 1, 2},
         [&](List& l) { return l.DecodeRecords(*at(0), record, {at(1)}, 99, 0, {}, at(2)); });
  expect("score", {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, [&](List& l) {
    return l.ScoreAndSelect({.query = at(13),
                             .attention = attention,
                             .sides = sides,
                             .index = at(14),
                             .index_shape = {},
                             .scratch = at(15),
                             .chosen = at(16)});
  });
  expect("project", {9, 10, 11, 12, 0, 1},
         [&](List& l) { return l.ProjectKeys(*at(0), {}, 0, 99, sides, 1, at(1)); });
  expect("gram", {0, 1},
         [&](List& l) { return l.AccumulateGram({.rows = at(0), .n_rows = 99, .sums = at(1)}); });
  const RowMassArgs mass{
      .queries = at(0), .step = at(1), .kv = at(2), .kv_shape = {}, .sums = at(3), .mass = at(4)};
  expect("sum_weights", {0, 1, 2, 3}, [&](List& l) { return l.SumWeights(mass); });
  expect("attention_mass", {0, 1, 2, 3, 4}, [&](List& l) { return l.AttentionMass(mass); });
  expect("alu", {0}, [&](List& l) { return l.AluRate(1, 1, at(0)); });
  expect("sigmoid_gate", {0, 1}, [&](List& l) { return l.SigmoidGate({at(0), 99, 1, at(1)}); });
  expect("choose_experts", {0, 1, 2}, [&](List& l) {
    return l.ChooseExperts({at(0), 99, 4, 2, at(1), at(2)});
  });
  expect("expert_matmul", {0, 1, 2, 3}, [&](List& l) {
    return l.ExpertMatMul({matrix.get(), at(0), at(1), at(2), 99, 2, 2, at(3)});
  });
  EXPECT_EQ(prefill_->given.matrix, static_cast<pair::PairMatrix&>(*matrix).On(Side::kPrefill));
  expect("short_convolution", {0, 1, 2, 3, 4}, [&](List& l) {
    return l.ShortConvolution(
        {.input = at(0), .taps = at(1), .state = at(2), .step = at(3), .n_tokens = 99, .output = at(4)});
  });
  expect("delta_rule", {0, 1, 2, 3, 4, 5}, [&](List& l) {
    return l.DeltaRule({.qkv = at(0),
                        .gates = at(1),
                        .constants = at(2),
                        .state = at(3),
                        .step = at(4),
                        .n_tokens = 99,
                        .output = at(5)});
  });
  expect("gated_norm", {0, 1, 2}, [&](List& l) {
    return l.GatedNorm({.values = at(0), .weight = at(1), .gate = at(2), .n_tokens = 99});
  });
}

TEST_F(PairDeviceTest, ItIsDescribedAsBoth) {
  const DeviceInfo& info = device_->info();
  EXPECT_TRUE(info.name.starts_with("Fake device (prefill) and ")) << info.name;
  EXPECT_TRUE(info.name.ends_with(" (decoding)")) << info.name;
  EXPECT_NE(info.plan.find("all fake"), std::string::npos);
  EXPECT_NE(info.plan.find("1 thread"), std::string::npos);
  EXPECT_EQ(info.max_buffer_bytes, 0U) << "the fake's";
  ASSERT_EQ(info.notes.size(), 3U);
  EXPECT_EQ(info.notes[0], "a note");
  EXPECT_EQ(info.notes[1], "a note of the pair");
  EXPECT_NE(info.notes[2].find("weights are held twice"), std::string::npos);
  EXPECT_EQ(device_->AttendScratchBytes(
                {.kv_shape = {.n_kv_heads = 1, .head_dim = 8}, .n_heads = 1, .n_tokens = 20}),
            1U << 30);
  EXPECT_GT(device_->AttendScratchBytes(
                {.kv_shape = {.n_kv_heads = 1, .head_dim = 8, .n_ctx = 8}, .n_heads = 1, .n_tokens = 1}),
            0U);

  const std::vector<std::byte> zeros(sizeof(float) * 32 * 4);
  const MatrixSource source{.data = zeros, .n_rows = 4};
  const auto matrix = OrDie(device_->CreateMatrix(TensorType::kF32, 32, std::span(&source, 1)));
  const auto parts = device_->MemoryInUse();
  ASSERT_EQ(parts.size(), 3U) << "of a fake that has parts of the same name";
  EXPECT_EQ(parts[0].part, "weights");
  EXPECT_GT(parts[0].bytes, 1000U + zeros.size());
  EXPECT_EQ(parts[1].bytes, 230U);
}

}  // namespace
}  // namespace kvrun::testing
