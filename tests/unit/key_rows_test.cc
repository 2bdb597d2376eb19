#include "runtime/kv/math/key_rows.h"

#include <gtest/gtest.h>

#include <vector>

#include "runtime/device/record_codec.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/slot_reference.h"

namespace kvrun {
namespace {

// What a record says of its key, with types of K and V that differ in size, put in two pieces.
TEST(KeyRows, DecodesTheKeysOfRecords) {
  constexpr uint32_t kEntries = 5;
  constexpr uint32_t kFirstPiece = 2;
  for (const KvType k_type : testing::kAllKvTypes) {
    for (const KvType v_type : {KvType::kF16, KvType::kInt4}) {
      const KvRecordShape f32{KvType::kF32, KvType::kF32, 1, 72, 1};
      const KvRecordShape shape{k_type, v_type, 1, 72, 1};
      std::vector<std::byte> records(kEntries * shape.size_bytes());
      for (uint32_t i = 0; i < kEntries; ++i) {
        const std::vector<float> values = testing::RandomFloats(2 * 72, 1.0F, i);
        TranscodeRecord(f32, std::as_bytes(std::span(values)), shape,
                        std::span(records).subspan(i * shape.size_bytes(), shape.size_bytes()));
      }
      KeyRows rows(shape);
      rows.Reset(kEntries);
      const uint64_t cut = kFirstPiece * shape.size_bytes();
      rows.Put(0, std::span(records).first(cut));
      rows.Put(kFirstPiece, std::span(records).subspan(cut));
      std::vector<float> expected(72);
      std::vector<float> key(72);
      for (const uint32_t i : {4U, 0U, 2U, 1U, 3U}) {
        DecodeKeys(shape, std::span(records).subspan(i * shape.size_bytes(), shape.size_bytes()), 72,
                   expected);
        rows.Decode(i, key);
        EXPECT_EQ(key, expected) << testing::KvTypeText(k_type) << ", entry " << i;
      }
    }
  }
}

TEST(KeyRows, TakesNoMemoryForV) {
  const KvRecordShape shape{KvType::kFp8, KvType::kFp8, 1, 64, 1};
  EXPECT_EQ(KeyRows::MemoryBytes(shape, 100), 100 * (64 + 2) + shape.size_bytes());
}

}  // namespace
}  // namespace kvrun
