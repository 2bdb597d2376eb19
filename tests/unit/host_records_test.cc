// Records on the CPU as a device: copies from and to KV in memory, and every element of every type, against
// the scalar references.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "runtime/device/host/operations.h"
#include "runtime/device/self_test_data.h"
#include "tests/support/host_run.h"
#include "tests/support/scalar_reference.h"
#include "tests/support/slot_cases.h"
#include "tests/support/slot_reference.h"

namespace kvrun::testing {
namespace {

// Values of very different size, zeros, and rows of nothing but zeros, of what is too small for a scale, and
// of what is too large for halves.
std::vector<float> UnevenFloats(size_t count, uint32_t row_length, uint32_t seed) {
  std::vector<float> values = RandomFloats(count, seed);
  for (size_t i = 0; i < count; ++i) {
    values[i] = std::ldexp(values[i], -static_cast<int>((i * 7 + i / row_length) % 19));
    const size_t row = i / row_length % 13;
    if (i % 11 == 3 || row == 5) values[i] = 0.0F;
    if (row == 7) values[i] *= 0x1p-26F;
    if (row == 9) values[i] *= 0x1p+12F;
    if (row == 11) values[i] *= 0x1p+30F;
  }
  return values;
}

// One layer's KV of one sequence: as values, and as it is stored.
struct StoredKv {
  KvShape shape;
  std::vector<float> values;
  std::vector<uint32_t> words;

  size_t entry(uint32_t kv_head, uint32_t plane, uint32_t token) const {
    return ((size_t{kv_head} * 2 + plane) * shape.n_ctx + token) * shape.head_dim;
  }
};

StoredKv MakeKv(const KvShape& shape) {
  StoredKv kv{shape, UnevenFloats(shape.size_bytes() / KvElementBytes(shape.type), shape.head_dim, 21), {}};
  kv.words.resize(shape.size_bytes() / sizeof(uint32_t));
  if (shape.type == KvType::kF32) {
    std::memcpy(kv.words.data(), kv.values.data(), shape.size_bytes());
    return kv;
  }
  for (size_t i = 0; i < kv.values.size(); ++i) {
    const uint16_t half = FloatToHalf(std::clamp(kv.values[i], -65504.0F, 65504.0F));
    kv.values[i] = HalfToFloat(half);
    kv.words[i / 2] |= uint32_t{half} << (16 * (i % 2));
  }
  return kv;
}

struct CopyCase {
  KvRecordShape record;
  KvShape kv;
  uint32_t first_token = 0;
  uint32_t n_groups = 0;

