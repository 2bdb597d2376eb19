// DynaKV with the rows of its index on flash: to the last bit it says what it says with the rows in memory,
// whatever becomes of clusters and sequences, and it holds less.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "platform/base/random.h"
#include "runtime/engine/session/session_kv.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/small_models.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kLayers = 7;  // the ring has three
// A part is selected: what the index holds decides what is said.
constexpr const char* kSome = "--kv-method dynakv --kv-select 40 --kv-window 6 --kv-sinks 2 --kv-type f32 ";

class DynaKvRows : public ::testing::Test {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    loaded_ = LoadDeepModel(kLayers, folder_);
  }

  std::unique_ptr<ForwardPass> NewPass(const std::string& options, const char* where, uint32_t n_ctx,
                                       uint32_t n_sequences = 1) {
    auto offloaded = OffloadedOptionsOrDie(
        loaded_, folder_, fmt::format("{} {} --kv-representatives {}", kSome, options, where), n_ctx,
        n_sequences);
    plan_ = offloaded->plan;
    return loaded_.NewPass({.n_sequences = n_sequences, .n_ctx = n_ctx, .offloaded = std::move(offloaded)});
  }
  size_t n_vocab() const { return loaded_.model->config.n_vocab; }

  // What both say, which `say` appends.
  template <typename Say>
  void ExpectSame(const std::string& options, uint32_t n_ctx, uint32_t n_sequences, const Say& say) {
    const auto in_memory = NewPass(options, "memory", n_ctx, n_sequences);
    const KvPlan without = plan_;
    const auto on_flash = NewPass(options, "flash", n_ctx, n_sequences);
    EXPECT_EQ(plan_.choice.n_chosen, without.choice.n_chosen);
    const std::vector<float> expected = say(*in_memory);
    const std::vector<float> found = say(*on_flash);
    ASSERT_EQ(expected.size(), found.size()) << options;
    EXPECT_TRUE(expected == found) << options << ": other results";
    const KvReport report = *on_flash->kv_report();
    const KvReport before = *in_memory->kv_report();
    EXPECT_GT(report.store.reads, before.store.reads) << options;
    EXPECT_GT(report.store.writes, before.store.writes) << options;
    EXPECT_EQ(report.clusters->divisions, before.clusters->divisions);
    EXPECT_EQ(report.clusters->entries, before.clusters->entries);
  }

  KvPlan plan_;
  TemporaryFolder folder_;
  LoadedModel loaded_;
};

void Append(std::vector<float>* said, const std::vector<float>& logits) {
  said->insert(said->end(), logits.begin(), logits.end());
}

// More rows change than are kept in memory, and the nearest cluster often has no room.
TEST_F(DynaKvRows, ALongDecodeIsTheSame) {
  constexpr uint32_t kContext = 640;
  constexpr size_t kPrompt = 40;
  const std::vector<int> ids = SomeIds(kContext, 3, n_vocab());
  for (const char* options :
       {"--kv-cluster 16 --kv-pending 4", "--kv-cluster 4 --kv-split 0.5 --kv-pending 16 --kv-group 3",
        "--kv-cluster 2 --kv-cluster-max 2 --kv-pending 1 --kv-group 1",
        "--kv-cluster 8 --kv-update static --kv-reuse 3",
        "--kv-cluster 8 --kv-update local --kv-pending 24"}) {
    ExpectSame(options, kContext, 1, [&](ForwardPass& pass) {
      std::vector<float> said = Feed(pass, ids, 0, kPrompt, kPrompt);
      for (size_t i = kPrompt; i < ids.size(); ++i) Append(&said, Feed(pass, ids, i, i + 1, 1));
      return said;
    });
  }
}

// Prompts, answers, and what was said taken back, from anywhere; also all of it.
TEST_F(DynaKvRows, TruncatedAndContinuedItIsTheSame) {
  constexpr uint32_t kContext = 500;
  const std::vector<int> ids = SomeIds(kContext + 64, 5, n_vocab());
  for (const uint64_t seed : {1U, 2U, 3U}) {
    const std::string options =
        fmt::format("--kv-cluster {} --kv-pending 3 {}", 2 + 3 * seed, seed == 2 ? "--kv-reuse 7" : "");
    ExpectSame(options, kContext, 1, [&](ForwardPass& pass) {
      Random random(seed);
      std::vector<float> said;
      uint32_t length = 0;
      for (uint32_t turn = 0; turn < 40; ++turn) {
        if (length > 0 && random.Below(3) == 0) length -= random.Below(std::min(length, 120U) + 1);
        if (random.Below(12) == 0) length = 0;
        const uint32_t n = std::min(kContext - length, 1 + random.Below(random.Below(2) == 0 ? 12 : 150));
        if (n == 0) {
          length = random.Below(40);
          continue;
        }
        const std::vector<int> text(ids.begin() + static_cast<ptrdiff_t>(turn),
                                    ids.begin() + static_cast<ptrdiff_t>(turn + length + n));
        Append(&said, Feed(pass, text, length, length + n, random.Below(2) == 0 ? 1 : n));
        length += n;
      }
      return said;
    });
  }
}

