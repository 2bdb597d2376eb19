// A cluster's entries between records of one entry and of several.
#include "runtime/kv/math/cluster_records.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "platform/base/random.h"
#include "runtime/device/record_codec.h"

namespace kvrun {
namespace {

std::vector<std::byte> RandomRecord(const KvRecordShape& shape, Random& random) {
  std::vector<std::byte> record(shape.size_bytes());
  for (std::byte& byte : record) byte = static_cast<std::byte>(random.Below(64));  // numbers, in all types
  return record;
}

// There and back again, beside others that stay as they are.
TEST(ClusterRecords, AnEntryIsCopiedBetweenRecordsOfDifferentSizes) {
  Random random(1);
  for (const auto& [k_type, v_type] :
       {std::pair(KvType::kF32, KvType::kF32), std::pair(KvType::kF16, KvType::kF16),
        std::pair(KvType::kFp8, KvType::kInt4), std::pair(KvType::kInt4, KvType::kInt8)}) {
    for (const uint32_t head_dim : {10U, 64U, 80U}) {
      const KvRecordShape one = {k_type, v_type, 1, head_dim, 1};
      const KvRecordShape several = {k_type, v_type, 1, head_dim, 5, true};
      std::vector<std::byte> to = RandomRecord(several, random);
      std::vector<std::vector<std::byte>> entries;
      for (uint32_t i = 0; i < 5; ++i) {
        entries.push_back(RandomRecord(one, random));
        CopyEntry(one, entries.back(), 0, several, to, i);
        SetPosition(several, to, i, 1000 + i);
      }
      for (uint32_t i = 0; i < 5; ++i) {
        EXPECT_EQ(PositionOf(several, to, i), 1000 + i);
        std::vector<std::byte> back = entries[i];  // with its padding
        std::memset(back.data(), 0, size_t{one.positions_begin_words()} * 4);
        CopyEntry(several, to, i, one, back, 0);
        std::vector<float> expected(head_dim);
        std::vector<float> found(head_dim);
        DecodeKeys(one, entries[i], head_dim, expected);
        DecodeKeys(one, back, head_dim, found);
        EXPECT_EQ(expected, found);
        // All bytes but those between rows and scales of an odd size.
        const size_t row_bytes = size_t{one.scales_begin_words()} * 4;
        EXPECT_EQ(std::memcmp(back.data(), entries[i].data(), row_bytes), 0);
      }
    }
  }
}

TEST(ClusterRecords, PositionsGoWithEntries) {
  Random random(2);
  const KvRecordShape shape = {KvType::kFp8, KvType::kFp8, 1, 64, 4, true};
  std::vector<std::byte> from = RandomRecord(shape, random);
  std::vector<std::byte> to = RandomRecord(shape, random);
  SetPosition(shape, from, 2, 77);
  SetPosition(shape, to, 3, 5);
  CopyEntry(shape, from, 2, shape, to, 0);
  EXPECT_EQ(PositionOf(shape, to, 0), 77U);
  EXPECT_EQ(PositionOf(shape, to, 3), 5U);
}

}  // namespace
}  // namespace kvrun