  size_t record_words() const {
    return size_t{kv.n_kv_heads / record.n_heads} * n_groups * record.size_words();
  }
};

// Calls visit(words of the record from its first on, row, index of the KV entry's first element).
template <typename Visitor>
void ForEachRow(const CopyCase& c, const StoredKv& kv, Visitor&& visit) {
  for (uint32_t kv_head = 0; kv_head < c.kv.n_kv_heads; ++kv_head) {
    for (uint32_t token = 0; token < c.n_groups * c.record.group_tokens; ++token) {
      const bool together = c.record.n_heads == c.kv.n_kv_heads;
      const uint32_t group = token / c.record.group_tokens;
      const size_t record = together ? group : size_t{kv_head} * c.n_groups + group;
      for (const uint32_t plane : {0U, 1U}) {
        visit(record * c.record.size_words(),
              RecordRow{plane, together ? kv_head : 0, token % c.record.group_tokens},
              kv.entry(kv_head, plane, c.first_token + token));
      }
    }
  }
}

void CheckEncode(const CopyCase& c) {
  const StoredKv kv = MakeKv(c.kv);
  // What belongs to no row must be zeros.
  std::vector<uint32_t> expected(c.record_words());
  bool is_first = true;
  ForEachHostPool([&](host::ThreadPool& pool) {
    HostRun run;
    const Buffer* from = run.Values(kv.words);
    Buffer* to = run.Values(std::vector<uint32_t>(c.record_words(), kGarbage));
    host::EncodeRecords(pool, *from, c.kv, c.first_token, c.n_groups, c.record, to);
    const std::vector<uint32_t> found = run.Read<uint32_t>(to);
    // All others: the same bits.
    if (!std::exchange(is_first, false)) {
      EXPECT_EQ(found, expected) << Describe(c.record);
      return;
    }
    ForEachRow(c, kv, [&](size_t begin, const RecordRow& row, size_t entry) {
      const std::vector<double> values(kv.values.begin() + static_cast<ptrdiff_t>(entry),
                                       kv.values.begin() + static_cast<ptrdiff_t>(entry + c.kv.head_dim));
      const auto words = std::span(found).subspan(begin, c.record.size_words());
      EXPECT_EQ(CheckRow(c.record, row, values, 0.0, words), "") << Describe(c.record);
      CopyRow(c.record, row, words, std::span(expected).subspan(begin, c.record.size_words()));
    });
    EXPECT_EQ(found, expected) << Describe(c.record);
  });
}

// Each row's elements, and nothing else, are what DecodeRow says. Products of a half and at most 8 bits are
// exact in a float.
void CheckDecode(const CopyCase& c, const std::vector<uint32_t>& records) {
  const StoredKv kv = MakeKv(c.kv);
  std::vector<double> expected(kv.values.begin(), kv.values.end());
  ForEachRow(c, kv, [&](size_t begin, const RecordRow& row, size_t entry) {
    const auto decoded = DecodeRow(c.record, std::span(records).subspan(begin, c.record.size_words()), row);
    for (uint32_t i = 0; i < c.kv.head_dim; ++i) expected[entry + i] = NearestElement(c.kv.type, decoded[i]);
  });
  ForEachHostPool([&](host::ThreadPool& pool) {
    HostRun run;
    const Buffer* from = run.Values(records);
    Buffer* to = run.Values(kv.words);
    host::DecodeRecords(pool, *from, c.record, c.n_groups, c.first_token, c.kv, to);
    const std::vector<uint32_t> words = run.Read<uint32_t>(to);
    for (size_t i = 0; i < expected.size(); ++i) {
      float found = 0.0F;
      if (c.kv.type == KvType::kF32) {
        std::memcpy(&found, &words[i], sizeof(found));
      } else {
        found = HalfToFloat(static_cast<uint16_t>(words[i / 2] >> (16 * (i % 2))));
      }
      ASSERT_EQ(found, expected[i]) << "element " << i << ", " << Describe(c.record);
    }
  });
}

// What EncodeRow makes of uneven values.
std::vector<uint32_t> MakeRecords(const CopyCase& c) {
  const StoredKv kv = MakeKv(c.kv);
  const std::vector<float> values = UnevenFloats(kv.values.size(), c.kv.head_dim, 22);
  std::vector<uint32_t> records(c.record_words(), kGarbage);
  ForEachRow(c, kv, [&](size_t begin, const RecordRow& row, size_t entry) {
    EncodeRow(c.record, row, std::span(values).subspan(entry, c.kv.head_dim),
              std::span(records).subspan(begin, c.record.size_words()));
  });
  return records;
}

TEST(HostRecords, EncodesAndDecodesRecords) {
  constexpr uint32_t kHeadDims[] = {64, 66, 8, 80, 128, 256};
  constexpr uint32_t kGroups[] = {4, 1, 3, 8, 16};
  for (const KvType type : {KvType::kF16, KvType::kF32}) {
    uint32_t turn = 0;
    for (const auto& [k_type, v_type] : AllKvPairs()) {
      for (const bool together : {true, false}) {
        CopyCase c;
        c.kv = {type, 1, 1 + turn % 3, kHeadDims[turn % 6], 40};
        c.record = {k_type, v_type, together ? c.kv.n_kv_heads : 1, c.kv.head_dim, kGroups[turn % 5]};
        c.first_token = turn % 4;
        c.n_groups = 35 / c.record.group_tokens;
        CheckEncode(c);
        CheckDecode(c, MakeRecords(c));
        ++turn;
      }
    }
  }
}

// One record of one entry: K is what is looked at, V is zeros.
CopyCase OneRow(KvType type, uint32_t head_dim, KvType kv_type = KvType::kF32) {
  return {.record = {type, type, 1, head_dim, 1}, .kv = {kv_type, 1, 1, head_dim, 1}, .n_groups = 1};
}

// Numbers halfway between two neighbours, in rows whose scale is 1, go to the even one.
TEST(HostRecords, RoundsHalvesOfAStepToEven) {
  constexpr uint32_t kDims = 256;
  for (const KvType type : {KvType::kF16, KvType::kFp8, KvType::kInt8, KvType::kInt4}) {
    std::vector<float> kv(2 * kDims);
    for (uint32_t i = 0; i < kDims; ++i) {
      const double n = i / 2 + 0.5;
      double x = n;  // int8
      if (type == KvType::kInt4) x = std::fmod(n, 8.0);
      if (type == KvType::kF16) x = (1024 + n) * std::ldexp(1.0, static_cast<int>(i % 40) - 30);
      if (type == KvType::kF16 && i % 40 < 6) x = n * 0x1p-24;  // subnormal
      if (type == KvType::kFp8) x = (8 + i % 8 + 0.5) * std::ldexp(1.0, static_cast<int>(i / 8 % 15) - 9);
      if (type == KvType::kFp8 && i < 16) x = (i % 8 + 0.5) * 0x1p-9;  // subnormal
      kv[i] = static_cast<float>((i % 3 == 0 ? -1.0 : 1.0) * std::min(x, type == KvType::kFp8 ? 416.0 : 1e9));
    }
    for (uint32_t i = 31; i < kDims; i += 32) {  // what makes the scale 1
      if (type == KvType::kFp8) kv[i] = 448.0F;
      if (type == KvType::kInt8) kv[i] = -127.0F;
      if (type == KvType::kInt4) kv[i] = -8.0F;
    }
    const CopyCase c = OneRow(type, kDims);
    std::vector<uint32_t> expected(c.record_words());
    EncodeRow(c.record, {0, 0, 0}, std::span(kv).first(kDims), expected);
    EncodeRow(c.record, {1, 0, 0}, std::span(kv).subspan(kDims), expected);
    ForEachHostPool([&](host::ThreadPool& pool) {
      HostRun run;
      Buffer* to = run.Values(std::vector<uint32_t>(c.record_words(), kGarbage));
      host::EncodeRecords(pool, *run.Values(kv), c.kv, 0, 1, c.record, to);
      EXPECT_EQ(run.Read<uint32_t>(to), expected) << Describe(c.record);
    });
  }
}

// Every number of fp8, int8 and int4 there is, with scales of one, negative, and too small for a normal half.
TEST(HostRecords, DecodesEveryElement) {
  for (const KvType type : {KvType::kFp8, KvType::kInt8, KvType::kInt4}) {
    for (const uint32_t scale : {0x3c00U, 0xb800U, 0x0003U, 0x83ffU, 0U}) {
      for (const KvType kv_type : {KvType::kF32, KvType::kF16}) {
        const CopyCase c = OneRow(type, 256, kv_type);
        std::vector<uint32_t> records(c.record_words(), scale | scale << 16);
        for (uint32_t i = 0; i < c.record.scales_begin_words(); ++i) {
          records[i] = 4 * i | (4 * i + 1) << 8 | (4 * i + 2) << 16 | (4 * i + 3) << 24;
          if (type == KvType::kFp8) records[i] &= i % 32 == 31 ? 0xfeffffffU : 0xffffffffU;  // no NaN
        }
        CheckDecode(c, records);
      }
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
