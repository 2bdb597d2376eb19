#include "tests/bench/mass_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "platform/base/check.h"
#include "runtime/device/self_test_data.h"
#include "runtime/model/half_float.h"
#include "shaders/shared/step_params.h"
#include "tests/support/mass_reference.h"
#include "tests/support/or_die.h"
#include "tests/support/slot_reference.h"

namespace kvrun::testing {
namespace {

constexpr KvRecordShape kRecord{KvType::kF16, KvType::kF16, 1, kMassHeadDim, 1};
static_assert(kRecord.size_bytes() == size_t{2} * kMassHeadDim * 2);  // K, then V
constexpr KvShape kMemory{KvType::kF16, 1, kMassKvHeads, kMassHeadDim, kMassEntries};
constexpr uint32_t kPlaces = kMassKvHeads * kMassEntries;
constexpr uint32_t kMostMoments = 2;
constexpr uint32_t kMostRowMoments = 4;
constexpr double kTolerance = 3e-4;  // of the largest value; the self-tests'

template <typename T>
std::span<T> Values(Buffer& buffer) {
  const std::span<std::byte> bytes = buffer.host();
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

template <typename T>
void Fill(Buffer& buffer, std::span<const T> values) {
  std::memcpy(buffer.host().data(), values.data(), values.size_bytes());
  RunOrDie(buffer.Flush(0, values.size_bytes()));
}

std::unique_ptr<Buffer> FloatBuffer(const BufferMaker& make, size_t count, uint32_t seed) {
  auto buffer = make(count * sizeof(float), BufferUse::kShared);
  Fill<float>(*buffer, RandomFloats(count, seed));
  return buffer;
}

std::unique_ptr<Buffer> StepBuffer(const BufferMaker& make, std::span<const StepToken> tokens) {
  auto buffer = make(sizeof(StepParams), BufferUse::kUpload);
  std::copy(tokens.begin(), tokens.end(), reinterpret_cast<StepParams*>(buffer->host().data())->tokens);
  return buffer;
}

std::vector<uint16_t> RandomHalves(size_t count, uint32_t seed) {
  std::vector<uint16_t> halves;
  for (const float value : RandomFloats(count, seed)) halves.push_back(FloatToHalf(value));
  return halves;
}

// Each list's entries lie side by side, one list after another.
std::vector<uint32_t> Tables(const SlotShape& shape) {
  std::vector<uint32_t> words;
  for (uint32_t stream = 0; stream < shape.n_streams; ++stream) {
    words.insert(words.end(), {kMassEntries, 1});
    for (uint32_t i = 0; i < kMassEntries; ++i) words.push_back(stream * kMassEntries + i);
  }
  return words;
}

// Records' halves, as full attention has them: K of a KV head's entries, then V.
std::vector<uint16_t> InMemory(std::span<const uint16_t> records) {
  std::vector<uint16_t> halves(records.size());
  for (size_t place = 0; place < kPlaces; ++place) {
    const size_t head = place / kMassEntries;
    for (size_t is_value = 0; is_value < 2; ++is_value) {
      const size_t row = (2 * head + is_value) * kMassEntries + place % kMassEntries;
      std::copy_n(&records[(2 * place + is_value) * kMassHeadDim], kMassHeadDim, &halves[row * kMassHeadDim]);
    }
  }
  return halves;
}

// Each of n_parts by itself: a second moment is much smaller than a first one.
void CheckClose(Buffer& found, std::span<const double> expected, size_t n_parts = 1) {
  RunOrDie(found.Invalidate(0, found.size_bytes()));
  const std::span<const float> values = Values<const float>(found);
  const size_t count = expected.size() / n_parts;
  for (size_t begin = 0; begin < expected.size(); begin += count) {
    double largest = 0.0;
    for (const double value : expected.subspan(begin, count)) largest = std::max(largest, std::abs(value));
    for (size_t i = begin; i < begin + count; ++i)
      KVRUN_CHECK(std::abs(values[i] - expected[i]) <= kTolerance * largest);
  }
}

void Clear(Buffer& buffer) {
  std::fill(buffer.host().begin(), buffer.host().end(), std::byte{0});
  RunOrDie(buffer.Flush(0, buffer.size_bytes()));
}

std::vector<StepToken> LastRows() {
  std::vector<StepToken> rows;
  for (uint32_t row = 0; row < kMassRows; ++row) rows.push_back({0, kMassEntries - kMassRows + row, 0, 0});
  return rows;
}

}  // namespace

SlotMassCase::SlotMassCase(const BufferMaker& make)
    : shape_{.record = kRecord,
             .n_streams = kMassKvHeads,
             .n_slots = kPlaces,
             .n_window_slots = 0,
             .table_slots = kMassEntries,
             .is_shared = true},
      qkv_(FloatBuffer(make, size_t{kMassHeads + 2 * kMassKvHeads} * kMassHeadDim, 1)),
      step_(StepBuffer(make, std::vector<StepToken>{{0, kMassEntries - 1, 0, 0}})),
      output_(make(uint64_t{kMassHeads} * kMassHeadDim * sizeof(float), BufferUse::kShared)) {
  const std::vector<uint16_t> records = RandomHalves(size_t{kPlaces} * 2 * kMassHeadDim, 2);
  const std::vector<uint16_t> memory = InMemory(records);
  const std::vector<uint32_t> tables = Tables(shape_);
  for (uint32_t i = 0; i < kMassLayers; ++i) {
    Layer layer{make(shape_.size_bytes(), BufferUse::kShared), make(shape_.table_bytes(), BufferUse::kShared),
                make(uint64_t{kMostMoments} * kPlaces * sizeof(float), BufferUse::kShared),
                make(kMemory.size_bytes(), BufferUse::kShared)};
    Fill<uint16_t>(*layer.slots, records);
    Fill<uint16_t>(*layer.memory, memory);
    Fill<uint32_t>(*layer.table, tables);
    Clear(*layer.mass);
    layers_.push_back(std::move(layer));
  }
}

SlotAttentionArgs SlotMassCase::Slots(uint32_t layer, uint32_t n_moments) const {
  const Layer& of = layers_[layer];
  SlotAttentionArgs args;
  args.attention = Memory(layer);
  args.mass_form = {.n_moments = std::max(n_moments, 1U)};
  args.Add({of.slots.get(), shape_, of.table.get(), n_moments == 0 ? nullptr : of.mass.get()});
  return args;
}

AttentionArgs SlotMassCase::Memory(uint32_t layer) const {
  AttentionArgs args;
  args.qkv = qkv_.get();
  args.step = step_.get();
  args.kv = layers_[layer].memory.get();
  args.kv_shape = kMemory;
  args.n_heads = kMassHeads;
  args.n_tokens = 1;
  args.output = output_.get();
  return args;
}

void SlotMassCase::Check(uint32_t n_moments,
                         const std::function<void(const SlotAttentionArgs&)>& attend) const {
  const SlotAttentionArgs args = Slots(0, n_moments);
  Clear(*output_);
  Clear(*layers_[0].mass);
  attend(args);

  const std::vector<StepToken> tokens = {{0, kMassEntries - 1, 0, 0}};
  const SlotReferenceSource source{shape_, Values<const uint32_t>(*layers_[0].slots),
                                   Values<const uint32_t>(*layers_[0].table)};
  const SlotReferenceArgs reference{tokens, kMassHeads, kMassKvHeads, kMassHeadDim, {&source, 1}};
  std::vector<RowWeights> weights;
  CheckClose(*output_, AttendSlotsReference(reference, Values<const float>(*qkv_), &weights));
  if (n_moments == 0) return;
  std::vector<double> mass(size_t{n_moments} * kPlaces);
  SlotMassReference(reference, 1, weights, 0, args.mass_form, mass);
  CheckClose(*layers_[0].mass, mass, n_moments);
}

RowMassCase::RowMassCase(const BufferMaker& make)
    : queries_(FloatBuffer(make, size_t{kMassRows} * kMassHeads * kMassHeadDim, 3)),
      step_(StepBuffer(make, LastRows())),
      kv_(make(kMemory.size_bytes(), BufferUse::kShared)),
      sums_(make(uint64_t{kMassRows} * kMassHeads * 2 * sizeof(float), BufferUse::kShared)),
      mass_(make(uint64_t{kMostRowMoments} * kPlaces * sizeof(float), BufferUse::kShared)) {
  Fill<uint16_t>(*kv_, RandomHalves(size_t{kPlaces} * 2 * kMassHeadDim, 4));
  Clear(*mass_);
}

RowMassArgs RowMassCase::Args(uint32_t n_moments) const {
  return {.queries = queries_.get(),
          .step = step_.get(),
          .n_rows = kMassRows,
          .n_heads = kMassHeads,
          .kv = kv_.get(),
          .kv_shape = kMemory,
          .n_entries = kMassEntries,
          .sums = sums_.get(),
          .is_first = true,
          .mass = mass_.get(),
          .mass_stride = kMassEntries,
          .form = {.n_moments = n_moments}};
}

void RowMassCase::Check(uint32_t n_moments, const std::function<void(const RowMassArgs&)>& run) const {
  const RowMassArgs args = Args(n_moments);
  Clear(*mass_);
  run(args);

  std::vector<float> kv;
  for (const uint16_t half : Values<const uint16_t>(*kv_)) kv.push_back(HalfToFloat(half));
  const std::vector<StepToken> rows = LastRows();
  const RowMassReferenceArgs reference{
      Values<const float>(*queries_), rows, kMassHeads, kMemory, kv, 0, kMassEntries};
  std::vector<double> sums(size_t{kMassRows} * kMassHeads * 2);
  SumWeightsReference(reference, true, sums);
  CheckClose(*sums_, sums);
  std::vector<double> mass(size_t{n_moments} * kPlaces);
  AttentionMassReference(reference, sums, args.form, kMassEntries, 0, mass);
  CheckClose(*mass_, mass, n_moments);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

PairedRatio ComparePairs(std::span<const double> of, std::span<const double> to) {
  std::vector<double> ratios;
  for (size_t i = 0; i < of.size(); ++i) ratios.push_back(of[i] / to[i]);
  std::sort(ratios.begin(), ratios.end());
  const auto n = static_cast<double>(ratios.size());
  // The median is below the ratio of index `last` with a probability of at most 5 %.
  size_t last = 0;
  double below = std::pow(0.5, n);
  double term = below;
  while (true) {
    term *= (n - static_cast<double>(last)) / static_cast<double>(last + 1);
    if (below + term > 0.05) break;
    below += term;
    ++last;
  }
  return {Median(ratios), ratios[last], ratios[ratios.size() - 1 - last]};
}

std::string Text(const PairedRatio& ratio) {
  return fmt::format("{:.3f} ({:.3f} to {:.3f})", ratio.median, ratio.low, ratio.high);
}

}  // namespace kvrun::testing
