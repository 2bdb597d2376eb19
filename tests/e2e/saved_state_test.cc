// Passes and sessions that are saved to a file, and go on in others: bit for bit, and nothing is computed
// again. All KV in memory so far.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/forward/create_forward_pass.h"
#include "runtime/engine/session/session.h"
#include "runtime/store/state_file.h"
#include "runtime/store/state_visitor.h"
#include "tests/support/architecture_fixture.h"
#include "tests/support/generated_ids.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/small_models.h"

namespace kvrun::testing {
namespace {

namespace saved_state {

// Two sequences, of which the first has more tokens and has been cut.
class SavedState : public ArchitectureFixture {
 protected:
  static constexpr uint32_t kSequences = 2;
  static constexpr uint32_t kCopies = 4;

  void SetUp() override {
    ArchitectureFixture::SetUp();
    if (IsSkipped()) return;
    ids_ = SomeIds(kRoom, 9, static_cast<uint32_t>(n_vocab_));
    path_ = folder_.Path("state");
  }

  std::unique_ptr<ForwardPass> New(KvType type) const {
    const ForwardPassOptions options{
        .n_sequences = kSequences, .n_ctx = kRoom, .kv_type = type, .n_state_copies = kCopies};
    return OrDie(CreateForwardPass(*loaded_.model, loaded_.weights, *loaded_.device, options));
  }
  void Save(StateFile& file, ForwardPass& pass, std::vector<uint32_t> lengths) const {
    RunOrDie(file.BeginSave());
    StateSaver saver(file);
    RunOrDie(pass.VisitState(saver, lengths));
    RunOrDie(file.Commit());
  }
  std::unique_ptr<ForwardPass> Load(KvType type, std::vector<uint32_t> lengths) const {
    const auto file = OrDie(StateFile::Open(path_, /*read_only=*/true));
    auto pass = New(type);
    StateLoader loader(*file);
    RunOrDie(pass->VisitState(loader, lengths));
    return pass;
  }
  // What both say to the same tokens, and what that costs.
  void ExpectSame(ForwardPass& kept, ForwardPass& loaded, size_t begin, size_t n, uint32_t sequence) const {
    const uint64_t before[] = {kept.recomputed_tokens(), loaded.recomputed_tokens()};
    for (size_t at = begin; at < begin + n; ++at) {
      EXPECT_EQ(RunSpan(kept, SpanKind::kDecode, at, at + 1, sequence),
                RunSpan(loaded, SpanKind::kDecode, at, at + 1, sequence))
          << "sequence " << sequence << ", token " << at;
    }
    EXPECT_EQ(kept.recomputed_tokens() - before[0], loaded.recomputed_tokens() - before[1]);
  }

  TemporaryFolder folder_;
  std::string path_;
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SavedState);

TEST_P(SavedState, GoesOnAsIfItHadNotEnded) {
  for (const KvType type : {KvType::kF16, KvType::kF32}) {
    const auto pass = New(type);
    const auto file = OrDie(StateFile::Create(path_));
    RunSpan(*pass, SpanKind::kPrompt, 0, 200, 0);
    RunSpan(*pass, SpanKind::kPrompt, 0, 70, 1);
    Save(*file, *pass, {200, 70});
    {
      SCOPED_TRACE("after the prompts");
      const auto loaded = Load(type, {200, 70});
      ExpectSame(*pass, *loaded, 200, 12, 0);
      ExpectSame(*pass, *loaded, 70, 3, 1);
      EXPECT_EQ(loaded->recomputed_tokens(), 0U);
    }
    Save(*file, *pass, {212, 73});
    {
      SCOPED_TRACE("within generation");
      const auto loaded = Load(type, {212, 73});
      ExpectSame(*pass, *loaded, 212, 4, 0);
      EXPECT_EQ(loaded->recomputed_tokens(), 0U);
    }
    pass->Cut(0, 150);
    Save(*file, *pass, {150, 73});
    {
      SCOPED_TRACE("after a cut");
      const auto loaded = Load(type, {150, 73});
      ExpectSame(*pass, *loaded, 150, 6, 0);
      ExpectSame(*pass, *loaded, 73, 2, 1);
    }
  }
}

// A save after a few tokens writes what these have changed.
TEST_P(SavedState, ASaveWritesWhatChanged) {
  const auto pass = New(KvType::kF16);
  const auto file = OrDie(StateFile::Create(path_));
  RunSpan(*pass, SpanKind::kPrompt, 0, 400, 0);
  Save(*file, *pass, {400, 0});
  const uint64_t before = file->counters().written_bytes;
  Save(*file, *pass, {400, 0});
  EXPECT_EQ(file->counters().written_bytes, before);
  StateCounter all;
  RunOrDie(pass->VisitState(all, std::vector<uint32_t>{400, 0}));
  EXPECT_GE(before, all.size_bytes());
}

// Sequences and their pending tokens and logits, through the session.
TEST_P(SavedState, ASessionGoesOnInAnother) {
  std::mutex mutex;
  const auto session = [&](uint32_t n_ctx) {
    Session::Parts parts;
    parts.forward_pass = New(KvType::kF16);
    parts.device_mutex = &mutex;
    parts.n_sequences = kSequences;
    parts.n_ctx = n_ctx;
    return OrDie(Session::Create(std::move(parts)));
  };
  const auto generate = [](Session& of, uint32_t sequence, uint32_t n) {
    return GeneratedIds(of, n, /*temperature=*/1.0F, /*seed=*/4, sequence);
  };
  const auto kept = session(kRoom);
  RunOrDie(kept->Feed(0, std::span<const TokenId>(ids_).first(90)));
  RunOrDie(kept->Feed(1, std::span<const TokenId>(ids_).first(20)));
  generate(*kept, 1, 5);
  const auto file = OrDie(StateFile::Create(path_));
  RunOrDie(file->BeginSave());
  StateSaver saver(*file);
  RunOrDie(kept->VisitState(saver));
  RunOrDie(file->Commit());

  const auto loaded = session(kRoom);
  StateLoader loader(*file);
  RunOrDie(loaded->VisitState(loader));
  for (const uint32_t sequence : {0U, 1U}) {
    EXPECT_EQ(loaded->Length(sequence), kept->Length(sequence));
    EXPECT_EQ(generate(*loaded, sequence, 20), generate(*kept, sequence, 20));
  }
  EXPECT_EQ(loaded->stats().recomputed_tokens, 0U);

  // Of another length, it is refused.
  const auto other = session(60);
  StateLoader again(*file);
  EXPECT_EQ(other->VisitState(again).code(), StatusCode::kCorrupt);
}

INSTANTIATE_TEST_SUITE_P(Shared, SavedState, ::testing::ValuesIn(ArchitectureCases()), ArchitectureName);

}  // namespace saved_state
}  // namespace
}  // namespace kvrun::testing
