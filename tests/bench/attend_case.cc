#include "tests/bench/attend_case.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <span>

#include "platform/base/units.h"
#include "runtime/device/self_test_data.h"
#include "runtime/model/half_float.h"
#include "shaders/shared/step_params.h"

namespace kvrun::testing {
namespace {

constexpr uint64_t kCaseBytes = uint64_t{128} << 20;
constexpr uint32_t kGroupEntries = 4;
constexpr uint32_t kWindowEntries = 64;

template <typename T>
std::span<T> Elements(Buffer& buffer) {
  const std::span<std::byte> bytes = buffer.host();
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

// One of these again and again: to make them takes longer than to copy them.
std::vector<uint16_t> ManyHalves(uint32_t seed) {
  std::vector<uint16_t> halves;
  for (const float value : RandomFloats(99'991, seed)) halves.push_back(FloatToHalf(value));
  return halves;
}

void FillHalves(std::span<uint16_t> to, std::span<const uint16_t> halves) {
  for (size_t i = 0; i < to.size(); i += halves.size())
    std::copy_n(halves.begin(), std::min(halves.size(), to.size() - i), to.begin() + i);
}

void FillRecord(const KvRecordShape& record, std::mt19937& random, std::span<const uint16_t> halves,
                std::span<uint32_t> to) {
  const auto fill = [&](KvType type, std::span<uint32_t> words) {
    if (type == KvType::kF16) {
      FillHalves({reinterpret_cast<uint16_t*>(words.data()), words.size() * 2},
                 halves.subspan(random() % 50'000));
      return;
    }
    // No number of fp8 has all bits of magnitude.
    const uint32_t bits = type == KvType::kFp8 ? 0xf7f7f7f7U : 0xffffffffU;
    for (uint32_t& word : words) word = static_cast<uint32_t>(random()) & bits;
  };
  fill(record.k_type, to.subspan(0, record.v_begin_words()));
  fill(record.v_type,
       to.subspan(record.v_begin_words(), record.scales_begin_words() - record.v_begin_words()));
  auto* const scales = reinterpret_cast<uint16_t*>(&to[0] + record.scales_begin_words());
  const uint32_t n_k_scales = record.v_scales_begin();
  const uint32_t n_scales = n_k_scales + record.n_rows() * record.row_scales(record.v_type);
  for (uint32_t i = 0; i < n_scales; ++i) {
    const KvType type = i < n_k_scales ? record.k_type : record.v_type;
    const float largest = type == KvType::kFp8 ? 448.0F : type == KvType::kInt8 ? 127.0F : 8.0F;
    scales[i] = FloatToHalf((0.5F + 0.5F / 1024 * static_cast<float>(random() % 1024)) / largest);
  }
}

std::unique_ptr<Buffer> SlotTable(const BufferMaker& make, const SlotShape& shape, std::mt19937* random) {
  auto table = make(shape.table_bytes(), BufferUse::kShared);
  const std::span<uint32_t> words = Elements<uint32_t>(*table);
  words[0] = shape.table_slots;
  words[1] = kGroupEntries;
  std::iota(words.begin() + 2, words.end(), 0U);
  if (random != nullptr) std::shuffle(words.begin() + 2, words.end(), *random);
  return table;
}

uint64_t RowsBytes(const KvRecordShape& record, uint32_t n_entries) {
  const uint64_t scales = record.row_scales(record.k_type) + record.row_scales(record.v_type);
  return uint64_t{n_entries} * record.n_heads *
         ((record.row_words(record.k_type) + record.row_words(record.v_type)) * 4 + scales * 2);
}

}  // namespace

AttendCase::AttendCase(const BufferMaker& make, const AttendShape& shape, uint32_t n_entries)
    : shape_(shape),
      n_entries_(n_entries),
      qkv_(make(uint64_t{shape.n_heads + 2 * shape.n_kv_heads} * shape.head_dim * sizeof(float),
                BufferUse::kShared)),
      step_(make(sizeof(StepParams), BufferUse::kUpload)),
      output_(make(uint64_t{shape.n_heads} * shape.head_dim * sizeof(float), BufferUse::kShared)) {
  const std::vector<float> qkv = RandomFloats(qkv_->size_bytes() / sizeof(float), 1);
  std::copy(qkv.begin(), qkv.end(), Elements<float>(*qkv_).begin());
  reinterpret_cast<StepParams*>(step_->host().data())->tokens[0] = {0, n_entries - 1, 0, 0};
}

AttentionArgs AttendCase::Attention() const {
  AttentionArgs args;
  args.qkv = qkv_.get();
  args.step = step_.get();
  args.kv_shape = {KvType::kF16, 1, shape_.n_kv_heads, shape_.head_dim, n_entries_};
  args.n_heads = shape_.n_heads;
  args.n_tokens = 1;
  args.output = output_.get();
  return args;
}

AttendCase AttendCase::InMemory(const BufferMaker& make, const AttendShape& shape, uint32_t n_entries) {
  AttendCase made(make, shape, n_entries);
  const std::vector<uint16_t> halves = ManyHalves(2);
  made.layer_bytes_ = made.Attention().kv_shape.size_bytes();
  uint64_t bytes = 0;
  do {
    Layer layer;
    layer.kv = make(made.layer_bytes_, BufferUse::kShared);
    FillHalves(Elements<uint16_t>(*layer.kv), halves);
    layer.args.attention = made.Attention();
    layer.args.attention.kv = layer.kv.get();
    made.layers_.push_back(std::move(layer));
    bytes += made.layer_bytes_;
  } while (bytes < kCaseBytes);
  return made;
}

AttendCase AttendCase::InSlots(const BufferMaker& make, const AttendShape& shape, uint32_t n_entries,
                               KvType k_type, KvType v_type) {
  AttendCase made(make, shape, n_entries);
  made.has_slots_ = true;
  std::mt19937 random(3);
  const std::vector<uint16_t> halves = ManyHalves(2);
  const uint32_t n_slots = (n_entries - kWindowEntries) / kGroupEntries;
  const SlotShape slots{.record = {k_type, v_type, shape.n_kv_heads, shape.head_dim, kGroupEntries},
                        .n_streams = 1,
                        .n_slots = n_slots,
                        .table_slots = n_slots};
  const SlotShape window{
      .record = {KvType::kF16, KvType::kF16, shape.n_kv_heads, shape.head_dim, kGroupEntries},
      .n_streams = 1,
      .n_slots = kWindowEntries / kGroupEntries,
      .n_window_slots = kWindowEntries / kGroupEntries,
      .table_slots = kWindowEntries / kGroupEntries};
  made.layer_bytes_ =
      RowsBytes(slots.record, n_slots * kGroupEntries) + RowsBytes(window.record, kWindowEntries);
  uint64_t bytes = 0;
  do {
    Layer layer;
    layer.kv = make(slots.size_bytes(), BufferUse::kShared);
    layer.window = make(window.size_bytes(), BufferUse::kShared);
    const auto fill = [&](const SlotShape& of, Buffer& buffer) {
      const std::span<uint32_t> words = Elements<uint32_t>(buffer);
      for (uint32_t i = 0; i < of.n_slots; ++i)
        FillRecord(of.record, random, halves,
                   words.subspan(size_t{i} * of.record.size_words(), of.record.size_words()));
    };
    fill(slots, *layer.kv);
    fill(window, *layer.window);
    layer.table = SlotTable(make, slots, &random);
    layer.window_table = SlotTable(make, window, nullptr);
    layer.args.attention = made.Attention();
    layer.args.Add({layer.kv.get(), slots, layer.table.get(), nullptr});
    layer.args.Add({layer.window.get(), window, layer.window_table.get(), nullptr});
    made.layers_.push_back(std::move(layer));
    bytes += slots.size_bytes() + window.size_bytes();
  } while (bytes < kCaseBytes);
  return made;
}

std::vector<Buffer*> AttendCase::Memory(uint32_t layer) const {
  const Layer& of = layers_[layer];
  if (of.window == nullptr) return {of.kv.get()};
  return {of.kv.get(), of.window.get()};
}

}  // namespace kvrun::testing
