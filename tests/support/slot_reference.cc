#include "tests/support/slot_reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <utility>

#include "runtime/model/tensor_type.h"
#include "shaders/shared/entry_space.h"
#include "tests/support/scalar_reference.h"

namespace kvrun::testing {
namespace {

constexpr double kLargestHalf = 65504.0;

KvType TypeOf(const KvRecordShape& record, const RecordRow& row) {
  return row.plane == 0 ? record.k_type : record.v_type;
}

uint32_t RowIndex(const KvRecordShape& record, const RecordRow& row) {
  return row.head * record.group_tokens + row.entry;
}

// In words.
size_t RowBegin(const KvRecordShape& record, const RecordRow& row) {
  return (row.plane == 0 ? 0 : record.v_begin_words()) +
         size_t{RowIndex(record, row)} * record.row_words(TypeOf(record, row));
}

// In halves from the record's begin.
size_t ScalesBegin(const KvRecordShape& record, const RecordRow& row) {
  return size_t{2} * record.scales_begin_words() + (row.plane == 0 ? 0 : record.v_scales_begin()) +
         size_t{RowIndex(record, row)} * record.row_scales(TypeOf(record, row));
}

uint16_t HalfAt(std::span<const uint32_t> words, size_t half_index) {
  return static_cast<uint16_t>(words[half_index / 2] >> (16 * (half_index % 2)));
}

void SetHalf(std::span<uint32_t> words, size_t half_index, uint16_t half) {
  const auto shift = static_cast<uint32_t>(16 * (half_index % 2));
  words[half_index / 2] = (words[half_index / 2] & ~(0xffffU << shift)) | uint32_t{half} << shift;
}

double Fp8Magnitude(uint32_t code) {
  const auto exponent = static_cast<int>(code >> 3);
  const int mantissa = static_cast<int>(code & 7);
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
}

// The fp8 code whose magnitude is nearest, of two the even one.
uint32_t NearestFp8(double magnitude) {
  static const std::vector<double> magnitudes = [] {
    std::vector<double> of_codes;
    for (uint32_t code = 0; code <= 0x7e; ++code) of_codes.push_back(Fp8Magnitude(code));
    return of_codes;
  }();
  const auto above = std::lower_bound(magnitudes.begin(), magnitudes.end(), magnitude);
  const auto code = static_cast<uint32_t>(above - magnitudes.begin());
  if (above == magnitudes.begin()) return code;
  if (above == magnitudes.end()) return code - 1;
  const double closer = (magnitude - above[-1]) - (*above - magnitude);
  return closer > 0 || (closer == 0 && code % 2 == 0) ? code : code - 1;
}

// Half a step of the halves around x: what rounding to the nearest may be off by.
double HalfStep(double x) {
  const int exponent = x == 0.0 ? -14 : std::max(std::ilogb(std::abs(x)), -14);
  return std::ldexp(1.0, exponent - 11);
}

uint32_t BitsOfElement(KvType type, uint32_t words_bits) {
  return type == KvType::kInt4 ? words_bits & 0xf : words_bits & 0xff;
}

double ElementValue(KvType type, uint32_t bits) {
  switch (type) {
    case KvType::kF32: return std::bit_cast<float>(bits);
    case KvType::kF16: return HalfToFloat(static_cast<uint16_t>(bits));
    case KvType::kFp8: return ((bits & 0x80) != 0 ? -1 : 1) * Fp8Magnitude(bits & 0x7f);
    case KvType::kInt8: return static_cast<int8_t>(bits);
    case KvType::kInt4: return bits >= 8 ? static_cast<int>(bits) - 16 : static_cast<int>(bits);
  }
  return 0.0;
}

uint32_t ElementBits(KvType type, double x) {
  switch (type) {
    case KvType::kF32: return std::bit_cast<uint32_t>(static_cast<float>(x));
    case KvType::kF16: return FloatToHalf(static_cast<float>(std::clamp(x, -kLargestHalf, kLargestHalf)));
    case KvType::kFp8: return (std::signbit(x) ? 0x80U : 0U) | NearestFp8(std::abs(x));
    case KvType::kInt8:
    case KvType::kInt4:
      return BitsOfElement(type, static_cast<uint32_t>(static_cast<int>(NearestElement(type, x))));
  }
  return 0;
}

uint32_t ElementAt(KvType type, std::span<const uint32_t> row, uint32_t i) {
  const uint32_t bits = KvElementBits(type);
  const uint32_t per_word = 32 / bits;
  const uint32_t shifted = row[i / per_word] >> (bits * (i % per_word));
  return bits == 32 ? shifted : shifted & ((1U << bits) - 1);
}

uint32_t ElementsPerScale(const KvRecordShape& record, KvType type) {
  return type == KvType::kInt4 ? kInt4BlockElements : record.head_dim;
}

// The scales that the values may get, before they are rounded to halves.
template <typename T>
std::vector<double> PossibleScales(KvType type, std::span<const T> values) {
  double largest = 0.0;
  for (const double value : values) {
    if (std::abs(value) > std::abs(largest)) largest = value;
  }
  if (type != KvType::kInt4) {
    return {std::min(std::abs(largest) / (type == KvType::kFp8 ? 448 : 127), kLargestHalf)};
  }
  std::vector<double> scales;
  for (const double factor : kInt4Factors) {
    scales.push_back(std::clamp(largest / -8 * factor, -kLargestHalf, kLargestHalf));
  }
  return scales;
}

// The squares of what int4 with this scale takes from the values.
template <typename T>
double LostSquares(std::span<const T> values, double scale) {
  double lost = 0.0;
  for (const double value : values) {
    const double nearest = scale == 0.0 ? 0.0 : scale * NearestElement(KvType::kInt4, value / scale);
    lost += (value - nearest) * (value - nearest);
  }
  return lost;
}

// The scale that they get.
template <typename T>
uint16_t ScaleOf(KvType type, std::span<const T> values) {
  uint16_t best = 0;
  double least = INFINITY;
  for (const double possible : PossibleScales(type, values)) {
    const uint16_t half = FloatToHalf(static_cast<float>(possible));
    const double lost = type == KvType::kInt4 ? LostSquares(values, HalfToFloat(half)) : 0.0;
    if (lost < least) {
      best = half;
      least = lost;
    }
  }
  return best;
}

template <typename T>
std::span<const T> ScaledTogether(const KvRecordShape& record, KvType type, std::span<const T> values,
                                  uint32_t scale) {
  const uint32_t begin = scale * ElementsPerScale(record, type);
  return values.subspan(begin, std::min(ElementsPerScale(record, type), record.head_dim - begin));
}

}  // namespace

const char* KvTypeText(KvType type) {
  switch (type) {
    case KvType::kF32: return "f32";
    case KvType::kF16: return "f16";
    case KvType::kFp8: return "fp8";
    case KvType::kInt8: return "int8";
    case KvType::kInt4: return "int4";
  }
  return "";
}

double NearestElement(KvType type, double x) {
  switch (type) {
    case KvType::kF32: return static_cast<float>(x);
    case KvType::kF16:
      return HalfToFloat(FloatToHalf(static_cast<float>(std::clamp(x, -kLargestHalf, kLargestHalf))));
    case KvType::kFp8: return std::copysign(Fp8Magnitude(NearestFp8(std::abs(x))), x);
    case KvType::kInt8: return std::clamp(std::nearbyint(x), -127.0, 127.0);
    case KvType::kInt4: return std::clamp(std::nearbyint(x), -8.0, 7.0);
  }
  return 0.0;
}

std::vector<double> DecodeRow(const KvRecordShape& record, std::span<const uint32_t> words,
                              const RecordRow& row) {
  const KvType type = TypeOf(record, row);
  std::vector<double> values;
  for (uint32_t i = 0; i < record.head_dim; ++i) {
    double value = ElementValue(type, ElementAt(type, words.subspan(RowBegin(record, row)), i));
    if (record.row_scales(type) > 0) {
      value *= HalfToFloat(HalfAt(words, ScalesBegin(record, row) + i / ElementsPerScale(record, type)));
    }
    values.push_back(value);
  }
  return values;
}

void EncodeRow(const KvRecordShape& record, const RecordRow& row, std::span<const float> values,
               std::span<uint32_t> words) {
  const KvType type = TypeOf(record, row);
  std::vector<double> divided(values.begin(), values.end());
  for (uint32_t s = 0; s < record.row_scales(type); ++s) {
    const auto block = ScaledTogether(record, type, values, s);
    const uint16_t half = ScaleOf(type, block);
    SetHalf(words, ScalesBegin(record, row) + s, half);
    const double scale = HalfToFloat(half);
    for (size_t i = 0; i < block.size(); ++i) {
      divided[size_t{s} * ElementsPerScale(record, type) + i] = scale == 0.0 ? 0.0 : block[i] / scale;
    }
  }
  const std::span<uint32_t> to = words.subspan(RowBegin(record, row), record.row_words(type));
  std::fill(to.begin(), to.end(), 0U);
  const uint32_t bits = KvElementBits(type);
  for (uint32_t i = 0; i < record.head_dim; ++i) {
    to[i * bits / 32] |= ElementBits(type, divided[i]) << (i * bits % 32);
  }
}

void CopyRow(const KvRecordShape& record, const RecordRow& row, std::span<const uint32_t> from,
             std::span<uint32_t> to) {
  const KvType type = TypeOf(record, row);
  std::copy_n(from.begin() + static_cast<ptrdiff_t>(RowBegin(record, row)), record.row_words(type),
              to.begin() + static_cast<ptrdiff_t>(RowBegin(record, row)));
  for (uint32_t s = 0; s < record.row_scales(type); ++s) {
    SetHalf(to, ScalesBegin(record, row) + s, HalfAt(from, ScalesBegin(record, row) + s));
  }
}

namespace {

// Whether it is one of those that the values, each known to +-tolerance, may get; of int4, one that takes
// about as little as any. Empty, or what is wrong.
std::string CheckScale(KvType type, std::span<const double> block, double tolerance, double scale) {
  double nearest = INFINITY;  // of the possible scales
  double least = INFINITY;    // lost squares of any
  for (const double possible : PossibleScales(type, block)) {
    const double slack = HalfStep(possible) * (1 + 0x1p-8) + tolerance / (type == KvType::kInt4 ? 8 : 127);
    // Of two of nearly one magnitude, either may have been taken for the largest of a block of int4.
    const bool other_sign = type == KvType::kInt4 && tolerance > 0 && std::abs(scale + possible) <= slack;
    const double off = other_sign ? 0.0 : std::max(std::abs(scale - possible) - slack, 0.0);
    nearest = std::min(nearest, off);
    if (type != KvType::kInt4) continue;
    least = std::min(least, LostSquares(block, HalfToFloat(FloatToHalf(static_cast<float>(possible)))));
  }
  if (!(nearest <= 0.0)) return fmt::format("scale is {}", scale);
  if (type != KvType::kInt4) return "";
  const auto n = static_cast<double>(block.size());
  // Each value's loss may be off by the tolerance, and by the roundoff of a float of its size. A scale of the
  // other sign clamps on the other side: one step more.
  double largest = 0.0;
  for (const double value : block) largest = std::max(largest, std::abs(value));
  const double off = tolerance + largest * 0x1p-20;
  const double lost = LostSquares(block, scale);
  const double slack = 2 * std::sqrt(n * least) * off + n * off * off + (tolerance > 0 ? scale * scale : 0.0);
  if (!(lost <= least + slack)) return fmt::format("scale {} takes {}, another {}", scale, lost, least);
  return "";
}

}  // namespace

std::string CheckRow(const KvRecordShape& record, const RecordRow& row, std::span<const double> values,
                     double tolerance, std::span<const uint32_t> words) {
  constexpr double kDivision = 8 * 0x1p-24;
  const KvType type = TypeOf(record, row);
  const std::span<const uint32_t> found = words.subspan(RowBegin(record, row), record.row_words(type));
  const auto where = [&] {
    return fmt::format("{} of entry {}, head {} ({})", row.plane == 0 ? "K" : "V", row.entry, row.head,
                       KvTypeText(type));
  };
  const uint32_t used_bits = record.head_dim * KvElementBits(type);
  if (used_bits % 32 != 0 && found.back() >> (used_bits % 32) != 0) return where() + ": padding is not zero";

  std::vector<double> scales(record.head_dim, 1.0);
  for (uint32_t s = 0; s < record.row_scales(type); ++s) {
    const auto block = ScaledTogether(record, type, values, s);
    const double scale = HalfToFloat(HalfAt(words, ScalesBegin(record, row) + s));
    const std::string wrong = CheckScale(type, block, tolerance, scale);
    if (!wrong.empty()) return fmt::format("{}: block {}: {}", where(), s, wrong);
    for (size_t i = 0; i < block.size(); ++i) scales[size_t{s} * ElementsPerScale(record, type) + i] = scale;
  }
  for (uint32_t i = 0; i < record.head_dim; ++i) {
    const double element = ElementValue(type, ElementAt(type, found, i));
    const double x = scales[i] == 0.0 ? 0.0 : values[i] / scales[i];
    const double slack = scales[i] == 0.0 ? 0.0 : std::abs(x) * kDivision + tolerance / std::abs(scales[i]);
    if (!(std::abs(element - x) <= std::abs(NearestElement(type, x) - x) + slack))
      return fmt::format("{}: element {} is {} and not {} (scale {})", where(), i, element, x, scales[i]);
  }
  return "";
}

namespace {

// Element [i, j] of the matrix that rotates a row of n.
double RotationAt(size_t n, size_t i, size_t j) {
  constexpr uint32_t kSigns[] = {KVRUN_SIGN_WORDS};
  const size_t block = n & (~n + 1);
  if (i / block != j / block) return 0.0;
  const bool is_negative = std::popcount(i % block & j % block) % 2 != 0;
  const bool changes_sign = (kSigns[j / 32] >> (j % 32) & 1) != 0;
  return (is_negative != changes_sign ? -1 : 1) / std::sqrt(static_cast<double>(block));
}

}  // namespace

std::vector<double> RotatedRow(std::span<const double> row) {
  std::vector<double> rotated(row.size());
  for (size_t i = 0; i < row.size(); ++i) {
    for (size_t j = 0; j < row.size(); ++j) rotated[i] += RotationAt(row.size(), i, j) * row[j];
  }
  return rotated;
}

// The matrix is orthogonal: its inverse is the same, with rows and columns exchanged.
std::vector<double> RotatedBackRow(std::span<const double> row) {
  std::vector<double> back(row.size());
  for (size_t i = 0; i < row.size(); ++i) {
    for (size_t j = 0; j < row.size(); ++j) back[i] += RotationAt(row.size(), j, i) * row[j];
  }
  return back;
}

std::vector<double> IntoSpaceRow(std::span<const double> row, std::span<const float> mean) {
  std::vector<double> centred(row.begin(), row.end());
  for (size_t i = 0; i < centred.size(); ++i) centred[i] -= mean[i];
  return RotatedRow(centred);
}

std::vector<double> OutOfSpaceRow(std::span<const double> row, std::span<const float> mean) {
  std::vector<double> back = RotatedBackRow(row);
  for (size_t i = 0; i < back.size(); ++i) back[i] += mean[i];
  return back;
}

double SpaceTolerance(std::span<const double> row, std::span<const float> mean) {
  double largest = 0.0;
  for (size_t i = 0; i < row.size(); ++i) largest = std::max(largest, std::abs(row[i]) + std::abs(mean[i]));
  const auto n = static_cast<double>(row.size());
  return largest * std::sqrt(n) * (std::log2(n) + 4) * 0x1p-24;
}

uint32_t StreamOf(const SlotShape& shape, uint32_t n_kv_heads, uint32_t sequence, uint32_t kv_head) {
  return shape.record.n_heads == n_kv_heads ? sequence : sequence * n_kv_heads + kv_head;
}

WindowPlace PlaceOf(const SlotShape& shape, uint32_t stream, uint32_t position) {
  const uint32_t group = shape.record.group_tokens;
  const uint32_t slot = shape.n_slots - shape.n_window_slots + (position / group) % shape.n_window_slots;
  return {(size_t{stream} * shape.stream_slots() + slot) * shape.record.size_words(), position % group};
}

namespace {

// What tables name, of one KV head: [n_entries, head_dim] each.
struct Entries {
  std::vector<double> keys;
  std::vector<double> values;
  std::vector<double> biases;  // of an entry
  std::vector<SlotEntry> places;
};

// Adds those of a stream of the nth source, and of a head of its records.
void AddEntries(const SlotReferenceSource& source, uint32_t nth, uint32_t stream, uint32_t head_in_record,
                Entries* to) {
  const KvRecordShape& record = source.shape.record;
  const uint32_t table_slots = source.shape.table_slots;
  const bool has_biases = source.shape.has_biases;
  const size_t table_words = size_t{2} + (has_biases ? 2 : 1) * table_slots;
  const auto table = source.tables.subspan(stream * table_words, table_words);
  for (uint32_t s = 0; s < table[0]; ++s) {
    const uint32_t slot = has_biases ? table[2 + s] & 0xffffff : table[2 + s];
    const uint32_t n_entries = has_biases          ? (table[2 + s] >> 24) + 1
                               : s + 1 == table[0] ? table[1]
                                                   : record.group_tokens;
    const auto words = source.slots.subspan(
        (size_t{stream} * source.shape.stream_slots() + slot) * record.size_words(), record.size_words());
    for (uint32_t e = 0; e < n_entries; ++e) {
      to->places.push_back({nth, slot, e});
      to->biases.push_back(has_biases ? std::bit_cast<float>(table[2 + table_slots + s]) : 0.0);
      const std::vector<double> key = DecodeRow(record, words, {0, head_in_record, e});
      const std::vector<double> value = DecodeRow(record, words, {1, head_in_record, e});
      to->keys.insert(to->keys.end(), key.begin(), key.end());
      to->values.insert(to->values.end(), value.begin(), value.end());
    }
  }
}

}  // namespace

std::vector<double> AttendSlotsReference(const SlotReferenceArgs& args, std::span<const float> qkv,
                                         std::vector<RowWeights>* row_weights) {
  const uint32_t dims = args.head_dim;
  const size_t stride = size_t{args.n_heads + 2 * args.n_kv_heads} * dims;
  std::map<std::pair<uint32_t, uint32_t>, Entries> entries_of;  // of a sequence and a KV head
  std::vector<double> out(args.tokens.size() * args.n_heads * dims);
  for (size_t row = 0; row < args.tokens.size() * args.n_heads; ++row) {
    const size_t t = row / args.n_heads;
    const auto head = static_cast<uint32_t>(row % args.n_heads);
    const uint32_t kv_head = head / (args.n_heads / args.n_kv_heads);
    const uint32_t sequence = args.tokens[t].sequence;
    const auto [found, is_new] = entries_of.try_emplace({sequence, kv_head});
    Entries& entries = found->second;
    for (uint32_t nth = 0; nth < args.sources.size(); ++nth) {
      const SlotReferenceSource& source = args.sources[nth];
      if (!is_new || source.shape.n_slots == 0) continue;
      AddEntries(source, nth, StreamOf(source.shape, args.n_kv_heads, sequence, kv_head),
                 source.shape.record.n_heads == args.n_kv_heads ? kv_head : 0, &entries);
    }
    std::vector<double> scores(entries.keys.size() / dims);
    for (size_t entry = 0; entry < scores.size(); ++entry) {
      double score = 0.0;
      for (uint32_t i = 0; i < dims; ++i)
        score += entries.keys[entry * dims + i] * qkv[t * stride + size_t{head} * dims + i];
      scores[entry] = ScoreReference(score, dims, args.score_scale, args.score_cap) + entries.biases[entry];
    }
    const double maximum = *std::max_element(scores.begin(), scores.end());
    double total = 0.0;
    for (double& score : scores) total += score = std::exp(score - maximum);
    for (size_t entry = 0; entry < scores.size(); ++entry) {
      scores[entry] /= total;
      for (uint32_t i = 0; i < dims; ++i)
        out[row * dims + i] += scores[entry] * entries.values[entry * dims + i];
    }
    if (row_weights != nullptr) row_weights->push_back({entries.places, std::move(scores)});
    if (args.means.empty()) continue;
    const size_t plane = (size_t{sequence} * args.n_kv_heads + kv_head) * 2 + 1;
    const auto result = std::span(out).subspan(row * dims, dims);
    const std::vector<double> back = OutOfSpaceRow(result, args.means.subspan(plane * dims, dims));
    std::copy(back.begin(), back.end(), result.begin());
  }
  return out;
}

}  // namespace kvrun::testing
