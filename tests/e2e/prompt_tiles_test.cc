// Prompts whose K and V do not fit in memory: they have the logits of those that do, and what they read and
// write is what was counted beforehand.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "platform/base/units.h"
#include "runtime/engine/session/session_kv.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/small_models.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kTiledContext = 1800;
constexpr uint32_t kTiledPrompt = 1700;
constexpr uint32_t kMostTileTokens = 256;  // of tiles that are not the first

// A vocabulary whose logits leave room for blocks of one chunk, or of many: at least four of 64 rows, or two
// of 256.
constexpr uint32_t kVocabOfOneChunk = 300;
constexpr uint32_t kVocabOfManyChunks = 6000;

struct TilingCase {
  uint32_t n_vocab;
  uint32_t first_tokens;
  uint32_t block_chunks;  // at least
  uint32_t read_tiles;    // at a time

  uint32_t later_tokens() const { return std::min(first_tokens, kMostTileTokens); }
  uint32_t n_later() const { return CeilDiv(kTiledPrompt - first_tokens, later_tokens()); }
};

class PromptTiles : public ::testing::TestWithParam<TilingCase> {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    TinyModelOptions options;
    options.n_vocab = GetParam().n_vocab;
    options.n_ctx_train = 2048;
    loaded_ = LoadModelOrDie(WriteModel(folder_, "tiny.gguf", TinyModel(options).Build()));
    ids_ = SomeIds(kTiledContext, 5, options.n_vocab);
  }

  // Records of f32, so that nothing else is rounded.
  std::unique_ptr<ForwardPass> NewPass(const std::string& method, uint32_t first_tokens) {
    auto options =
        OffloadedOptionsOrDie(loaded_, folder_, "--kv-type f32 --kv-method " + method, kTiledContext);
    if (first_tokens > 0) {
      options->plan.prefill.tile_tokens = first_tokens;
      options->plan.prefill.read_tiles = GetParam().read_tiles;
      options->plan.prefill.spills_hidden = true;
    }
    plan_ = options->plan;
    spill_ = options->spill.get();
    return loaded_.NewPass({.n_sequences = 1, .n_ctx = kTiledContext, .offloaded = std::move(options)});
  }

  size_t n_vocab() const { return loaded_.model->config.n_vocab; }
  uint64_t n_layers() const { return loaded_.model->config.n_layers; }

  // Of all rows, in 16 bits, and a scale of each.
  uint64_t HiddenBytes() const { return kTiledPrompt * (uint64_t{loaded_.model->config.n_embd} * 2 + 4); }
  uint64_t TileBytes() const {
    const ModelConfig& config = loaded_.model->config;
    return uint64_t{GetParam().later_tokens()} * config.kv_dim() * 2 * sizeof(float);
  }
  // Whole blocks, or pages, may be moved at a time.
  static constexpr uint64_t kPageBytes = 4096;

  TemporaryFolder folder_;
  LoadedModel loaded_;
  KvPlan plan_;
  BlockFile* spill_ = nullptr;
  std::vector<int> ids_;
};

INSTANTIATE_TEST_SUITE_P(
    Some, PromptTiles,
    ::testing::Values(TilingCase{kVocabOfOneChunk, 1024, 1, 1}, TilingCase{kVocabOfManyChunks, 1024, 2, 2},
                      TilingCase{kVocabOfManyChunks, 256, 2, 3}, TilingCase{kVocabOfOneChunk, 64, 1, 7},
                      TilingCase{kVocabOfManyChunks, 64, 4, 1}),
    [](const ::testing::TestParamInfo<TilingCase>& source) {
      return fmt::format("First{}Vocabulary{}", source.param.first_tokens, source.param.n_vocab);
    });

