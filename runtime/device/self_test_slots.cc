#include "runtime/device/self_test_slots.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "runtime/device/self_test_data.h"
#include "runtime/device/self_test_run.h"

namespace kvrun {
namespace {

// Half a step of a type, as a part of the largest of those that share a scale, and what the scale's own
// rounding adds: a clamped element is off by up to 2^-11 of itself.
double RoundingOf(KvType type) {
  switch (type) {
    case KvType::kF32: return 0.0;
    case KvType::kF16: return 0x1p-11;
    case KvType::kFp8: return 0x1p-4 + 0x1p-10;
    case KvType::kInt8: return 0.5 / 127 + 0x1p-10;
    case KvType::kInt4: return 1.0 / 8 + 0x1p-10;  // the largest may be at 8, where 7 is the last
  }
  return 0.0;
}

// Rows of a record as numbers, by the contract of kv_record.h.
class RecordReader {
 public:
  RecordReader(const KvRecordShape& shape, std::span<const uint32_t> words) : shape_(shape), words_(words) {}

  double At(bool is_value, uint32_t row, uint32_t i) const {
    const KvType type = is_value ? shape_.v_type : shape_.k_type;
    const uint32_t bits = KvElementBits(type);
    const uint32_t begin = (is_value ? shape_.v_begin_words() : 0) + row * shape_.row_words(type);
    const uint32_t shifted = words_[begin + i * bits / 32] >> (i * bits % 32);
    const uint32_t element = bits == 32 ? shifted : shifted & ((1U << bits) - 1);
    if (shape_.row_scales(type) == 0) return Number(type, element);
    const uint32_t half = 2 * shape_.scales_begin_words() + (is_value ? shape_.v_scales_begin() : 0) +
                          row * shape_.row_scales(type) +
                          (type == KvType::kInt4 ? i / kInt4BlockElements : 0);
    return Number(type, element) * HalfToFloat(static_cast<uint16_t>(words_[half / 2] >> (16 * (half % 2))));
  }

 private:
  static double Number(KvType type, uint32_t element) {
    const auto fp8 = [](uint32_t code) {
      const auto exponent = static_cast<int>(code >> 3);
      const auto mantissa = static_cast<int>(code & 7);
      return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    };
    switch (type) {
      case KvType::kF32: return std::bit_cast<float>(element);
      case KvType::kF16: return HalfToFloat(static_cast<uint16_t>(element));
      case KvType::kFp8: return (element & 0x80) != 0 ? -fp8(element & 0x7f) : fp8(element);
      case KvType::kInt8: return static_cast<int8_t>(element);
      case KvType::kInt4: return static_cast<int>(element ^ 8U) - 8;
    }
    return 0.0;
  }

