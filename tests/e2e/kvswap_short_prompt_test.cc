// A first prompt that is too short for an adapter: where the adapter comes from then, and whether what was
// there before it is indexed with it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device/record_codec.h"
#include "runtime/engine/session/session_kv.h"
#include "runtime/kv/index/low_rank_index.h"
#include "runtime/kv/serve/record_cache.h"
#include "runtime/model/tensor_type.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/small_models.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kContext = 128;
constexpr uint32_t kSinks = 4;
constexpr uint32_t kWindow = 8;
constexpr uint32_t kGroup = 4;
constexpr uint32_t kSelected = 32;
// From this position on not all groups can be chosen, and there are entries enough for an adapter.
constexpr uint32_t kFirstChoice = kSinks + kSelected + kGroup + kWindow - 1;

using Row = std::vector<float>;

class KvSwapShortPrompt : public ::testing::Test {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    loaded_ = LoadSmallModel({"SelfMade", ""}, folder_);
  }

  uint32_t key_dim() const { return loaded_.model->config.kv_dim(); }

  // The rank is key_dim: nothing of a key is lost, whatever the adapter.
  std::unique_ptr<ForwardPass> NewPass(const std::string& options, uint32_t n_sequences = 1,
                                       std::shared_ptr<const Adapter> adapter = nullptr) const {
    auto offloaded =
        OffloadedOptionsOrDie(loaded_, folder_,
                              fmt::format("--kv-method kvswap --kv-type f32 --kv-group {} --kv-select {} "
                                          "--kv-window {} --kv-sinks {} --kv-rank {} {}",
                                          kGroup, kSelected, kWindow, kSinks, key_dim(), options),
                              kContext, n_sequences);
    offloaded->adapter = std::move(adapter);
    return loaded_.NewPass(
        {.n_sequences = n_sequences, .n_ctx = kContext, .offloaded = std::move(offloaded)});
  }

  // Keys as they are (side 1), or nothing of them (side 0).
  std::shared_ptr<const Adapter> DiagonalAdapter(float side) const {
    LayerAdapter layer{.key_dim = key_dim(),
                       .rank = key_dim(),
                       .key_side = std::vector<float>(size_t{key_dim()} * key_dim()),
                       .query_side = {},
                       .mean = std::vector<float>(key_dim()),
                       .energy = {}};
    for (size_t i = 0; i < key_dim(); ++i) layer.key_side[i * key_dim() + i] = side;
    layer.query_side = layer.key_side;
    auto adapter = std::make_shared<Adapter>();
    adapter->layers.assign(loaded_.model->config.n_layers, layer);
    return adapter;
  }

  std::vector<int> Ids(size_t n, size_t seed) const {
    return SomeIds(n, seed, loaded_.model->config.n_vocab);
  }

  // Each sequence's next token, from ids[sequence] at its length.
  void Step(ForwardPass& pass, const std::vector<std::vector<int>>& ids) const {
    ForwardStep rows;
    std::vector<uint32_t> outputs;
    for (uint32_t s = 0; s < ids.size(); ++s) {
      const uint32_t at = pass.record_cache()->length(s);
      rows.Add(SpanKind::kDecode, {ids[s][at], at, s});
      outputs.push_back(s);
    }
    std::vector<float> logits(outputs.size() * pass.n_vocab());
    RunOrDie(pass.Run(rows, outputs, logits));
    EXPECT_TRUE(std::all_of(logits.begin(), logits.end(), [](float value) { return std::isfinite(value); }));
  }

  // What an index says of a sequence's first `n` entries. Empty: at the limit of int8, perhaps clipped, as
  // sinks are, which the scales leave out.
  static std::vector<Row> IndexRows(RecordCache& cache, uint32_t layer, uint32_t sequence, uint32_t n) {
    const IndexShape& shape = cache.plan().index;
    const auto& index = dynamic_cast<const LowRankIndex&>(*cache.index());
    Buffer& buffer = *index.rows(layer);
    RunOrDie(buffer.Invalidate(0, buffer.size_bytes()));
    const std::byte* begin =
        buffer.host().data() + uint64_t{sequence} * shape.n_groups * shape.group_words() * 4;
    const auto* scales =
        reinterpret_cast<const float*>(const_cast<Buffer*>(index.sides(layer).scales)->host().data()) +
        size_t{sequence} * shape.rank;
    std::vector<Row> rows(n, Row(shape.rank));
    for (uint32_t entry = 0; entry < n; ++entry) {
      const std::byte* group = begin + uint64_t{entry / kGroup} * shape.group_words() * 4;
      bool is_at_limit = false;
      for (uint32_t c = 0; c < shape.rank; ++c) {
        const uint32_t element = entry % kGroup * shape.rank + c;
        if (shape.type == KvType::kF16) {
          rows[entry][c] = HalfToFloat(reinterpret_cast<const uint16_t*>(group)[element]);
          continue;
        }
        const int value = reinterpret_cast<const int8_t*>(group)[element];
        rows[entry][c] = static_cast<float>(value) * scales[c];
        is_at_limit = is_at_limit || std::abs(value) == 127;
      }
      if (is_at_limit) rows[entry].clear();
    }
    return rows;
  }

  static std::vector<Row> StoredKeys(RecordCache& cache, uint32_t layer, uint32_t sequence, uint32_t n) {
    const KvRecordShape& shape = cache.plan().record;
    const uint32_t heads = cache.plan().n_streams / cache.plan().n_sequences;
    const uint32_t columns = shape.n_heads * shape.head_dim;
    std::vector<std::byte> record(shape.size_bytes());
    std::vector<float> keys(size_t{kGroup} * columns);
    std::vector<Row> rows(n);
    for (uint32_t group = 0; group < n / kGroup; ++group) {
      for (uint32_t head = 0; head < heads; ++head) {
        RunOrDie(cache.prompts().ReadGroups(layer, sequence * heads + head, group, 1, record));
        DecodeKeys(shape, record, columns, keys);
        for (uint32_t i = 0; i < kGroup; ++i) {
          Row& row = rows[group * kGroup + i];
          row.insert(row.end(), keys.begin() + i * columns, keys.begin() + (i + 1) * columns);
        }
      }
    }
    return rows;
  }

  // Of the differences from the first.
  static double Product(const std::vector<Row>& rows, size_t i, size_t j) {
    double sum = 0.0;
    for (size_t c = 0; c < rows[0].size(); ++c) {
      sum += (double{rows[i][c]} - rows[0][c]) * (double{rows[j][c]} - rows[0][c]);
    }
    return sum;
  }

  // Rows that one orthonormal adapter of full rank made have the inner products of the keys, whichever it is:
  // those of all sequences together.
  void ExpectIndexed(ForwardPass& pass, double tolerance) const {
    RecordCache& cache = *pass.record_cache();
    for (uint32_t layer = 0; layer < loaded_.model->config.n_layers; ++layer) {
      std::vector<Row> rows;
      std::vector<Row> keys;
      for (uint32_t s = 0; s < cache.plan().n_sequences; ++s) {
        const uint32_t n = (cache.length(s) - 1) / kGroup * kGroup;  // the newest may not be stored yet
        const std::vector<Row> of_index = IndexRows(cache, layer, s, n);
        const std::vector<Row> stored = StoredKeys(cache, layer, s, n);
        size_t n_taken = 0;
        for (uint32_t i = 0; i < n; ++i) {
          if (of_index[i].empty()) continue;
          ++n_taken;
          rows.push_back(of_index[i]);
          keys.push_back(stored[i]);
        }
        // Each column of int8 has one entry at the limit, and a few are rounded to it.
        const size_t n_at_limit = key_dim() + kSinks + n / 8;
        const size_t n_left = n > n_at_limit ? n - n_at_limit : 1;
        EXPECT_GE(n_taken, n_left) << "layer " << layer << " sequence " << s;
      }
      double largest = 0.0;
      double worst = 0.0;
      for (size_t i = 1; i < keys.size(); ++i) {
        largest = std::max(largest, Product(keys, i, i));
        for (size_t j = 1; j <= i; ++j) {
          worst = std::max(worst, std::abs(Product(rows, i, j) - Product(keys, i, j)));
        }
      }
      EXPECT_GT(largest, 0.0);
      EXPECT_LE(worst, tolerance * largest) << "layer " << layer;
    }
  }

  // Groups that the last step chose, of all layers and streams of its first row.
  std::set<std::vector<uint32_t>> Chosen(ForwardPass& pass) const {
    RecordCache& cache = *pass.record_cache();
    std::set<std::vector<uint32_t>> all;
    for (uint32_t layer = 0; layer < loaded_.model->config.n_layers; ++layer) {
      const auto streams = cache.reports().BeforeWindow(layer, 0, cache.length(0) - 1);
      for (uint32_t stream = 0; stream < streams.size(); ++stream) {
        for (const uint32_t group : streams[stream]) all.insert({layer, stream, group});
      }
    }
    return all;
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
};