// A prompt, one that begins within a tile and has several chunks, one of a chunk, and tokens.
TEST_P(PromptTiles, HaveTheLogitsOfPromptsInMemory) {
  for (const std::string method : {"flexgen", "kvswap --kv-select 4096", "kvswap --kv-select 256 --kv-rank 8",
                                   "dynakv", "prkv --kv-select 256", "h2o --kv-select 256"}) {
    SCOPED_TRACE(method);
    const auto say = [&](uint32_t first_tokens) {
      const auto pass = NewPass(method, first_tokens);
      std::vector<float> said = Feed(*pass, ids_, 0, 1100, 1100);
      for (const auto& more : {Feed(*pass, ids_, 1100, 1650, 550), Feed(*pass, ids_, 1650, kTiledPrompt, 50),
                               Feed(*pass, ids_, kTiledPrompt, kTiledPrompt + 10, 1)}) {
        said.insert(said.end(), more.begin(), more.end());
      }
      return said;
    };
    const std::vector<float> whole = say(0);
    const std::vector<float> tiled = say(GetParam().first_tokens);
    EXPECT_EQ(tiled, say(GetParam().first_tokens)) << "a run is not repeatable";
    const LogitsDifference difference = CompareLogits(whole, tiled, n_vocab());
    EXPECT_GT(difference.max_absolute, 0.0) << "it was not tiled";
    if (plan_.choice.n_chosen >= plan_.n_groups()) {
      EXPECT_LE(difference.max_absolute, 0.02);
      EXPECT_EQ(difference.wrong_top1, 0U);
    }
    // What is chosen may differ where scores are equal to a bit.
    EXPECT_LT(difference.mean_kl, 0.02);
  }
}

// Hidden states once a layer; each later tile once for each block after it; and as often as what follows a
// layer goes over all of it.
TEST_P(PromptTiles, ReadAndWriteWhatWasCounted) {
  const TilingCase tiling = GetParam();
  const uint64_t n_later = tiling.n_later();
  uint64_t n_attended = 0;  // tiles that are read
  for (uint64_t done = 0; done < n_later; done += tiling.block_chunks) {
    n_attended += std::min<uint64_t>(n_later, done + tiling.block_chunks) - 1;
  }
  // The index takes the keys; so does what rows give to each entry. What they give to all is summed up with
  // the index.
  for (const auto& [method, n_keys] : {std::pair<std::string, uint64_t>{"flexgen", 0},
                                       {"kvswap --kv-select 256 --kv-rank 8 --kv-static 0", 1},
                                       {"kvswap --kv-select 256 --kv-rank 8 --kv-static 0.25", 2}}) {
    SCOPED_TRACE(method);
    const auto pass = NewPass(method, tiling.first_tokens);
    const IoCounters before = spill_->counters();
    Feed(*pass, ids_, 0, kTiledPrompt, kTiledPrompt);
    const IoCounters after = spill_->counters();
    const uint64_t tile_bytes = TileBytes();
    // The embeddings, too, and those of the chunk whose logits are wanted.
    const uint64_t written = after.written_bytes - before.written_bytes;
    EXPECT_LE(written, (n_layers() + 1) * HiddenBytes() + n_layers() * n_later * tile_bytes +
                           (after.writes - before.writes) * 2 * kPageBytes);
    EXPECT_GE(written, n_layers() * n_later * tile_bytes);
    const uint64_t read = after.read_bytes - before.read_bytes;
    const uint64_t tiles_bytes = n_layers() * (2 * n_attended + n_keys * n_later) * tile_bytes / 2;
    EXPECT_LE(read,
              (n_layers() + 1) * HiddenBytes() + tiles_bytes + (after.reads - before.reads) * 2 * kPageBytes);
    EXPECT_GE(read, n_layers() * (2 * (n_later - 1) + n_keys * n_later) * tile_bytes / 2);
    // The bound, of the KV's bytes, where the first tile has more than half of the context.
    if (tiling.first_tokens * 2 < kTiledPrompt) continue;
    const uint64_t kv_bytes = n_layers() * kTiledPrompt * tile_bytes / tiling.later_tokens();
    EXPECT_LE(tiles_bytes, 3 * kv_bytes);
  }
}

}  // namespace
}  // namespace kvrun::testing