  const KvRecordShape& shape_;
  std::span<const uint32_t> words_;
};

std::vector<uint32_t> WordsOf(SelfTestRun& run, const Buffer* buffer, size_t count) {
  std::vector<uint32_t> words(count);
  const std::vector<std::byte> bytes = run.Bytes(buffer, count * sizeof(uint32_t));
  std::memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

// Element i of a row of K or V, of any record; from a buffer of halves or floats that KvShape describes.
double KvAt(const KvShape& kv, std::span<const uint32_t> words, size_t i) {
  if (kv.type == KvType::kF32) return std::bit_cast<float>(words[i]);
  return HalfToFloat(static_cast<uint16_t>(words[i / 2] >> (16 * (i % 2))));
}

// A scale that brings elements to about 1.
uint32_t RandomScale(KvType type, float random) {
  const uint32_t mantissa = FloatToHalf(random) & 0x3ffU;
  if (type == KvType::kInt8) return 0x2000U | mantissa;                                // from 2^-7 on
  if (type == KvType::kInt4) return 0x3000U | mantissa | (random < 0 ? 0x8000U : 0U);  // from 2^-3 on
  return 0x3800U | mantissa;                                                           // from 2^-1 on
}

// Any bits make a record, but for what is no number.
std::vector<uint32_t> RandomSlots(const SlotShape& shape) {
  const KvRecordShape& record = shape.record;
  std::vector<uint32_t> words(shape.size_bytes() / sizeof(uint32_t));
  const std::vector<float> random = RandomFloats(2 * words.size(), 13);
  for (size_t at = 0; at < words.size(); ++at) {
    const auto in_record = static_cast<uint32_t>(at % record.size_words());
    if (in_record >= record.scales_begin_words()) {
      for (const uint32_t i : {0U, 1U}) {
        const uint32_t half = 2 * (in_record - record.scales_begin_words()) + i;
        const KvType type = half < record.v_scales_begin() ? record.k_type : record.v_type;
        words[at] |= RandomScale(type, random[2 * at + i]) << (16 * i);
      }
      continue;
    }
    const KvType type = in_record < record.v_begin_words() ? record.k_type : record.v_type;
    if (type == KvType::kF32) {
      words[at] = std::bit_cast<uint32_t>(random[at]);
    } else if (type == KvType::kF16) {
      words[at] = uint32_t{FloatToHalf(random[2 * at])} | uint32_t{FloatToHalf(random[2 * at + 1])} << 16;
    } else {
      words[at] = std::bit_cast<uint32_t>(random[at]) * 0x9e3779b9U;
      if (type == KvType::kFp8) words[at] &= 0xbfbfbfbfU;  // below 2: no element outweighs all others
    }
  }
  return words;
}

struct TestedEntry {
  uint32_t slot = 0;
  uint32_t in_slot = 0;
  float bias = 0.0F;
};

// Of the nth slot: every fifth has no weight.
float BiasOf(uint32_t nth) { return nth % 5 == 2 ? -1e30F : static_cast<float>(nth % 7) - 3.0F; }

}  // namespace

Result<std::string> CheckRecords(Device& device, KvType kv_type, KvType type) {
  constexpr uint32_t kGroups = 5;
  constexpr uint32_t kDims = 72;
  const KvShape kv{kv_type, 1, SlotCase::kKvHeads, kDims, kGroups * SlotCase::kGroupTokens};
  const KvRecordShape record{type, type, SlotCase::kKvHeads, kDims, SlotCase::kGroupTokens};
  SelfTestRun run(device);
  const size_t count = kv.size_bytes() / KvElementBytes(kv_type);
  const std::vector<float> values = RandomFloats(count, 10);
  std::vector<float> stored = values;
  if (kv_type == KvType::kF16) {
    std::vector<uint16_t> halves(count);
    std::transform(values.begin(), values.end(), halves.begin(), FloatToHalf);
    stored.resize(count / 2);
    std::memcpy(stored.data(), halves.data(), count * sizeof(uint16_t));
  }
  const Buffer* from = run.Floats(stored);
  Buffer* records = run.Poisoned(size_t{kGroups} * record.size_words());
  Buffer* back = run.Poisoned(stored.size());
  if (!run.status().ok()) return run.status();
  run.Run([&](CommandList& list) -> Status {
    KVRUN_RETURN_IF_ERROR(list.EncodeRecords(*from, kv, 0, kGroups, record, records));
    return list.DecodeRecords(*records, record, kGroups, 0, kv, back);
  });
  const std::vector<uint32_t> words = WordsOf(run, records, size_t{kGroups} * record.size_words());
  const std::vector<uint32_t> decoded = WordsOf(run, back, stored.size());

  std::vector<double> expected;
  std::vector<float> found_in_records;
  std::vector<double> in_records;
  std::vector<float> found_back;
  for (size_t i = 0; i < count; ++i) {
    const auto plane = static_cast<uint32_t>(i / kDims / kv.n_ctx);
    const auto token = static_cast<uint32_t>(i / kDims % kv.n_ctx);
    const RecordReader reader(
        record, std::span(words).subspan(size_t{token / SlotCase::kGroupTokens} * record.size_words(),
                                         record.size_words()));
    const double value =
        reader.At(plane % 2 != 0, plane / 2 * SlotCase::kGroupTokens + token % SlotCase::kGroupTokens,
                  static_cast<uint32_t>(i % kDims));
    expected.push_back(values[i]);
    in_records.push_back(value);
    found_in_records.push_back(static_cast<float>(value));
    found_back.push_back(static_cast<float>(KvAt(kv, decoded, i)));
  }
  const auto encoded = run.Compare(expected, found_in_records, RoundingOf(type) + RoundingOf(kv_type) + 1e-6);
  if (!encoded.ok()) return Status(encoded.status().code(), "records: " + encoded.status().message());
  return run.Compare(in_records, found_back, RoundingOf(kv_type) + 1e-6);
}

Result<std::string> CheckRopeAndEncode(Device& device, const SlotCase& c) {
  constexpr uint32_t kPosition = 100;
  SelfTestRun run(device);
  const std::vector<float> qkv = RandomFloats(c.qkv_stride(), 11);
  const std::vector<float> angles = RandomFloats(c.head_dim, 12);
  const StepToken token{.id = 0, .position = kPosition, .sequence = 0, .output_row = 0};
  SlotAttentionArgs args = c.args();
  args.attention.qkv = run.Floats(qkv);
  args.attention.step = run.Step({&token, 1});
  args.attention.angles = run.Floats(angles);
  args.attention.rotary_dim = c.head_dim;
  args.attention.rope_halves = true;
  const Buffer* slots = args.sources[0].slots = run.Zeros(c.shape().size_bytes());
  if (!run.status().ok()) return run.status();
  run.Run([&](CommandList& list) { return list.RopeAndEncode(args); });

  const KvRecordShape record = c.shape().record;
  const std::vector<uint32_t> words = WordsOf(run, slots, c.shape().size_bytes() / sizeof(uint32_t));
  const uint32_t slot = SlotCase::kSlots - 2 + kPosition / SlotCase::kGroupTokens % 2;
  const RecordReader reader(
      record, std::span(words).subspan(size_t{slot} * record.size_words(), record.size_words()));
  std::vector<double> expected;
  std::vector<float> found;
  const uint32_t pairs = c.head_dim / 2;
  for (uint32_t head = 0; head < 2 * SlotCase::kKvHeads; ++head) {
    const float* from = &qkv[(c.n_heads() + head) * c.head_dim];
    const bool is_value = head >= SlotCase::kKvHeads;
    for (uint32_t i = 0; i < c.head_dim; ++i) {
      const double a = from[i % pairs];
      const double b = from[i % pairs + pairs];
      const double cosine = angles[2 * (i % pairs)];
      const double sine = angles[2 * (i % pairs) + 1];
      const double rotated = i < pairs ? a * cosine - b * sine : a * sine + b * cosine;
      expected.push_back(is_value ? from[i] : rotated);
      found.push_back(static_cast<float>(reader.At(
          is_value, head % SlotCase::kKvHeads * SlotCase::kGroupTokens + kPosition % SlotCase::kGroupTokens,
          i)));
    }
  }
  return run.Compare(expected, found, std::max(RoundingOf(c.k_type), RoundingOf(c.v_type)) + 1e-4);
}

Result<std::string> CheckSlotAttention(Device& device, const SlotCase& c) {
  SelfTestRun run(device);
  const SlotShape shape = c.shape();
  const KvRecordShape& record = shape.record;
  std::vector<float> qkv = RandomFloats(c.qkv_stride(), 14);
  for (float& value : qkv) value *= 4.0F;  // so that some entries weigh much more than others
  const std::vector<uint32_t> slots = RandomSlots(shape);
  std::vector<float> as_floats(slots.size());
  std::memcpy(as_floats.data(), slots.data(), slots.size() * sizeof(float));
  std::vector<uint32_t> table = {SlotCase::kSlots - 2, SlotCase::kGroupTokens - 1};
  std::vector<TestedEntry> entries;
  for (uint32_t s = 0; s < SlotCase::kSlots - 2; ++s) {
    const uint32_t slot = (s * 3 + 1) % SlotCase::kSlots;
    const uint32_t n_entries = c.has_biases                ? 1 + s % SlotCase::kGroupTokens
                               : s == SlotCase::kSlots - 3 ? SlotCase::kGroupTokens - 1
                                                           : SlotCase::kGroupTokens;
    table.push_back(c.has_biases ? SlotShape::BiasedSlot(slot, n_entries) : slot);
    for (uint32_t i = 0; i < n_entries; ++i) entries.push_back({slot, i, c.has_biases ? BiasOf(s) : 0.0F});
  }
  for (uint32_t s = 0; c.has_biases && s < SlotCase::kSlots - 2; ++s)
    table.push_back(std::bit_cast<uint32_t>(BiasOf(s)));
  std::vector<float> table_as_floats(table.size());
  std::memcpy(table_as_floats.data(), table.data(), table.size() * sizeof(float));
  const StepToken token{.id = 0, .position = 0, .sequence = 0, .output_row = 0};
  std::vector<double> expected(size_t{c.n_heads()} * c.head_dim);
  SlotAttentionArgs args = c.args();
  args.attention.qkv = run.Floats(qkv);
  args.attention.step = run.Step({&token, 1});
  args.attention.output = run.Poisoned(expected.size());
  args.attention.scratch = run.Zeros(device.AttendSlotsScratchBytes(args));
  args.sources[0].slots = run.Floats(as_floats);
  args.sources[0].table = run.Floats(table_as_floats);
  if (!run.status().ok()) return run.status();
  run.Run([&](CommandList& list) { return list.AttendSlots(args); });

  const auto n_entries = static_cast<uint32_t>(entries.size());
  for (uint32_t h = 0; h < c.n_heads(); ++h) {
    const auto element = [&](bool is_value, uint32_t entry, uint32_t i) {
      const size_t begin = size_t{entries[entry].slot} * record.size_words();
      return RecordReader(record, std::span(slots).subspan(begin, record.size_words()))
          .At(is_value, h / c.group * SlotCase::kGroupTokens + entries[entry].in_slot, i);
    };
    std::vector<double> weights(n_entries);
    double maximum = -INFINITY;
    for (uint32_t e = 0; e < n_entries; ++e) {
      double score = 0.0;
      for (uint32_t i = 0; i < c.head_dim; ++i)
        score += double{qkv[h * c.head_dim + i]} * element(false, e, i);
      weights[e] = score / std::sqrt(c.head_dim) + entries[e].bias;
      maximum = std::max(maximum, weights[e]);
    }
    double total = 0.0;
    for (double& weight : weights) total += weight = std::exp(weight - maximum);
    for (uint32_t e = 0; e < n_entries; ++e) {
      for (uint32_t i = 0; i < c.head_dim; ++i) {
        expected[size_t{h} * c.head_dim + i] += weights[e] / total * element(true, e, i);
      }
    }
  }
  return run.Compare(expected, args.attention.output, 3e-4);
}

}  // namespace kvrun