TEST_F(KvSwapShortPrompt, DecodingMakesTheAdapter) {
  const std::vector<std::vector<int>> ids = {Ids(kContext, 1)};
  for (const auto& [options, tolerance] :
       {std::pair{"--kv-index f16", 0.01}, std::pair{"--kv-index int8", 0.05},
        std::pair{"--kv-index f16 --kv-heads per-kv-head", 0.01},
        std::pair{"--kv-index f16 --kv-adapter-kind plain", 0.01}}) {
    SCOPED_TRACE(options);
    const auto pass = NewPass(options);
    RecordCache& cache = *pass->record_cache();
    Feed(*pass, ids[0], 0, 5, 5);
    while (cache.length(0) < kFirstChoice) Step(*pass, ids);
    EXPECT_FALSE(cache.index()->is_ready());
    Step(*pass, ids);
    EXPECT_TRUE(cache.index()->is_ready());
    ExpectIndexed(*pass, tolerance);
    while (cache.length(0) < 100) Step(*pass, ids);
    if (cache.plan().index.type == KvType::kF16) ExpectIndexed(*pass, tolerance);
  }
}

// Of full rank every adapter gives the scores of the keys themselves.
TEST_F(KvSwapShortPrompt, ChoicesAreThoseOfTheKeys) {
  const std::vector<std::vector<int>> ids = {Ids(kContext, 2)};
  for (const char* options : {"--kv-index f16", "--kv-index f16 --kv-heads per-kv-head"}) {
    SCOPED_TRACE(options);
    const auto pass = NewPass(options);
    const auto exact = NewPass(options, 1, DiagonalAdapter(1.0F));
    const auto blank = NewPass(options, 1, DiagonalAdapter(0.0F));
    size_t n_chosen = 0;
    size_t n_same = 0;
    size_t n_blank = 0;
    for (ForwardPass* each : {pass.get(), exact.get(), blank.get()}) Feed(*each, ids[0], 0, 3, 3);
    for (uint32_t at = 3; at < 120; ++at) {
      for (ForwardPass* each : {pass.get(), exact.get(), blank.get()}) Step(*each, ids);
      if (at < kFirstChoice + 4 * kGroup) continue;  // nearly all are chosen
      const auto wanted = Chosen(*exact);
      const auto found = Chosen(*pass);
      const auto by_chance = Chosen(*blank);
      n_chosen += wanted.size();
      for (const auto& choice : wanted) {
        n_same += found.count(choice);
        n_blank += by_chance.count(choice);
      }
    }
    EXPECT_GE(static_cast<double>(n_same), 0.97 * static_cast<double>(n_chosen));
    EXPECT_LE(static_cast<double>(n_blank), 0.85 * static_cast<double>(n_chosen));
  }
}

