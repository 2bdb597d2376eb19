// Clusters whose entries lie in the order of the text: whatever becomes of clusters, each entry is read as it
// was stored, and it is written once.
#include "runtime/kv/clusters/sequence_clusters.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "platform/base/random.h"
#include "platform/base/units.h"
#include "runtime/kv/math/cluster_records.h"
#include "tests/storage/store_fixture.h"

namespace kvrun::testing {
namespace {

using Positions = std::vector<uint32_t>;

constexpr uint32_t kTokens = 4;  // of a record
constexpr uint32_t kContext = 200;
constexpr uint32_t kMost = 16;  // entries of a cluster

class SequenceClustersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    plan_.n_ctx = kContext;
    plan_.n_streams = 2;
    plan_.record = {
        .k_type = KvType::kFp8, .v_type = KvType::kFp8, .n_heads = 1, .head_dim = 20, .group_tokens = 1};
    plan_.slots.record = plan_.record;
    plan_.slots.record.group_tokens = kTokens;
    plan_.slots.record.has_positions = true;
    plan_.choice.n_chosen = 60;
    plan_.family = ClustersPlan{};
    plan_.of_clusters().n_clusters = 30;
    plan_.of_clusters().max_entries = kMost;
    plan_.staging_bytes = 256 * kKiB;
    auto file = fixture_.MakeFile(IoBackend::kThreads, DirectIo::kOff, 8);
    ASSERT_NE(file, nullptr) << fixture_.reason;
    auto made = SequenceClusters::Create(std::move(file), plan_, 2);
    ASSERT_TRUE(made.ok()) << made.status().message();
    store_ = std::move(made).value();
  }

  // What the entry holds follows from where it is from, and from how often it was made anew.
  std::vector<std::byte> Entry(uint32_t stream, uint32_t position) {
    Random random(position * 8 + stream + 100000 * versions_[{stream, position}]);
    std::vector<std::byte> entry(plan_.record.size_bytes());
    for (std::byte& byte : entry) byte = static_cast<std::byte>(random.Below(256));
    return entry;
  }
  uint32_t n_records(const Positions& positions) const {
    return CeilDiv(static_cast<uint32_t>(positions.size()), kTokens);
  }
  std::vector<std::byte> Records(uint32_t stream, const Positions& positions) {
    const uint64_t bytes = plan_.slots.record.size_bytes();
    std::vector<std::byte> records(n_records(positions) * bytes);
    for (uint32_t i = 0; i < n_records(positions) * kTokens; ++i) {
      const auto record = std::span(records).subspan(i / kTokens * bytes, bytes);
      const bool is_there = i < positions.size();
      SetPosition(plan_.slots.record, record, i % kTokens, is_there ? positions[i] : kNoPosition);
      if (is_there) {
        CopyEntry(plan_.record, Entry(stream, positions[i]), 0, plan_.slots.record, record, i % kTokens);
      }
    }
    return records;
  }
  void Write(uint32_t stream, uint32_t cluster, const Positions& positions) {
    const Status status = store_->Write(1, stream, cluster, 0, Records(stream, positions));
    ASSERT_TRUE(status.ok()) << status.message();
  }
  // All clusters at once; of some, not all records.
  void ExpectAll(const std::map<std::pair<uint32_t, uint32_t>, Positions>& clusters) {
    std::vector<std::vector<std::byte>> records;
    std::vector<std::vector<std::byte*>> memory;
    std::vector<ClusterFetch> fetches;
    const uint64_t bytes = plan_.slots.record.size_bytes();
    for (const auto& [at, positions] : clusters) {
      records.emplace_back(n_records(positions) * bytes, std::byte{0xcd});
      memory.emplace_back();
      for (uint32_t i = 0; i < n_records(positions); ++i) {
        memory.back().push_back(records.size() % 3 == 0 && i == 0 ? nullptr
                                                                  : records.back().data() + i * bytes);
      }
    }
    size_t next = 0;
    for (const auto& [at, positions] : clusters) {
      fetches.push_back({at.first, at.second, n_records(positions), memory[next++]});
    }
    const Status status = store_->Fetch(1, fetches);
    ASSERT_TRUE(status.ok()) << status.message();
    next = 0;
    for (const auto& [at, positions] : clusters) {
      const std::vector<std::byte> expected = Records(at.first, positions);
      for (uint32_t i = 0; i < positions.size(); ++i) {
        if (memory[next][i / kTokens] == nullptr) continue;
        const auto record = std::span(records[next]).subspan(i / kTokens * bytes, bytes);
        std::vector<std::byte> found(plan_.record.size_bytes());
        std::vector<std::byte> wanted(plan_.record.size_bytes());
        CopyEntry(plan_.slots.record, record, i % kTokens, plan_.record, found, 0);
        CopyEntry(plan_.slots.record, std::span(expected).subspan(i / kTokens * bytes, bytes), i % kTokens,
                  plan_.record, wanted, 0);
        ASSERT_EQ(found, wanted) << fmt::format("stream {}, cluster {}, entry {}", at.first, at.second, i);
        ASSERT_EQ(PositionOf(plan_.slots.record, record, i % kTokens), positions[i]);
      }
      ++next;
    }
  }