// Sequences of different lengths, of which a step has some.
TEST_F(DynaKvRows, ABatchIsTheSame) {
  constexpr uint32_t kContext = 300;
  ExpectSame("--kv-cluster 4 --kv-pending 4", kContext, 4, [&](ForwardPass& pass) {
    std::vector<float> said;
    uint32_t positions[] = {100, 3, 57, 131};
    for (uint32_t s = 0; s < 4; ++s) {
      Append(&said, Feed(pass, SomeIds(kContext, s, n_vocab()), 0, positions[s], positions[s], s));
    }
    for (uint32_t step = 0; step < 150; ++step) {
      ForwardStep rows;
      std::vector<uint32_t> outputs;
      if (step == 70) positions[3] -= 60;
      for (uint32_t s = 0; s < 4; ++s) {
        if ((step + s) % 5 == 0 || (s == 2 && step > 20 && step < 60)) continue;
        const uint32_t at = positions[s]++;
        rows.Add(SpanKind::kDecode, {SomeIds(kContext, s + step / 70, n_vocab())[at], at, s});
        outputs.push_back(static_cast<uint32_t>(rows.size() - 1));
      }
      std::vector<float> logits(rows.size() * n_vocab());
      RunOrDie(pass.Run(rows, outputs, logits));
      Append(&said, logits);
      if (step != 40) continue;
      // A prompt of one, between the tokens of others.
      Append(&said, Feed(pass, SomeIds(kContext, 9, n_vocab()), positions[1], positions[1] + 70, 70, 1));
      positions[1] += 70;
    }
    return said;
  });
}

TEST_F(DynaKvRows, APromptThatIsGivenUpLeavesWhatWasThere) {
  constexpr uint32_t kContext = 300;
  const std::vector<int> ids = SomeIds(kContext, 9, n_vocab());
  ExpectSame("--kv-cluster 8", kContext, 1, [&](ForwardPass& pass) {
    std::vector<float> said = Feed(pass, ids, 0, 90, 90);
    Append(&said, Feed(pass, ids, 90, 120, 1));
    pass.SetProgress([](uint64_t done, uint64_t /*total*/) { return done < 300; });
    ForwardStep rows;
    for (uint32_t i = 120; i < 220; ++i) rows.Add(SpanKind::kPrompt, {ids[i], i, 0});
    EXPECT_FALSE(pass.Run(rows, {}, {}).ok());
    pass.SetProgress(nullptr);
    Append(&said, Feed(pass, ids, 120, 180, 1));
    Append(&said, Feed(pass, ids, 180, 250, 70));
    Append(&said, Feed(pass, ids, 250, 300, 1));
    return said;
  });
}

// What the device holds is what the plan says, and less by rows of all but three layers.
TEST_F(DynaKvRows, MemoryIsWhatThePlanSays) {
  constexpr uint32_t kContext = 1000;
  const auto kv_bytes = [&] { return KvBytesInUse(loaded_); };
  const auto held = [&](const char* where) {
    const uint64_t before = kv_bytes();
    const auto pass = NewPass("--kv-cluster 4", where, kContext);
    Feed(*pass, SomeIds(60, 1, n_vocab()), 0, 60, 50);
    const uint64_t bytes = kv_bytes() - before;
    EXPECT_LE(bytes, std::max(plan_.decode_bytes(), plan_.prefill_bytes())) << where;
    return bytes;
  };
  const uint64_t in_memory = held("memory");
  const uint64_t decode_in_memory = plan_.decode_bytes();
  const uint64_t on_flash = held("flash");
  // A device may round buffers up.
  EXPECT_GE(in_memory - on_flash, (kLayers - 3) * plan_.index.size_bytes());
  EXPECT_LT(plan_.decode_bytes(), decode_in_memory);
}

}  // namespace
}  // namespace kvrun::testing