TEST_F(KvSwapShortPrompt, ALongerOneIndexesWhatWasThere) {
  const std::vector<std::vector<int>> ids = {Ids(kContext, 3)};
  for (const auto& [index, tolerance] : {std::pair{"f16", 0.01}, std::pair{"int8", 0.05}}) {
    SCOPED_TRACE(index);
    const auto pass = NewPass(fmt::format("--kv-adapter-kind centred --kv-index {}", index));
    Feed(*pass, ids[0], 0, 10, 10);
    for (uint32_t i = 0; i < 3; ++i) Step(*pass, ids);
    EXPECT_FALSE(pass->record_cache()->index()->is_ready());
    Feed(*pass, ids[0], 13, 73, 60);
    EXPECT_TRUE(pass->record_cache()->index()->is_ready());
    ExpectIndexed(*pass, tolerance);
  }
}

TEST_F(KvSwapShortPrompt, ALongerOneIndexesOtherSequences) {
  const std::vector<std::vector<int>> ids = {Ids(kContext, 4), Ids(kContext, 5), Ids(kContext, 6)};
  for (const auto& [index, tolerance] : {std::pair{"f16", 0.01}, std::pair{"int8", 0.05}}) {
    SCOPED_TRACE(index);
    const auto pass = NewPass(fmt::format("--kv-adapter-kind centred --kv-index {}", index), 3);
    Feed(*pass, ids[0], 0, 9, 9, 0);
    Feed(*pass, ids[2], 0, 30, 30, 2);
    for (uint32_t i = 0; i < 10; ++i) {  // 40 entries: enough for scales of its own
      ForwardStep rows;
      rows.Add(SpanKind::kDecode, {ids[2][30 + i], 30 + i, 2});
      std::vector<float> logits;
      RunOrDie(pass->Run(rows, {}, logits));
    }
    EXPECT_FALSE(pass->record_cache()->index()->is_ready());
    Feed(*pass, ids[1], 0, 60, 60, 1);
    EXPECT_TRUE(pass->record_cache()->index()->is_ready());
    ExpectIndexed(*pass, tolerance);
    for (uint32_t i = 0; i < 30; ++i) Step(*pass, ids);
    if (pass->record_cache()->plan().index.type == KvType::kF16) ExpectIndexed(*pass, tolerance);
  }
}

TEST_F(KvSwapShortPrompt, DecodingIndexesTheWholeBatch) {
  const std::vector<std::vector<int>> ids = {Ids(kContext, 7), Ids(kContext, 8)};
  for (const auto& [index, tolerance] : {std::pair{"f16", 0.01}, std::pair{"int8", 0.05}}) {
    SCOPED_TRACE(index);
    const auto pass = NewPass(fmt::format("--kv-index {}", index), 2);
    RecordCache& cache = *pass->record_cache();
    Feed(*pass, ids[0], 0, 5, 5, 0);
    Feed(*pass, ids[1], 0, 20, 20, 1);
    while (cache.length(1) < kFirstChoice) Step(*pass, ids);
    EXPECT_FALSE(cache.index()->is_ready());
    Step(*pass, ids);
    EXPECT_TRUE(cache.index()->is_ready());
    ExpectIndexed(*pass, tolerance);
    while (cache.length(1) < 100) Step(*pass, ids);
    if (cache.plan().index.type == KvType::kF16) ExpectIndexed(*pass, tolerance);
  }
}

}  // namespace
}  // namespace kvrun::testing
