// A static set over entries in memory: attention that is given, records of anything, an index that notes what
// it is told.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <tuple>
#include <vector>

#include "runtime/device/open_device.h"
#include "runtime/kv/groups/static_set.h"
#include "runtime/kv/memory/host_buffer.h"
#include "runtime/kv/plan/kv_method.h"
#include "tests/support/or_die.h"

namespace kvrun::testing {

// The attention that a prompt's rows give: [n_kv_heads, entries] each.
class GivenAttention final : public PromptEntries {
 public:
  GivenAttention(uint32_t n_heads, uint32_t n_entries) : n_entries_(n_entries) {
    for (auto* rows : {&all, &first, &last}) rows->resize(size_t{n_heads} * n_entries);
  }

  float& At(std::vector<float>& rows, uint32_t head, uint32_t position) const {
    return rows[size_t{head} * n_entries_ + position];
  }

  Status VisitRecords(uint32_t, uint32_t, uint32_t, Want, const RecordsFn&) override {
    return {StatusCode::kUnsupported, "records are not asked for"};
  }
  Status Mass(const MassForm& form, uint32_t end, Rows rows, std::span<float> mass) override {
    EXPECT_EQ(form.n_moments, 1U);
    EXPECT_LE(end, n_entries_);
    const std::vector<float>& given = rows == Rows::kAll ? all : rows == Rows::kFirst ? first : last;
    const size_t n_heads = given.size() / n_entries_;
    EXPECT_EQ(mass.size(), n_heads * end);
    for (size_t head = 0; head < n_heads; ++head) {
      std::memcpy(&mass[head * end], &given[head * n_entries_], end * sizeof(float));
    }
    return Status::Ok();
  }
  Observed observed() const override { return {32, 1}; }
  uint32_t n_queries() const override { return 0; }
  std::span<const float> queries() const override { return {}; }

  std::vector<float> all, first, last;

 private:
  uint32_t n_entries_;
};

// What an index was told of each group, in the order of calls.
class NotingIndex final : public KvIndex {
 public:
  struct Call {
    uint32_t layer = 0;
    uint32_t stream = 0;
    uint32_t group = 0;
    bool has_record = false;
    std::vector<uint32_t> entries;
    bool operator==(const Call&) const = default;
  };

  void FillScore(uint32_t, ScoreArgs*) const override {}
  Status VisitState(StateVisitor&, std::span<const uint32_t>) override { return Status::Ok(); }
  Status TakeOut(uint32_t layer, uint32_t stream, uint32_t group, std::span<const std::byte> record,
                 std::span<const uint32_t> entries) override {
    calls.push_back({layer, stream, group, !record.empty(), {entries.begin(), entries.end()}});
    std::vector<uint32_t>& out = taken_out[{layer, stream, group}];
    out = calls.back().entries;
    if (out.empty()) taken_out.erase({layer, stream, group});
    return Status::Ok();
  }

  // Positions that it lacks now.
  std::vector<uint32_t> Lacks(uint32_t layer, uint32_t stream, uint32_t group_tokens) const {
    std::vector<uint32_t> positions;
    for (const auto& [place, entries] : taken_out) {
      const auto [at_layer, at_stream, group] = place;
      if (at_layer != layer || at_stream != stream) continue;
      for (const uint32_t entry : entries) positions.push_back(group * group_tokens + entry);
    }
    return positions;
  }

  std::vector<Call> calls;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, std::vector<uint32_t>> taken_out;
};

// An entry of a record as kv_record.h says where it lies: rows of K and V, and scales, of all heads.
inline std::vector<std::byte> EntryBytes(const KvRecordShape& shape, std::span<const std::byte> record,
                                         uint32_t entry) {
  std::vector<std::byte> bytes;
  const auto add = [&](size_t begin, size_t n) {
    bytes.insert(bytes.end(), record.begin() + static_cast<ptrdiff_t>(begin),
                 record.begin() + static_cast<ptrdiff_t>(begin + n));
  };
  for (uint32_t head = 0; head < shape.n_heads; ++head) {
    const size_t row = size_t{head} * shape.group_tokens + entry;
    const size_t scales = size_t{4} * shape.scales_begin_words();
    add(4 * row * shape.row_words(shape.k_type), size_t{4} * shape.row_words(shape.k_type));
    add(4 * (shape.v_begin_words() + row * shape.row_words(shape.v_type)),
        size_t{4} * shape.row_words(shape.v_type));
    add(scales + 2 * row * shape.row_scales(shape.k_type), size_t{2} * shape.row_scales(shape.k_type));
    add(scales + 2 * (shape.v_scales_begin() + row * shape.row_scales(shape.v_type)),
        size_t{2} * shape.row_scales(shape.v_type));
  }
  return bytes;
}

// Two layers; groups of 4, the first pinned; a window of 6.
class StaticSetFixture : public ::testing::Test {
 protected:
  static constexpr uint32_t kLayers = 2;

