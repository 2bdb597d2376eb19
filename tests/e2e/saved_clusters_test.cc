// Methods with clusters: a pass that is saved goes on in another one over a copy of its files, bit for bit,
// and the one that was saved says what one says that never was.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "platform/base/random.h"
#include "runtime/engine/session/session_kv.h"
#include "runtime/kv/serve/kv_stores.h"
#include "runtime/store/state_file.h"
#include "runtime/store/state_visitor.h"
#include "tests/storage/state_file_fixture.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/seeds.h"
#include "tests/support/shared_memory_file.h"
#include "tests/support/small_models.h"

namespace kvrun::testing {
namespace {

namespace saved_clusters {

constexpr uint32_t kLayers = 4;  // the ring of rows on flash has three
constexpr uint32_t kContext = 480;
constexpr uint32_t kSequences = 2;

struct SavedCase {
  const char* name;
  const char* options;
  uint32_t alignment_bytes = 4096;
  uint32_t window = 6;
};
void PrintTo(const SavedCase& of, std::ostream* out) { *out << of.name; }

enum class Turn : uint8_t { kPrompt, kGivenUp, kTokens, kTogether, kCut, kSave };
struct Said {
  Turn turn;
  uint32_t sequence = 0;
  uint32_t n = 0;  // kCut: entries that are left
};

// Prompts and tokens; a save within each kind of moment.
const std::vector<Said>& Script() {
  static const std::vector<Said> script = {
      {Turn::kPrompt, 0, 60},
      {Turn::kPrompt, 1, 35},
      {Turn::kSave},
      {Turn::kTogether, 0, 25},
      {Turn::kTokens, 0, 22},
      {Turn::kGivenUp, 0, 50},
      {Turn::kSave},
      {Turn::kTokens, 1, 9},
      {Turn::kTokens, 0, 5},
      {Turn::kCut, 0, 108},
      {Turn::kSave},
      {Turn::kTokens, 0, 12},
      {Turn::kCut, 1, 33},
      {Turn::kTokens, 1, 20},
      {Turn::kPrompt, 0, 70},
      {Turn::kSave},
      {Turn::kTokens, 0, 15},
      {Turn::kPrompt, 1, 30},
      {Turn::kTogether, 0, 80},
      {Turn::kTokens, 0, 160},
  };
  return script;
}

struct Files {
  SharedBytes records = std::make_shared<std::vector<std::byte>>();
  SharedBytes rows = std::make_shared<std::vector<std::byte>>();

  Files Copy() const {
    return {std::make_shared<std::vector<std::byte>>(*records),
            std::make_shared<std::vector<std::byte>>(*rows)};
  }
};

class SavedClusters : public ::testing::TestWithParam<SavedCase> {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    loaded_ = LoadDeepModel(kLayers, folder_);
    ids_ = SomeIds(kContext, 4, loaded_.model->config.n_vocab);
  }

  std::unique_ptr<ForwardPass> NewPass(const Files& files) {
    const std::string options = fmt::format("--kv-method dynakv --kv-window {} --kv-sinks 2 {}",
                                            GetParam().window, GetParam().options);
    auto offloaded = OffloadedOptionsOrDie(loaded_, folder_, options, kContext, kSequences);
    const uint32_t alignment = GetParam().alignment_bytes;
    const bool has_rows = offloaded->plan.of_clusters().rows_on_flash;
    offloaded->stores = OrDie(
        MakeKvStores(offloaded->plan, kLayers, std::make_unique<SharedMemoryFile>(files.records, alignment),
                     has_rows ? std::make_unique<SharedMemoryFile>(files.rows, alignment) : nullptr));
    return loaded_.NewPass({.n_sequences = kSequences, .n_ctx = kContext, .offloaded = std::move(offloaded)});
  }

  struct Player {
    std::unique_ptr<ForwardPass> pass;
    std::vector<uint32_t> lengths = std::vector<uint32_t>(kSequences);
    std::map<size_t, std::vector<float>> logits = {};  // of the script's turns, all that was said
  };

