#include "tests/support/record_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/device/self_test_data.h"
#include "tests/support/slot_cases.h"
#include "tests/support/slot_reference.h"

namespace kvrun::testing {
namespace {

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

std::vector<float> KvValues(const CopyCase& c, uint32_t seed) {
  return UnevenFloats(c.kv.size_bytes() / KvElementBytes(c.kv.type), c.kv.head_dim, seed);
}

std::vector<uint32_t> StoredWords(const KvShape& kv, std::span<const float> values) {
  std::vector<uint32_t> words(kv.size_bytes() / sizeof(uint32_t));
  if (kv.type == KvType::kF32) {
    std::memcpy(words.data(), values.data(), values.size_bytes());
    return words;
  }
  for (size_t i = 0; i < values.size(); ++i)
    words[i / 2] |= uint32_t{FloatToHalf(std::clamp(values[i], -65504.0F, 65504.0F))} << (16 * (i % 2));
  return words;
}

std::vector<float> ElementsOf(const KvShape& kv, std::span<const uint32_t> words) {
  std::vector<float> elements(kv.size_bytes() / KvElementBytes(kv.type));
  if (kv.type == KvType::kF32) {
    std::memcpy(elements.data(), words.data(), words.size_bytes());
    return elements;
  }
  for (size_t i = 0; i < elements.size(); ++i)
    elements[i] = HalfToFloat(static_cast<uint16_t>(words[i / 2] >> (16 * (i % 2))));
  return elements;
}

// Of the KV entry whose first element is `entry`.
std::span<const float> MeanOf(const CopyCase& c, std::span<const float> means, size_t entry) {
  const size_t plane = entry / c.kv.head_dim / c.kv.n_ctx;
  return means.subspan(c.means_begin() + plane * c.kv.head_dim, c.kv.head_dim);
}

// Calls visit(words of the record from its first on, row, index of the KV entry's first element).
template <typename Visitor>
void ForEachRow(const CopyCase& c, Visitor&& visit) {
  for (uint32_t kv_head = 0; kv_head < c.kv.n_kv_heads; ++kv_head) {
    for (uint32_t token = 0; token < c.n_groups * c.record.group_tokens; ++token) {
      const bool together = c.record.n_heads == c.kv.n_kv_heads;
      const uint32_t group = token / c.record.group_tokens;
      const size_t record = together ? group : size_t{kv_head} * c.n_groups + group;
      for (const uint32_t plane : {0U, 1U}) {
        const size_t entry = (size_t{kv_head} * 2 + plane) * c.kv.n_ctx + c.first_token + token;
        visit(record * c.record.size_words(),
              RecordRow{plane, together ? kv_head : 0, token % c.record.group_tokens}, entry * c.kv.head_dim);
      }
    }
  }
}

// What EncodeRow makes of values; `fill` in words that hold no row.
std::vector<uint32_t> Encoded(const CopyCase& c, std::span<const float> values, uint32_t fill) {
  std::vector<uint32_t> records(c.record_words(), fill);
  ForEachRow(c, [&](size_t begin, const RecordRow& row, size_t entry) {
    EncodeRow(c.record, row, values.subspan(entry, c.kv.head_dim),
              std::span(records).subspan(begin, c.record.size_words()));
  });
  return records;
}

}  // namespace

std::vector<CopyCase> CopyCases(KvType kv_type) {
  constexpr uint32_t kHeadDims[] = {64, 66, 8, 80, 128, 256};
  constexpr uint32_t kGroups[] = {4, 1, 3, 8, 16};
  std::vector<CopyCase> cases;
  uint32_t turn = 0;
  for (const auto& [k_type, v_type] : AllKvPairs()) {
    for (const bool together : {true, false}) {
      CopyCase c;
      c.kv = {kv_type, 1, 1 + turn % 3, kHeadDims[turn % 6], 40};
      c.record = {k_type,       v_type, together ? c.kv.n_kv_heads : 1, c.kv.head_dim, kGroups[turn % 5],
                  turn % 3 == 1};
      c.first_token = turn % 4;
      c.n_groups = 35 / c.record.group_tokens;
      c.in_space = turn / 2 % 2 == 1;
      cases.push_back(c);
      ++turn;
    }
  }
  return cases;
}

CopyCase OneRow(KvType type, uint32_t head_dim, KvType kv_type) {
  return {.record = {type, type, 1, head_dim, 1}, .kv = {kv_type, 1, 1, head_dim, 1}, .n_groups = 1};
}

std::vector<uint32_t> KvWords(const CopyCase& c) { return StoredWords(c.kv, KvValues(c, 21)); }

std::vector<float> Means(const CopyCase& c) {
  return RandomFloats(c.means_begin() + size_t{2} * c.kv.n_kv_heads * c.kv.head_dim, 23);
}

std::vector<uint32_t> MakeRecords(const CopyCase& c) { return Encoded(c, KvValues(c, 22), kGarbage); }

std::vector<uint32_t> HalvesOfAStep(const CopyCase& c) {
  const KvType type = c.record.k_type;
  const uint32_t n = c.kv.head_dim;
  std::vector<float> kv(2 * size_t{n});
  for (uint32_t i = 0; i < n; ++i) {
    const double half = i / 2 + 0.5;
    double x = half;  // int8
    // Most are whole steps, so that no other scale takes less.
    if (type == KvType::kInt4) x = i % 4 == 0 ? std::fmod(i / 4 + 0.5, 8.0) : 8.0;
    if (type == KvType::kF16) x = (1024 + half) * std::ldexp(1.0, static_cast<int>(i % 40) - 30);
    if (type == KvType::kF16 && i % 40 < 6) x = half * 0x1p-24;  // subnormal
    if (type == KvType::kFp8) x = (8 + i % 8 + 0.5) * std::ldexp(1.0, static_cast<int>(i / 8 % 15) - 9);
    if (type == KvType::kFp8 && i < 16) x = (i % 8 + 0.5) * 0x1p-9;  // subnormal
    const bool is_negative = type == KvType::kInt4 && i % 4 != 0 ? true : i % 3 == 0;
    kv[i] = static_cast<float>((is_negative ? -1.0 : 1.0) * std::min(x, type == KvType::kFp8 ? 416.0 : 1e9));
  }
  for (uint32_t i = 31; i < n; i += 32) {  // what makes the scale 1
    if (type == KvType::kFp8) kv[i] = 448.0F;
    if (type == KvType::kInt8) kv[i] = -127.0F;
    if (type == KvType::kInt4) kv[i] = -8.0F;
  }
  return StoredWords(c.kv, kv);
}

std::vector<uint32_t> RoundedHalves(const CopyCase& c) {
  return Encoded(c, ElementsOf(c.kv, HalvesOfAStep(c)), 0);
}

std::vector<uint32_t> EveryElement(const CopyCase& c, uint32_t scale) {
  std::vector<uint32_t> records(c.record_words(), scale | scale << 16);
  for (uint32_t i = 0; i < c.record.scales_begin_words(); ++i) {
    records[i] = 4 * i | (4 * i + 1) << 8 | (4 * i + 2) << 16 | (4 * i + 3) << 24;
    if (c.record.k_type == KvType::kFp8) records[i] &= i % 32 == 31 ? 0xfeffffffU : 0xffffffffU;  // no NaN
  }
  return records;
}

std::string CheckEncoded(const CopyCase& c, std::span<const uint32_t> records) {
  const std::vector<float> kv = ElementsOf(c.kv, KvWords(c));
  const std::vector<float> means = Means(c);
  std::string wrong;
  std::vector<uint32_t> expected(c.record_words());
  ForEachRow(c, [&](size_t begin, const RecordRow& row, size_t entry) {
    const auto floats = std::span(kv).subspan(entry, c.kv.head_dim);
    std::vector<double> values(floats.begin(), floats.end());
    double tolerance = 0.0;
    if (c.in_space) {
      tolerance = SpaceTolerance(values, MeanOf(c, means, entry));
      values = IntoSpaceRow(values, MeanOf(c, means, entry));
    }
    const auto words = records.subspan(begin, c.record.size_words());
    if (wrong.empty()) wrong = CheckRow(c.record, row, values, tolerance, words);
    CopyRow(c.record, row, words, std::span(expected).subspan(begin, c.record.size_words()));
  });
  for (size_t i = 0; wrong.empty() && i < expected.size(); ++i) {
    if (records[i] != expected[i])
      wrong = fmt::format("word {} is {:#x}, and belongs to no row", i, records[i]);
  }
  return wrong.empty() ? "" : fmt::format("{}: {}", Describe(c.record), wrong);
}

std::string CheckDecoded(const CopyCase& c, std::span<const uint32_t> records,
                         std::span<const uint32_t> kv_words) {
  const std::vector<float> before = ElementsOf(c.kv, KvWords(c));
  std::vector<double> expected(before.begin(), before.end());
  std::vector<double> tolerances(before.size());
  const std::vector<float> means = Means(c);
  ForEachRow(c, [&](size_t begin, const RecordRow& row, size_t entry) {
    std::vector<double> decoded = DecodeRow(c.record, records.subspan(begin, c.record.size_words()), row);
    double tolerance = 0.0;
    if (c.in_space) {
      tolerance = SpaceTolerance(decoded, MeanOf(c, means, entry));
      decoded = OutOfSpaceRow(decoded, MeanOf(c, means, entry));
    }
    for (uint32_t i = 0; i < c.kv.head_dim; ++i) {
      expected[entry + i] = NearestElement(c.kv.type, decoded[i]);
      // What is nearly halfway between two halves may go either way.
      const bool is_rounded = c.in_space && c.kv.type == KvType::kF16;
      tolerances[entry + i] =
          tolerance + (is_rounded ? 2 * std::abs(expected[entry + i]) * 0x1p-11 + 0x1p-24 : 0.0);
    }
  });
  const std::vector<float> found = ElementsOf(c.kv, kv_words);
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::abs(static_cast<double>(found[i]) - expected[i]) <= tolerances[i]) continue;
    return fmt::format("{}: element {} is {}, not {}", Describe(c.record), i, found[i], expected[i]);
  }
  return "";
}

}  // namespace kvrun::testing