  void SetUp() override {
    device_ = OrDie(OpenDevice({.device = "host", .n_threads = 1}));
    plan_.method = OrDie(FindKvMethod("prkv"));
    plan_.n_ctx = 128;
    plan_.window.n_entries = 6;
    plan_.choice.n_pinned = 1;
    plan_.family = GroupsPlan{};
    StaticPlan& statics = plan_.of_groups().statics;
    statics.n_total = 8;
    statics.n_entries = statics.most_entries = 4;
    statics.observed_rows = StaticChoice::kObservedRows;
    plan_.choice.n_chosen = 7;
    Shape(KvType::kF16, 2, 1);
  }

  // Records of so many heads; so many of them, and sequences, make the streams.
  void Shape(KvType type, uint32_t heads_of_stream, uint32_t streams_of_sequence, uint32_t n_sequences = 1) {
    plan_.n_sequences = n_sequences;
    plan_.n_streams = n_sequences * streams_of_sequence;
    plan_.record = {type, type, heads_of_stream, 40, 4};
    plan_.slots.record = plan_.record;
    plan_.window.record = plan_.record;
  }

  uint32_t group_tokens() const { return plan_.record.group_tokens; }

  // A record of anything, the same whenever it is asked for.
  std::vector<std::byte> RecordOf(uint32_t layer, uint32_t stream, uint32_t group) const {
    std::mt19937 random(layer * 1000 + stream * 100 + group + 7);
    std::vector<std::byte> record(plan_.record.size_bytes());
    for (std::byte& byte : record) byte = static_cast<std::byte>(random());
    return record;
  }
  // Reads them; fails from call `fails_from_` on.
  StaticSet::ReadFn Reader() {
    return [this](uint32_t layer, uint32_t stream, std::span<const uint32_t> groups,
                  std::span<std::byte> records) -> Status {
      if (n_reads_++ >= fails_from_) return {StatusCode::kIo, "a bad disk"};
      EXPECT_LE(groups.size(), StaticSet::kGroupsAtOnce);
      EXPECT_EQ(records.size(), groups.size() * plan_.record.size_bytes());
      for (size_t i = 0; i < groups.size(); ++i) {
        EXPECT_TRUE(i == 0 || groups[i - 1] < groups[i]);
        read_groups_.push_back(groups[i]);
        const std::vector<std::byte> record = RecordOf(layer, stream, groups[i]);
        std::memcpy(records.data() + i * record.size(), record.data(), record.size());
      }
      return Status::Ok();
    };
  }

  std::vector<uint32_t> Positions(const StaticSet& set, uint32_t layer = 0, uint32_t stream = 0) const {
    const std::span<const uint32_t> positions = set.choice().positions(layer, stream);
    return {positions.begin(), positions.end()};
  }
  // Chooses these of each layer, for the first sequence: the first gets most.
  void Choose(StaticSet& set, std::span<const uint32_t> positions, uint32_t end) const {
    const uint32_t n_heads = plan_.record.n_heads * plan_.heads_per_sequence();
    GivenAttention attention(n_heads, end);
    for (uint32_t head = 0; head < n_heads; ++head) {
      for (size_t i = 0; i < positions.size(); ++i) {
        attention.At(attention.all, head, positions[i]) = 100.0F - static_cast<float>(i);
      }
    }
    for (uint32_t layer = 0; layer < kLayers; ++layer)
      RunOrDie(set.choice().Choose(layer, {0, 0, end}, attention));
  }

  // What the source of a layer holds of a stream: positions are those of the set.
  void ExpectLoaded(const StaticSet& set, uint32_t layer, uint32_t stream) const {
    SlotAttentionArgs args;
    set.AddSources(layer, &args);
    ASSERT_EQ(args.n_sources, 1U);
    const SlotSource& source = args.sources[0];
    const std::vector<uint32_t> positions = Positions(set, layer, stream);
    const uint32_t* const table =
        Words(const_cast<Buffer&>(*source.table)).data() + size_t{stream} * source.shape.table_words();
    ASSERT_EQ(table[0], positions.size());
    const KvRecordShape entry = plan_.entry_record();
    EXPECT_EQ(source.shape.record, entry);
    for (uint32_t slot = 0; slot < positions.size(); ++slot) {
      EXPECT_EQ(table[2 + slot], slot);
      const auto found = source.slots->host().subspan(
          (uint64_t{stream} * source.shape.n_slots + slot) * entry.size_bytes(), entry.size_bytes());
      const uint32_t position = positions[slot];
      EXPECT_EQ(EntryBytes(entry, found, 0),
                EntryBytes(plan_.record, RecordOf(layer, stream, position / group_tokens()),
                           position % group_tokens()))
          << "position " << position;
    }
  }

  std::unique_ptr<Device> device_;
  KvPlan plan_;
  uint64_t n_reads_ = 0;
  uint64_t fails_from_ = UINT64_MAX;
  std::vector<uint32_t> read_groups_;
};

}  // namespace kvrun::testing
