// KV records from and to resident KV, against the scalar reference.
#include <algorithm>

#include "tests/support/operations_fixture.h"
#include "tests/support/record_cases.h"
#include "tests/support/slot_cases.h"

namespace kvrun::testing {
namespace {

class RecordsTest : public OperationsTest {};

// The kernels do not depend on a plan's choices for GPUs.
INSTANTIATE_TEST_SUITE_P(Modes, RecordsTest,
                         ::testing::ValuesIn(ModesOf(Operations::kRecords,
                                                     {DeviceMode::kPlanned, DeviceMode::kFloor,
                                                      DeviceMode::kSmallBuffers})),
                         ModeName);

// What is no record must stay untouched.
std::vector<uint32_t> Encode(Device& device, const CopyCase& c, std::span<const uint32_t> kv) {
  SelfTestRun run(device);
  const Buffer* from = Words(run, kv);
  const Buffer* means = run.Floats(Means(c));
  Buffer* to = Words(run, std::vector<uint32_t>(c.record_words() + kBeyond, kGarbage));
  run.Run([&](CommandList& list) {
    return list.EncodeRecords(*from, c.kv, c.first_token, c.n_groups, c.record, c.Space(means), to);
  });
  std::vector<uint32_t> records = WordsOf(run, to, c.record_words() + kBeyond);
  EXPECT_TRUE(run.status().ok()) << run.status().message();
  for (size_t i = c.record_words(); i < records.size(); ++i) EXPECT_EQ(records[i], kGarbage) << i;
  records.resize(c.record_words());
  return records;
}

void CheckDecode(Device& device, const CopyCase& c, std::span<const uint32_t> records) {
  SelfTestRun run(device);
  const std::vector<uint32_t> kv = KvWords(c);
  const Buffer* from = Words(run, records);
  const Buffer* means = run.Floats(Means(c));
  Buffer* to = Words(run, kv);
  run.Run([&](CommandList& list) {
    return list.DecodeRecords(*from, c.record, c.Space(means), c.n_groups, c.first_token, c.kv, to);
  });
  const std::vector<uint32_t> found = WordsOf(run, to, kv.size());
  ASSERT_TRUE(run.status().ok()) << run.status().message();
  EXPECT_EQ(CheckDecoded(c, records, found), "");
}

TEST_P(RecordsTest, EncodesAndDecodesRecords) {
  size_t checked = 0;
  for (Device* device : devices_) {
    for (const KvType type : {KvType::kF16, KvType::kF32}) {
      for (const CopyCase& c : CopyCases(type)) {
        // How KV is read and written does not depend on the pair: fewer kernels to compile.
        if (type == KvType::kF32 && c.record.k_type != c.record.v_type) continue;
        if (!Fits(*device, std::max<uint64_t>(c.kv.size_bytes(), c.record_words() * sizeof(uint32_t))))
          continue;
        EXPECT_EQ(CheckEncoded(c, Encode(*device, c, KvWords(c))), "");
        CheckDecode(*device, c, MakeRecords(c));
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 0U);
}

TEST_P(RecordsTest, RoundsHalvesOfAStepToEven) {
  for (Device* device : devices_) {
    for (const KvType type : {KvType::kF16, KvType::kFp8, KvType::kInt8, KvType::kInt4}) {
      const CopyCase c = OneRow(type, 256);
      EXPECT_EQ(Encode(*device, c, HalvesOfAStep(c)), RoundedHalves(c)) << Describe(c.record);
    }
  }
}

// With scales of one, negative, and too small for a normal half.
TEST_P(RecordsTest, DecodesEveryElement) {
  for (Device* device : devices_) {
    for (const KvType type : {KvType::kFp8, KvType::kInt8, KvType::kInt4}) {
      for (const uint32_t scale : {0x3c00U, 0xb800U, 0x0003U, 0x83ffU, 0U}) {
        const CopyCase c = OneRow(type, 256);
        CheckDecode(*device, c, EveryElement(c, scale));
      }
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