  StoreFixture fixture_;
  KvPlan plan_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> versions_;
  std::unique_ptr<SequenceClusters> store_;
};

// The example of docs/formats/kv_clusters.md.
TEST_F(SequenceClustersTest, TheExample) {
  Write(0, 0, {4, 5, 9});
  Write(0, 1, {6, 10, 11});
  EXPECT_EQ(store_->CountRuns(1, 0, Positions{0}), 2U);
  EXPECT_EQ(store_->CountRuns(1, 0, Positions{0, 1}), 2U) << "4 to 6 and 9 to 11";
  EXPECT_EQ(store_->stats().writes, 4U);
  ExpectAll({{{0, 0}, {4, 5, 9}}, {{0, 1}, {6, 10, 11}}});
  EXPECT_EQ(store_->stats().reads, 2U);
  EXPECT_EQ(store_->stats().runs, 2U);
  EXPECT_EQ(store_->stats().records_read, 2U);
}

TEST_F(SequenceClustersTest, WhatIsNotThereIsAnError) {
  std::vector<std::byte> record(plan_.slots.record.size_bytes());
  std::byte* memory[] = {record.data()};
  const ClusterFetch fetch{0, 3, 1, memory};
  EXPECT_EQ(store_->Fetch(1, {&fetch, 1}).code(), StatusCode::kIo);
  Write(0, 3, {7});
  EXPECT_TRUE(store_->Fetch(1, {&fetch, 1}).ok());
  EXPECT_EQ(store_->Fetch(0, {&fetch, 1}).code(), StatusCode::kIo) << "another layer";
  store_->Forget(1, 0, 3);
  EXPECT_EQ(store_->Fetch(1, {&fetch, 1}).code(), StatusCode::kIo);
}

// Clusters grow, are divided, lose their newest entries, which come anew, and go.
TEST_F(SequenceClustersTest, EveryEntryIsWhereItsClusterIs) {
  Random random(7);
  std::map<std::pair<uint32_t, uint32_t>, Positions> clusters;
  uint32_t ends[2] = {0, 0};
  uint64_t n_new = 0;
  const auto free_id = [&](uint32_t stream) {
    uint32_t id = 0;
    while (clusters.contains({stream, id})) ++id;
    return id;
  };
  for (int step = 0; step < 600; ++step) {
    const uint32_t stream = random.Below(2);
    uint32_t& end = ends[stream];
    if (random.Below(40) == 0 || end == kContext) {
      const uint32_t left = random.Below(end + 1);
      for (uint32_t id = 0; id < plan_.of_clusters().n_clusters; ++id) {
        const auto found = clusters.find({stream, id});
        if (found == clusters.end()) continue;
        const size_t before = found->second.size();
        std::erase_if(found->second, [left](uint32_t position) { return position >= left; });
        if (found->second.empty()) {
          store_->Forget(1, stream, id);
          clusters.erase(found);
        } else if (found->second.size() < before) {
          Write(stream, id, found->second);
        }
      }
      for (; end > left; --end) ++versions_[{stream, end - 1}];
      continue;
    }
    const uint32_t id = random.Below(plan_.of_clusters().n_clusters);
    auto found = clusters.find({stream, id});
    if (found == clusters.end()) {
      const uint32_t fresh = free_id(stream);
      found = clusters.emplace(std::pair(stream, fresh), Positions()).first;
    }
    for (uint32_t n = 1 + random.Below(3); n > 0 && end < kContext; --n) {
      found->second.push_back(end++);
      ++n_new;
    }
    if (found->second.empty()) {
      clusters.erase(found);
      continue;
    }
    const uint32_t of = found->first.second;
    const uint32_t other = free_id(stream);
    if (found->second.size() > kMost / 2 && other < plan_.of_clusters().n_clusters) {  // the other part first
      Positions kept;
      Positions moved;
      for (const uint32_t position : found->second) (random.Below(2) == 0 ? kept : moved).push_back(position);
      if (!kept.empty() && !moved.empty()) {
        Write(stream, other, moved);
        found->second = kept;
        clusters[{stream, other}] = moved;
      }
    }
    Write(stream, of, clusters[{stream, of}]);
    ExpectAll(clusters);
    if (HasFatalFailure()) return;
  }
  // Nothing is moved: records are counted by runs, and no entry is written twice.
  EXPECT_LE(store_->stats().writes, n_new);
  EXPECT_EQ(store_->mode().alignment_bytes, 1U);
  EXPECT_EQ(store_->stats().written_bytes, n_new * plan_.record.size_bytes());
}

}  // namespace
}  // namespace kvrun::testing
