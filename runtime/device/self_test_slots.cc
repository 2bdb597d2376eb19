#include "runtime/device/self_test_slots.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "runtime/device/self_test_data.h"
#include "runtime/device/self_test_run.h"
#include "runtime/device/self_test_slot_data.h"

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

}  // namespace

Result<std::string> CheckRecords(Device& device, KvType kv_type, KvType type, bool in_space) {
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
  const std::vector<float> means = TestedSpace(kDims);
  const EntrySpace space = in_space ? EntrySpace::OfSequences(run.Floats(means), kDims) : EntrySpace();
  const Buffer* from = run.Floats(stored);
  Buffer* records = run.Poisoned(size_t{kGroups} * record.size_words());
  Buffer* back = run.Poisoned(stored.size());
  if (!run.status().ok()) return run.status();
  run.Run([&](CommandList& list) -> Status {
    KVRUN_RETURN_IF_ERROR(list.EncodeRecords(*from, kv, 0, kGroups, record, space, records));
    return list.DecodeRecords(*records, record, space, kGroups, 0, kv, back);
  });
  const std::vector<uint32_t> words = WordsOf(run, records, size_t{kGroups} * record.size_words());
  const std::vector<uint32_t> decoded = WordsOf(run, back, stored.size());

  std::vector<double> expected(values.begin(), values.end());
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
    in_records.push_back(value);
    found_in_records.push_back(static_cast<float>(value));
    found_back.push_back(static_cast<float>(KvAt(kv, decoded, i)));
  }
  for (size_t row = 0; in_space && row < count / kDims; ++row) {
    const auto mean = TestedMean(means, static_cast<uint32_t>(row / kv.n_ctx), kDims);
    const auto as_it_is = std::span(expected).subspan(row * kDims, kDims);
    IntoTestedSpace(mean, as_it_is);
    const auto in_record = std::span(in_records).subspan(row * kDims, kDims);
    OutOfTestedSpace(mean, in_record);
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
  const std::vector<float> space = TestedSpace(c.head_dim);
  if (c.in_space) args.space = EntrySpace::OfSequences(run.Floats(space), c.head_dim);
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
    if (!c.in_space) continue;
    const auto row = std::span(expected).last(c.head_dim);
    const uint32_t plane = head % SlotCase::kKvHeads * 2 + (is_value ? 1 : 0);
    IntoTestedSpace(TestedMean(space, plane, c.head_dim), row);
  }
  return run.Compare(expected, found, std::max(RoundingOf(c.k_type), RoundingOf(c.v_type)) + 1e-4);
}

Result<std::string> CheckSlotAttention(Device& device, const SlotCase& c, double tolerance) {
  SelfTestRun run(device);
  const SlotTestData data(c);
  SlotAttentionArgs args = data.Args(run);
  args.attention.scratch = run.Zeros(device.AttendSlotsScratchBytes(args));
  if (!run.status().ok()) return run.status();
  run.Run([&](CommandList& list) { return list.AttendSlots(args); });
  return run.Compare(data.Output(), args.attention.output, tolerance);
}

std::vector<SlotCase> CasesOfSources(const SlotCase& c) {
  SlotCase biased = c;
  biased.has_biases = true;
  SlotCase window = c;
  window.k_type = window.v_type = KvType::kF16;
  return {c, biased, c, window};
}

SlotAttentionArgs ArgsOfSources(const SlotCase& c) {
  SlotAttentionArgs args = c.args();
  args.n_sources = 0;
  for (const SlotCase& source : CasesOfSources(c)) args.Add({.shape = source.shape()});
  return args;
}

Result<std::string> CheckSlotSources(Device& device, const SlotCase& c) {
  SelfTestRun run(device);
  std::vector<SlotTestData> sources;
  for (const SlotCase& source : CasesOfSources(c)) sources.emplace_back(source);
  SlotAttentionArgs args = sources.front().Args(run);
  for (size_t i = 1; i < sources.size(); ++i) args.Add(sources[i].Args(run).sources[0]);
  args.attention.scratch = run.Zeros(device.AttendSlotsScratchBytes(args));
  if (!run.status().ok()) return run.status();
  run.Run([&](CommandList& list) { return list.AttendSlots(args); });

  // Each source's own result counts by its part of the total.
  std::vector<double> expected(size_t{c.n_heads()} * c.head_dim);
  std::vector<double> totals(c.n_heads());
  for (const SlotTestData& source : sources) {
    const std::vector<double> output = source.Output();
    for (uint32_t head = 0; head < c.n_heads(); ++head) {
      const double total = std::exp(source.LogTotal(head) - sources.front().LogTotal(head));
      totals[head] += total;
      for (uint32_t i = 0; i < c.head_dim; ++i)
        expected[head * c.head_dim + i] += total * output[head * c.head_dim + i];
    }
  }
  for (size_t i = 0; i < expected.size(); ++i) expected[i] /= totals[i / c.head_dim];
  return run.Compare(expected, args.attention.output, 3e-4);
}

}  // namespace kvrun
