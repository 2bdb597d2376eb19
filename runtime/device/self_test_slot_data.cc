#include "runtime/device/self_test_slot_data.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "runtime/device/self_test_data.h"
#include "shaders/shared/entry_space.h"

namespace kvrun {
namespace {

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

// Of the nth slot: every fifth has no weight.
float TestedBias(uint32_t nth) { return nth % 5 == 2 ? -1e30F : static_cast<float>(nth % 7) - 3.0F; }

// Element [i, j] of H D.
double SpaceFactor(size_t n, size_t i, size_t j) {
  constexpr uint32_t kSigns[] = {KVRUN_SIGN_WORDS};
  const size_t block = n & (~n + 1);
  if (i / block != j / block) return 0.0;
  const bool is_negative = std::popcount(i % block & j % block) % 2 != 0;
  const bool changes_sign = (kSigns[j / 32] >> (j % 32) & 1) != 0;
  return (is_negative != changes_sign ? -1.0 : 1.0) / std::sqrt(static_cast<double>(block));
}

Buffer* WordBuffer(SelfTestRun& run, std::span<const uint32_t> words) {
  std::vector<float> floats(words.size());
  std::memcpy(floats.data(), words.data(), words.size_bytes());
  return run.Floats(floats);
}

}  // namespace

std::vector<float> TestedSpace(uint32_t head_dim) {
  return RandomFloats((1 + SlotCase::kKvHeads) * 2 * size_t{head_dim}, 15);
}

std::span<const float> TestedMean(std::span<const float> space, uint32_t plane, uint32_t head_dim) {
  return space.subspan((2 + size_t{plane}) * head_dim, head_dim);
}

void IntoTestedSpace(std::span<const float> mean, std::span<double> row) {
  std::vector<double> result(row.size());
  for (size_t i = 0; i < row.size(); ++i) {
    for (size_t j = 0; j < row.size(); ++j) result[i] += SpaceFactor(row.size(), i, j) * (row[j] - mean[j]);
  }
  std::copy(result.begin(), result.end(), row.begin());
}

void OutOfTestedSpace(std::span<const float> mean, std::span<double> row) {
  std::vector<double> result(mean.begin(), mean.end());
  for (size_t i = 0; i < row.size(); ++i) {
    for (size_t j = 0; j < row.size(); ++j) result[i] += SpaceFactor(row.size(), j, i) * row[j];
  }
  std::copy(result.begin(), result.end(), row.begin());
}

double RecordReader::At(bool is_value, uint32_t row, uint32_t i) const {
  const KvType type = is_value ? shape_.v_type : shape_.k_type;
  const uint32_t bits = KvElementBits(type);
  const uint32_t begin = (is_value ? shape_.v_begin_words() : 0) + row * shape_.row_words(type);
  const uint32_t shifted = words_[begin + i * bits / 32] >> (i * bits % 32);
  const uint32_t element = bits == 32 ? shifted : shifted & ((1U << bits) - 1);
  if (shape_.row_scales(type) == 0) return Number(type, element);
  const uint32_t half = 2 * shape_.scales_begin_words() + (is_value ? shape_.v_scales_begin() : 0) +
                        row * shape_.row_scales(type) + (type == KvType::kInt4 ? i / kInt4BlockElements : 0);
  return Number(type, element) * HalfToFloat(static_cast<uint16_t>(words_[half / 2] >> (16 * (half % 2))));
}

double RecordReader::Number(KvType type, uint32_t element) {
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

SlotTestData::SlotTestData(const SlotCase& c)
    : c_(c),
      record_(c.shape().record),
      qkv_(RandomFloats(c.qkv_stride(), 14)),
      slots_(RandomSlots(c.shape())),
      table_({SlotCase::kSlots - 2, SlotCase::kGroupTokens - 1}) {
  for (float& value : qkv_) value *= 4.0F;  // so that some entries weigh much more than others
  for (uint32_t s = 0; s < SlotCase::kSlots - 2; ++s) {
    const uint32_t slot = (s * 3 + 1) % SlotCase::kSlots;
    const uint32_t n_entries = c.has_biases                ? 1 + s % SlotCase::kGroupTokens
                               : s == SlotCase::kSlots - 3 ? SlotCase::kGroupTokens - 1
                                                           : SlotCase::kGroupTokens;
    table_.push_back(c.has_biases ? SlotShape::BiasedSlot(slot, n_entries) : slot);
    for (uint32_t i = 0; i < n_entries; ++i)
      entries_.push_back({slot, i, c.has_biases ? TestedBias(s) : 0.0F});
  }
  for (uint32_t s = 0; c.has_biases && s < SlotCase::kSlots - 2; ++s)
    table_.push_back(std::bit_cast<uint32_t>(TestedBias(s)));
}

SlotAttentionArgs SlotTestData::Args(SelfTestRun& run) const {
  const StepToken token{.id = 0, .position = 0, .sequence = 0, .output_row = 0};
  SlotAttentionArgs args = c_.args();
  args.attention.qkv = run.Floats(qkv_);
  args.attention.step = run.Step({&token, 1});
  args.attention.output = run.Poisoned(size_t{c_.n_heads()} * c_.head_dim);
  args.sources[0].slots = WordBuffer(run, slots_);
  args.sources[0].table = WordBuffer(run, table_);
  if (c_.in_space) args.space = EntrySpace::OfSequences(run.Floats(TestedSpace(c_.head_dim)), c_.head_dim);
  return args;
}

double SlotTestData::Element(uint32_t head, bool is_value, const TestedEntry& entry, uint32_t i) const {
  const size_t begin = size_t{entry.slot} * record_.size_words();
  return RecordReader(record_, std::span(slots_).subspan(begin, record_.size_words()))
      .At(is_value, head / c_.group * SlotCase::kGroupTokens + entry.in_slot, i);
}

std::vector<double> SlotTestData::Scores(uint32_t head) const {
  std::vector<double> scores;
  for (const TestedEntry& entry : entries_) {
    double score = 0.0;
    for (uint32_t i = 0; i < c_.head_dim; ++i)
      score += double{qkv_[head * c_.head_dim + i]} * Element(head, false, entry, i);
    score /= std::sqrt(c_.head_dim);
    if (c_.score_cap > 0.0F) score = c_.score_cap * std::tanh(score / c_.score_cap);
    scores.push_back(score + entry.bias);
  }
  return scores;
}

double SlotTestData::LogTotal(uint32_t head) const {
  const std::vector<double> scores = Scores(head);
  const double maximum = *std::max_element(scores.begin(), scores.end());
  double total = 0.0;
  for (const double score : scores) total += std::exp(score - maximum);
  return maximum + std::log(total);
}

std::vector<double> SlotTestData::Weights(uint32_t head) const {
  std::vector<double> weights = Scores(head);
  const double log_total = LogTotal(head);
  for (double& weight : weights) weight = std::exp(weight - log_total);
  return weights;
}

std::vector<double> SlotTestData::Output() const {
  std::vector<double> output(size_t{c_.n_heads()} * c_.head_dim);
  for (uint32_t head = 0; head < c_.n_heads(); ++head) {
    const std::vector<double> weights = Weights(head);
    for (size_t e = 0; e < entries_.size(); ++e) {
      for (uint32_t i = 0; i < c_.head_dim; ++i)
        output[size_t{head} * c_.head_dim + i] += weights[e] * Element(head, true, entries_[e], i);
    }
    if (!c_.in_space) continue;
    const std::vector<float> space = TestedSpace(c_.head_dim);
    const auto row = std::span(output).subspan(size_t{head} * c_.head_dim, c_.head_dim);
    const auto mean = TestedMean(space, head / c_.group * 2 + 1, c_.head_dim);
    OutOfTestedSpace(mean, row);
  }
  return output;
}

}  // namespace kvrun