  // A row for each of these sequences.
  void Step(Player& player, size_t turn, std::vector<uint32_t> sequences) {
    ForwardStep rows;
    std::vector<uint32_t> outputs;
    for (const uint32_t sequence : sequences) {
      const uint32_t at = player.lengths[sequence]++;
      rows.Add(SpanKind::kDecode, {ids_[(at + 37 * sequence) % ids_.size()], at, sequence});
      outputs.push_back(static_cast<uint32_t>(outputs.size()));
    }
    Run(player, turn, rows, outputs);
  }
  void Run(Player& player, size_t turn, const ForwardStep& rows, const std::vector<uint32_t>& outputs) {
    std::vector<float> logits(outputs.size() * player.pass->n_vocab());
    RunOrDie(player.pass->Run(rows, outputs, logits));
    std::vector<float>& said = player.logits[turn];
    said.insert(said.end(), logits.begin(), logits.end());
  }
  ForwardStep Prompt(const Player& player, const Said& said) const {
    ForwardStep rows;
    const uint32_t begin = player.lengths[said.sequence];
    for (uint32_t at = begin; at < begin + said.n; ++at) {
      rows.Add(SpanKind::kPrompt, {ids_[(at + 11 * said.sequence) % ids_.size()], at, said.sequence});
    }
    return rows;
  }

  void Play(Player& player, size_t turn) {
    const Said& said = Script()[turn];
    switch (said.turn) {
      case Turn::kPrompt:
        Run(player, turn, Prompt(player, said), {said.n - 1});
        player.lengths[said.sequence] += said.n;
        return;
      case Turn::kGivenUp:
        player.pass->SetProgress([n = 0](uint64_t, uint64_t) mutable { return ++n > 3; });
        EXPECT_EQ(player.pass->Run(Prompt(player, said), {}, {}).code(), StatusCode::kCancelled);
        player.pass->SetProgress(nullptr);
        return;
      case Turn::kTokens:
        for (uint32_t i = 0; i < said.n; ++i) Step(player, turn, {said.sequence});
        return;
      case Turn::kTogether:
        for (uint32_t i = 0; i < said.n; ++i) Step(player, turn, {0, 1});
        return;
      case Turn::kCut:
        EXPECT_LT(said.n, player.lengths[said.sequence]);
        player.lengths[said.sequence] = said.n;
        return;
      case Turn::kSave: return;
    }
  }

  // The same bytes again write nothing.
  void Save(StateFile& file, const Player& player) {
    RunOrDie(file.BeginSave());
    StateSaver saver(file);
    RunOrDie(player.pass->VisitState(saver, player.lengths));
    RunOrDie(file.Commit());
  }
  Player Load(const StateFile& file, const Player& of, const Files& files) {
    Player player{NewPass(files), of.lengths, {}};
    StateLoader loader(file);
    RunOrDie(player.pass->VisitState(loader, player.lengths));
    return player;
  }

  void ExpectSame(const Player& expected, const Player& found, const std::string& name) const {
    for (const auto& [turn, logits] : found.logits) {
      EXPECT_TRUE(logits == expected.logits.at(turn)) << name << ": other results in turn " << turn;
    }
  }

