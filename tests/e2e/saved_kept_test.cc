// Passes of methods that evict, saved to a file at any moment: others that load it say bit for bit what the
// pass says that was saved, and that says what it would have said without.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/session/session_kv.h"
#include "runtime/kv/plan/kv_method.h"
#include "runtime/store/state_file.h"
#include "runtime/store/state_visitor.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/small_models.h"

namespace kvrun::testing {
namespace {

namespace saved_kept {

constexpr uint32_t kContext = 448;
constexpr uint32_t kSequences = 2;
constexpr uint32_t kWindow = 6;
constexpr const char* kFew = "--kv-select 24 ";

// As evicting_state.cc numbers items of StatePart::kKept.
enum Item : uint16_t {
  kSequenceValues = 0,
  kSeen = 1,
  kListEntries = 4,
  kOriginalShares = 5,
  kQuotas = 6,
  kWindowMass = 7,
  kPositions = 9,
  kNumLow = 10,
  kMass = 11,
  kRecords = 13,
};

// Steps, and where among them the pass is saved.
struct History {
  std::vector<ForwardStep> steps;
  struct Moment {
    size_t before_step = 0;
    std::vector<uint32_t> lengths;
    std::string name;
  };
  std::vector<Moment> moments;
  std::vector<uint32_t> lengths = std::vector<uint32_t>(kSequences);
};

using Bytes = std::vector<std::byte>;
using Logits = std::vector<std::vector<float>>;  // of each step

class SavedKept : public ::testing::TestWithParam<KvMethod> {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    loaded_ = LoadSmallModel({"SelfMade", ""}, folder_);
    ids_ = SomeIds(kContext, 5, n_vocab());
    path_ = folder_.Path("state");
  }
  size_t n_vocab() const { return loaded_.model->config.n_vocab; }

  std::unique_ptr<ForwardPass> New(const std::string& options, uint32_t n_ctx = kContext) {
    auto offloaded = OffloadedOptionsOrDie(
        loaded_, folder_, fmt::format("--kv-method {} --kv-window {} {}", GetParam().name, kWindow, options),
        n_ctx, kSequences);
    return loaded_.NewPass({.n_sequences = kSequences, .n_ctx = n_ctx, .offloaded = std::move(offloaded)});
  }

  // --- Histories. A sequence's tokens follow from its positions.
  int IdOf(uint32_t sequence, uint32_t position) const {
    return ids_[(position + 101 * size_t{sequence}) % ids_.size()];
  }
  void AddPrompt(History& history, uint32_t sequence, uint32_t n) const {
    ForwardStep step;
    for (uint32_t i = 0; i < n; ++i) step.Add(SpanKind::kPrompt, {IdOf(sequence, i), i, sequence});
    history.steps.push_back(std::move(step));
    history.lengths[sequence] = n;
  }
  void AddTokens(History& history, std::vector<uint32_t> sequences, uint32_t n) const {
    for (uint32_t i = 0; i < n; ++i) {
      ForwardStep step;
      for (const uint32_t sequence : sequences) {
        const uint32_t position = history.lengths[sequence]++;
        step.Add(SpanKind::kDecode, {IdOf(sequence, position), position, sequence});
      }
      history.steps.push_back(std::move(step));
    }
  }
  static void AddMoment(History& history, std::string name) {
    history.moments.push_back({history.steps.size(), history.lengths, std::move(name)});
  }

  std::vector<float> Say(ForwardPass& pass, const ForwardStep& step) const {
    std::vector<uint32_t> outputs;
    for (uint32_t row = 0; row < step.size(); ++row) {
      const bool is_last =
          row + 1 == step.size() || step.rows()[row + 1].sequence != step.rows()[row].sequence;
      if (is_last) outputs.push_back(row);
    }
    std::vector<float> logits(outputs.size() * n_vocab());
    const Status status = pass.Run(step, outputs, logits);
    if (!status.ok()) ADD_FAILURE() << status.message();
    return logits;
  }
  Logits SayAll(ForwardPass& pass, const History& history) const {
    Logits said;
    for (const ForwardStep& step : history.steps) said.push_back(Say(pass, step));
    return said;
  }
  void ExpectSaid(const Logits& expected, ForwardPass& pass, const History& history, size_t from) const {
    for (size_t i = from; i < history.steps.size(); ++i) {
      ASSERT_EQ(Say(pass, history.steps[i]), expected[i]) << "step " << i << ", from " << from;
    }
  }

