// Records on the CPU as a device: copies from and to KV in memory, and every element of every type, against
// the scalar references; the same bits with every instruction set.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "runtime/device/host/operations.h"
#include "tests/support/host_run.h"
#include "tests/support/record_cases.h"
#include "tests/support/slot_cases.h"

namespace kvrun::testing {
namespace {

std::vector<uint32_t> Encode(host::ThreadPool& pool, const CopyCase& c, const std::vector<uint32_t>& kv) {
  HostRun run;
  const Buffer* from = run.Values(kv);
  const Buffer* means = run.Values(Means(c));
  Buffer* to = run.Values(std::vector<uint32_t>(c.record_words(), kGarbage));
  host::EncodeRecords(pool, {from, c.kv, c.first_token, c.n_groups, c.record, c.Space(means), to});
  return run.Read<uint32_t>(to);
}

void CheckEncode(const CopyCase& c) {
  const std::vector<uint32_t> kv = KvWords(c);
  std::vector<uint32_t> first;
  ForEachHostPool([&](host::ThreadPool& pool) {
    std::vector<uint32_t> found = Encode(pool, c, kv);
    if (!first.empty()) {
      EXPECT_EQ(found, first) << Describe(c.record);
      return;
    }
    EXPECT_EQ(CheckEncoded(c, found), "");
    first = std::move(found);
  });
}

void CheckDecode(const CopyCase& c, const std::vector<uint32_t>& records) {
  const std::vector<uint32_t> kv = KvWords(c);
  std::vector<uint32_t> first;
  ForEachHostPool([&](host::ThreadPool& pool) {
    HostRun run;
    const Buffer* from = run.Values(records);
    const Buffer* means = run.Values(Means(c));
    Buffer* to = run.Values(kv);
    host::DecodeRecords(pool, {from, c.record, c.Space(means), c.n_groups, c.first_token, c.kv, to});
    std::vector<uint32_t> found = run.Read<uint32_t>(to);
    if (!first.empty()) {
      EXPECT_EQ(found, first) << Describe(c.record);
      return;
    }
    EXPECT_EQ(CheckDecoded(c, records, found), "");
    first = std::move(found);
  });
}

TEST(HostRecords, EncodesAndDecodesRecords) {
  for (const KvType type : {KvType::kF16, KvType::kF32}) {
    for (const CopyCase& c : CopyCases(type)) {
      CheckEncode(c);
      CheckDecode(c, MakeRecords(c));
    }
  }
}

TEST(HostRecords, RoundsHalvesOfAStepToEven) {
  for (const KvType type : {KvType::kF16, KvType::kFp8, KvType::kInt8, KvType::kInt4}) {
    const CopyCase c = OneRow(type, 256);
    ForEachHostPool([&](host::ThreadPool& pool) {
      EXPECT_EQ(Encode(pool, c, HalvesOfAStep(c)), RoundedHalves(c)) << Describe(c.record);
    });
  }
}

// With scales of one, negative, and too small for a normal half.
TEST(HostRecords, DecodesEveryElement) {
  for (const KvType type : {KvType::kFp8, KvType::kInt8, KvType::kInt4}) {
    for (const uint32_t scale : {0x3c00U, 0xb800U, 0x0003U, 0x83ffU, 0U}) {
      for (const KvType kv_type : {KvType::kF32, KvType::kF16}) {
        const CopyCase c = OneRow(type, 256, kv_type);
        CheckDecode(c, EveryElement(c, scale));
      }
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