  // A bit, a word, or the size of one item; or it is gone.
  static StateModel Damaged(StateModel state, Random& random) {
    auto at = state.begin();
    std::advance(at, random.Below(static_cast<uint32_t>(state.size())));
    StateBytes& bytes = at->second;
    const uint32_t kind = random.Below(8);
    if (kind == 0) {
      state.erase(at);
    } else if (kind == 1 || bytes.size() < sizeof(uint32_t)) {
      bytes.resize(random.Below(static_cast<uint32_t>(bytes.size()) * 2 + 9), std::byte{1});
    } else if (kind == 2) {
      const uint32_t words[] = {0, 1, 2, 3, 40, UINT32_MAX, random.Below(kContext)};
      const uint32_t word = words[random.Below(std::size(words))];
      const uint32_t nth = random.Below(static_cast<uint32_t>(bytes.size() / sizeof(word)));
      std::memcpy(bytes.data() + nth * sizeof(word), &word, sizeof(word));
    } else {
      bytes[random.Below(static_cast<uint32_t>(bytes.size()))] ^= std::byte{1} << random.Below(8);
    }
    return state;
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
  std::vector<int> ids_;
};

TEST_P(SavedClusters, GoOnAsIfTheyHadNotEnded) {
  Player never{.pass = NewPass(Files())};
  Files files;
  Player kept{.pass = NewPass(files)};
  const auto file = OrDie(StateFile::Create(folder_.Path("state")));
  std::map<size_t, Player> loaded;  // since which turn
  for (size_t turn = 0; turn < Script().size(); ++turn) {
    Play(never, turn);
    Play(kept, turn);
    for (auto& [since, player] : loaded) Play(player, turn);
    if (Script()[turn].turn != Turn::kSave) continue;
    Save(*file, kept);
    const auto opened = OrDie(StateFile::Open(folder_.Path("state"), /*read_only=*/true));
    loaded.emplace(turn, Load(*opened, kept, files.Copy()));
    if (HasFailure()) return;
  }
  ExpectSame(never, kept, "the one that was saved");
  for (const auto& [since, player] : loaded) ExpectSame(kept, player, fmt::format("since turn {}", since));
  // There was something to keep.
  const ClusterReport report = *kept.pass->kv_report()->clusters;
  EXPECT_GT(report.clusters, 100U);
  EXPECT_GT(report.divisions, 0U);
  EXPECT_EQ(loaded.size(), 4U);
}

// Whatever a state says, it is an error, or it is taken, and what then runs may be an error.
TEST_P(SavedClusters, WhatIsDamagedDoesNoHarm) {
  const uint64_t n_rounds = SeedsHere(40).n;
  Files files;
  Player kept{.pass = NewPass(files)};
  for (size_t turn = 0; turn < 6; ++turn) Play(kept, turn);
  const auto file = OrDie(StateFile::Create(folder_.Path("state")));
  Save(*file, kept);
  const StateModel state = OrDie(LoadState(*file));
  Random random(SeedsHere(40).first);
  uint64_t n_taken = 0;
  for (uint64_t round = 0; round < n_rounds; ++round) {
    const auto damaged = OrDie(StateFile::Create(folder_.Path("damaged")));
    RunOrDie(SaveState(*damaged, Damaged(state, random)));
    Player player{NewPass(files.Copy()), kept.lengths};
    StateLoader loader(*damaged);
    const Status status = player.pass->VisitState(loader, player.lengths);
    if (!status.ok()) {
      EXPECT_TRUE(status.code() == StatusCode::kCorrupt || status.code() == StatusCode::kInvalidArgument)
          << status.message();
      continue;
    }
    ++n_taken;
    std::vector<float> logits(player.pass->n_vocab());
    for (const Said& said : {Said{Turn::kTokens, 0, 30}, Said{Turn::kPrompt, 1, 40}}) {
      const ForwardStep prompt = Prompt(player, said);
      for (uint32_t i = 0; said.turn == Turn::kTokens && i < said.n; ++i) {
        ForwardStep token;
        token.Add(SpanKind::kDecode, {ids_[i], player.lengths[0] + i, 0});
        const uint32_t output = 0;
        if (!player.pass->Run(token, std::span(&output, 1), logits).ok()) break;
      }
      if (said.turn == Turn::kPrompt) player.pass->Run(prompt, {}, {}).code();
    }
  }
  EXPECT_LT(n_taken, n_rounds);
}

INSTANTIATE_TEST_SUITE_P(
    All, SavedClusters,
    ::testing::Values(
        SavedCase{"dual_head", "--kv-select 40 --kv-type f32 --kv-cluster 8 --kv-pending 4"},
        SavedCase{"dual_head_f16_rows",
                  "--kv-select 40 --kv-type f16 --kv-cluster 4 --kv-split 0.5 "
                  "--kv-pending 16 --kv-representatives flash"},
        SavedCase{"small_int8_rows",
                  "--kv-select 40 --kv-type int8 --kv-cluster 2 --kv-cluster-max 2 "
                  "--kv-pending 2 --kv-group 1 --kv-representatives flash",
                  1},
        SavedCase{"cluster_int4", "--kv-select 40 --kv-type int4 --kv-cluster 8 --kv-layout cluster"},
        SavedCase{"static_int4_rows",
                  "--kv-select 40 --kv-type int4 --kv-cluster 8 --kv-update static "
                  "--kv-representatives flash"},
        // Some of what is chosen has no slot: in which order entries are added up depends on which.
        SavedCase{"reuse", "--kv-select 40 --kv-type f16 --kv-cluster 8 --kv-reuse 3"},
        SavedCase{"reuse_rows",
                  "--kv-select 40 --kv-type int4 --kv-cluster 4 --kv-update static "
                  "--kv-representatives flash --kv-reuse 5"},
        SavedCase{"sequence_f16", "--kv-select 40 --kv-type f16 --kv-cluster 8 --kv-layout sequence", 1},
        SavedCase{"sequence_local_rows",
                  "--kv-select 48 --kv-type int8 --kv-cluster 8 --kv-layout sequence "
                  "--kv-update local --kv-pending 24 --kv-representatives flash"},
        SavedCase{"local",
                  "--kv-select 48 --kv-type f16 --kv-cluster 8 --kv-update local --kv-pending 24 "
                  "--kv-layout cluster --kv-upkeep 1",
                  1, 12}),
    [](const ::testing::TestParamInfo<SavedCase>& test) { return test.param.name; });

}  // namespace saved_clusters
}  // namespace
}  // namespace kvrun::testing