  // --- States.
  static void Save(StateFile& file, ForwardPass& pass, std::span<const uint32_t> lengths) {
    RunOrDie(file.BeginSave());
    StateSaver saver(file);
    RunOrDie(pass.VisitState(saver, lengths));
    RunOrDie(file.Commit());
  }
  static Status Load(const StateFile& file, ForwardPass& pass, std::span<const uint32_t> lengths) {
    StateLoader loader(file);
    return pass.VisitState(loader, lengths);
  }

  // All moments of one history: the pass that is saved, and those that load it, say what one says that was
  // never saved.
  void ExpectSame(const std::string& options, const History& history, uint32_t loaded_ctx = kContext) {
    SCOPED_TRACE(options);
    const Logits expected = SayAll(*New(options), history);
    const auto pass = New(options);
    size_t done = 0;
    for (const History::Moment& moment : history.moments) {
      SCOPED_TRACE(moment.name);
      for (; done < moment.before_step; ++done) {
        ASSERT_EQ(Say(*pass, history.steps[done]), expected[done]) << "step " << done;
      }
      const auto file = OrDie(StateFile::Create(path_));
      Save(*file, *pass, moment.lengths);
      const auto loaded = New(options, loaded_ctx);
      RunOrDie(Load(*file, *loaded, moment.lengths));
      // What was loaded may be saved at once, and that is the same.
      const uint64_t written_bytes = file->counters().written_bytes;
      Save(*file, *loaded, moment.lengths);
      EXPECT_EQ(file->counters().written_bytes, written_bytes);
      ExpectSaid(expected, *loaded, history, moment.before_step);
      EXPECT_GT(loaded->kv_report()->kept->evicted, 0U);
    }
    ExpectSaid(expected, *pass, history, done);
  }

  // A state whose items are others than those that were saved.
  using ChangeFn = std::function<void(const StateKey&, Bytes*)>;
  std::unique_ptr<StateFile> Changed(const StateFile& from, const ChangeFn& change) const {
    auto to = OrDie(StateFile::Create(folder_.Path("changed")));
    RunOrDie(to->BeginSave());
    from.ForEach([&](const StateKey& key, uint64_t size_bytes) {
      Bytes bytes(size_bytes);
      RunOrDie(from.Read(key, 0, bytes));
      change(key, &bytes);
      RunOrDie(to->Put(key, bytes));
    });
    RunOrDie(to->Commit());
    return to;
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
  std::vector<int> ids_;
  std::string path_;
};

std::vector<KvMethod> MethodsThatKeep() {
  std::vector<KvMethod> methods;
  for (const KvMethod& method : KvMethods()) {
    if (method.store == KvStoreKind::kKept) methods.push_back(method);
  }
  return methods;
}

INSTANTIATE_TEST_SUITE_P(All, SavedKept, ::testing::ValuesIn(MethodsThatKeep()), MethodTestName);

std::vector<std::string> OptionsOf(const KvMethod& method) {
  std::vector<std::string> options = {"", "--kv-type int8 --kv-shares layers",
                                      "--kv-type int4 --kv-shares heads"};
  if (!method.goes_by_score()) return options;
  for (const char* more : {"--kv-precisions entries --kv-shares heads", "--kv-precisions original",
                           "--kv-precisions quantised", "--kv-moments rows --kv-shares layers"}) {
    options.emplace_back(more);
  }
  return options;
}

TEST_P(SavedKept, ItGoesOnAsIfItHadNotEnded) {
  History history;
  AddPrompt(history, 0, 120);
  AddMoment(history, "after a prompt");
  AddTokens(history, {0}, 30);
  AddMoment(history, "within generation");
  AddPrompt(history, 1, 60);
  AddMoment(history, "after the prompt of another");
  AddTokens(history, {0, 1}, 25);
  AddMoment(history, "of both");
  history.lengths[0] -= 4;
  AddMoment(history, "a truncated one");
  AddTokens(history, {0, 1}, 2);
  AddMoment(history, "that has gone on");
  AddTokens(history, {0, 1}, 150);
  for (const std::string& options : OptionsOf(GetParam())) ExpectSame(kFew + options, history);
  // Of another context.
  history.moments.resize(2);
  ExpectSame(kFew, history, kContext + 300);
}

// Its lists were made for what its prompt had said, which it has forgotten since; they are made anew after
// another prompt.
TEST_P(SavedKept, OneThatHasBegunAnewKeepsItsQuotas) {
  History history;
  AddPrompt(history, 0, 120);
  AddTokens(history, {0}, 3);
  history.lengths[0] = 0;
  AddTokens(history, {0}, 70);
  AddMoment(history, "begun anew");
  const size_t n_first = history.steps.size();
  AddTokens(history, {0}, 150);
  const std::string options = kFew + std::string("--kv-shares layers");
  ExpectSame(options, history);
  history.steps.resize(n_first);
  history.lengths[0] = 70;
  AddPrompt(history, 1, 50);
  AddMoment(history, "aside");
  AddTokens(history, {0, 1}, 60);
  ExpectSame(options, history);
}

// Records of a list that are more than a chunk, aside and on the device.
TEST_P(SavedKept, ListsOfManyPieces) {
  constexpr uint32_t kLong = 1400;
  History history;
  AddPrompt(history, 0, 1200);
  AddTokens(history, {0}, 20);
  const auto pass = New("--kv-type f32", kLong);
  const auto file = OrDie(StateFile::Create(path_));
  for (const size_t n_done : {1U, 11U}) {
    for (size_t i = n_done == 1 ? 0 : 1; i < n_done; ++i) Say(*pass, history.steps[i]);
    const std::vector<uint32_t> lengths = {static_cast<uint32_t>(1199 + n_done), 0};
    Save(*file, *pass, lengths);
    ASSERT_GT(file->SizeOf({StatePart::kKept, kRecords, 0, 0}).value_or(0), kStateChunkBytes);
    const auto loaded = New("--kv-type f32", kLong);
    RunOrDie(Load(*file, *loaded, lengths));
    ExpectSaid(SayAll(*New("--kv-type f32", kLong), history), *loaded, history, n_done);
  }
}

// To the window where some was evicted, else to any length.
TEST_P(SavedKept, ItGoesBackAsFarAsBefore) {
  for (const std::string options : {kFew, ""}) {
    SCOPED_TRACE(options);
    History history;
    AddPrompt(history, 0, 120);
    AddTokens(history, {0}, 20);
    const size_t n_first = history.steps.size();
    history.lengths[0] = 100;
    AddTokens(history, {0}, 150);
    const auto pass = New(options);
    for (size_t i = 0; i < n_first; ++i) Say(*pass, history.steps[i]);
    const auto file = OrDie(StateFile::Create(path_));
    const std::vector<uint32_t> lengths = {140, 0};
    Save(*file, *pass, lengths);
    const auto loaded = New(options);
    RunOrDie(Load(*file, *loaded, lengths));
    for (size_t i = n_first; i < history.steps.size(); ++i) {
      if (options != kFew) {
        ASSERT_EQ(Say(*loaded, history.steps[i]), Say(*pass, history.steps[i])) << "step " << i;
        continue;
      }
      EXPECT_EQ(pass->Run(history.steps[i], {}, {}).code(), StatusCode::kUnsupported);
      EXPECT_EQ(loaded->Run(history.steps[i], {}, {}).code(), StatusCode::kUnsupported);
      break;
    }
  }
}

// What a prompt has put aside that was given up is nobody's.
TEST_P(SavedKept, AfterAPromptThatWasGivenUp) {
  History history;
  AddPrompt(history, 0, 120);
  AddTokens(history, {0}, 20);
  const size_t n_first = history.steps.size();
  AddTokens(history, {0}, 40);
  AddPrompt(history, 1, 60);
  AddTokens(history, {0, 1}, 60);
  const Logits expected = SayAll(*New(kFew), history);
  const auto pass = New(kFew);
  for (size_t i = 0; i < n_first; ++i) Say(*pass, history.steps[i]);
  pass->SetProgress([asked = 0](uint64_t, uint64_t) mutable { return ++asked > 1; });
  ForwardStep prompt;
  for (uint32_t i = 0; i < 100; ++i) prompt.Add(SpanKind::kPrompt, {IdOf(0, i), i, 1});
  ASSERT_EQ(pass->Run(prompt, {}, {}).code(), StatusCode::kCancelled);
  pass->SetProgress({});
  const auto file = OrDie(StateFile::Create(path_));
  const std::vector<uint32_t> lengths = {140, 0};
  Save(*file, *pass, lengths);
  const auto loaded = New(kFew);
  RunOrDie(Load(*file, *loaded, lengths));
  ExpectSaid(expected, *pass, history, n_first);
  ExpectSaid(expected, *loaded, history, n_first);
}

// A save writes what has changed; counting adds up what a save holds.
TEST_P(SavedKept, ASaveWritesWhatChanged) {
  History history;
  AddPrompt(history, 0, 120);
  AddTokens(history, {0}, 20);
  const auto pass = New(kFew);
  const auto file = OrDie(StateFile::Create(path_));
  Say(*pass, history.steps[0]);
  for (const uint32_t n : {120U, 140U}) {
    for (uint32_t i = 120; i < n; ++i) Say(*pass, history.steps[i - 119]);
    const std::vector<uint32_t> lengths = {n, 0};
    Save(*file, *pass, lengths);
    const uint64_t written_bytes = file->counters().written_bytes;
    Save(*file, *pass, lengths);
    EXPECT_EQ(file->counters().written_bytes, written_bytes);
    StateCounter counter;
    RunOrDie(pass->VisitState(counter, lengths));
    uint64_t saved_bytes = 0;
    file->ForEach([&](const StateKey&, uint64_t size_bytes) { saved_bytes += size_bytes; });
    EXPECT_EQ(counter.size_bytes(), saved_bytes);
  }
}

// With room for everything it may go on in a longer context, but not where there is less room than it needs.
TEST_P(SavedKept, ItAsksForAsMuchRoomAsItNeeds) {
  History history;
  AddPrompt(history, 0, 120);
  AddTokens(history, {0}, 20);
  const size_t n_first = history.steps.size();
  AddTokens(history, {0}, 60);
  const auto pass = New("", 256);
  for (size_t i = 0; i < n_first; ++i) Say(*pass, history.steps[i]);
  const auto file = OrDie(StateFile::Create(path_));
  const std::vector<uint32_t> lengths = {140, 0};
  Save(*file, *pass, lengths);
  const auto loaded = New("");
  RunOrDie(Load(*file, *loaded, lengths));
  const Logits expected = SayAll(*New(""), history);
  ExpectSaid(expected, *pass, history, n_first);
  ExpectSaid(expected, *loaded, history, n_first);
  EXPECT_EQ(loaded->kv_report()->kept->evicted, 0U);
  const auto with_little = New(kFew);
  const Status refused = Load(*file, *with_little, lengths);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument) << refused.message();
  EXPECT_NE(refused.message().find("--kv-select"), std::string::npos) << refused.message();
}

template <typename T>
void Put(Bytes* bytes, size_t i, T value) {
  if ((i + 1) * sizeof(T) <= bytes->size()) std::memcpy(bytes->data() + i * sizeof(T), &value, sizeof(T));
}

struct Damage {
  Item item;
  std::string name;
  std::function<void(Bytes*)> change;
};

// Of lists of 24 entries, of 140 of which 134 have left the window.
std::vector<Damage> Damages() {
  constexpr uint32_t kHuge = 1U << 30;
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  return {
      {kPositions, "beyond the length", [](Bytes* b) { Put<uint32_t>(b, 2, 141); }},
      {kPositions, "in the window", [](Bytes* b) { Put<uint32_t>(b, 2, 139); }},
      {kPositions, "twice", [](Bytes* b) { std::memcpy(b->data(), b->data() + 4, 4); }},
      {kPositions, "more than a quota",
       [](Bytes* b) {
         b->resize(400);
         for (uint32_t i = 0; i < 100; ++i) Put(b, i, i);
       }},
      {kPositions, "half a number", [](Bytes* b) { b->pop_back(); }},
      {kNumLow, "more than entries", [](Bytes* b) { Put(b, 0, kHuge); }},
      {kNumLow, "others", [](Bytes* b) { (*b)[0] ^= std::byte{1}; }},
      {kMass, "too few", [](Bytes* b) { b->resize(b->size() - 4); }},
      {kRecords, "too few", [](Bytes* b) { b->resize(b->size() - 4); }},
      {kSequenceValues, "beyond the context", [](Bytes* b) { Put<uint64_t>(b, 0, kContext + 1); }},
      {kSequenceValues, "a length of 64 bits", [](Bytes* b) { Put<uint64_t>(b, 0, uint64_t{1} << 63); }},
      {kSequenceValues, "settled behind the end", [](Bytes* b) { Put<uint64_t>(b, 1, 141); }},
      {kSequenceValues, "settled long ago", [](Bytes* b) { Put<uint64_t>(b, 1, 100); }},
      {kSequenceValues, "a prompt behind the end", [](Bytes* b) { Put<uint64_t>(b, 2, 141); }},
      {kSequenceValues, "not all", [](Bytes* b) { b->resize(b->size() - 8); }},
      {kListEntries, "huge", [](Bytes* b) { Put(b, 0, kHuge); }},
      {kListEntries, "all of them more",
       [](Bytes* b) {
         for (size_t i = 0; i < 99; ++i) Put(b, i, 25U);
       }},
      {kOriginalShares, "no number", [](Bytes* b) { Put(b, 0, kNan); }},
      {kOriginalShares, "more than all", [](Bytes* b) { Put(b, 0, 1.5); }},
      {kQuotas, "none at all", [](Bytes* b) { Put(b, 0, uint64_t{0}); }},
      {kQuotas, "huge", [](Bytes* b) { Put(b, 0, kHuge); }},
      {kQuotas, "of the other tier", [](Bytes* b) { Put(b, 1, kHuge); }},
      {kQuotas, "less than entries", [](Bytes* b) { Put(b, 0, 1U); }},
      {kQuotas, "not all", [](Bytes* b) { b->resize(b->size() - 4); }},
      {kSeen, "of no sequence", [](Bytes* b) { Put(b, 0, kSequences); }},
      {kSeen, "half of one", [](Bytes* b) { b->resize(4); }},
  };
}

// Within generation, so that lists have quotas. An item and what is done to it.
TEST_P(SavedKept, WhatContradictsItselfIsRefused) {
  History history;
  AddPrompt(history, 0, 120);
  AddTokens(history, {0}, 20);
  AddTokens(history, {0}, 12);
  const auto pass = New(kFew);
  for (size_t i = 0; i < 21; ++i) Say(*pass, history.steps[i]);
  const auto file = OrDie(StateFile::Create(path_));
  const std::vector<uint32_t> lengths = {140, 0};
  Save(*file, *pass, lengths);
  const auto load_changed = [&](Item item, const std::function<void(Bytes*)>& change) {
    bool is_changed = false;
    const auto changed = Changed(*file, [&](const StateKey& key, Bytes* bytes) {
      if (is_changed || key.part != StatePart::kKept || key.item != item || bytes->empty()) return;
      const Bytes before = *bytes;
      change(bytes);
      is_changed = *bytes != before;
    });
    const auto to = New(kFew);
    const Status status = is_changed ? Load(*changed, *to, lengths) : Status(StatusCode::kNotFound, "");
    if (status.ok()) {
      for (size_t i = 21; i < history.steps.size(); ++i) Say(*to, history.steps[i]);
    }
    return status;
  };
  for (const Damage& damage : Damages()) {
    const Status status = load_changed(damage.item, damage.change);
    // Not all methods have these.
    if (status.code() == StatusCode::kNotFound && (damage.item == kSeen || damage.item == kMass)) continue;
    EXPECT_EQ(status.code(), StatusCode::kCorrupt)
        << damage.item << " " << damage.name << " " << status.message();
  }
  for (const Item item : {kMass, kWindowMass, kRecords}) {
    const Status status =
        load_changed(item, [](Bytes* b) { std::fill(b->begin(), b->end(), std::byte{0xFF}); });
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kNotFound) << item << " " << status.message();
  }
}

// Whatever an item says: it is refused, or goes on without an end of the program.
TEST_P(SavedKept, AnyItemMayBeAnything) {
  History history;
  AddPrompt(history, 0, 90);
  AddTokens(history, {0}, 3);
  AddTokens(history, {0}, 40);
  const auto pass = New(kFew);
  for (size_t i = 0; i < 4; ++i) Say(*pass, history.steps[i]);
  const auto file = OrDie(StateFile::Create(path_));
  const std::vector<uint32_t> lengths = {93, 0};
  Save(*file, *pass, lengths);
  std::vector<StateKey> keys;
  file->ForEach([&](const StateKey& key, uint64_t) {
    if (key.part == StatePart::kKept && key.layer == 0 && key.stream == 0) keys.push_back(key);
  });
  EXPECT_GT(keys.size(), 8U);
  for (const StateKey& key : keys) {
    for (const int value : {0x00, 0x7F, 0xFF}) {
      const auto changed = Changed(*file, [&](const StateKey& of, Bytes* bytes) {
        if (of == key) std::fill(bytes->begin(), bytes->end(), static_cast<std::byte>(value));
      });
      const auto to = New(kFew);
      const Status status = Load(*changed, *to, lengths);
      if (!status.ok()) {
        EXPECT_EQ(status.code(), StatusCode::kCorrupt) << key.item << " " << status.message();
        continue;
      }
      for (size_t i = 4; i < history.steps.size(); ++i) Say(*to, history.steps[i]);
    }
  }
}

}  // namespace saved_kept
}  // namespace
}  // namespace kvrun::testing
