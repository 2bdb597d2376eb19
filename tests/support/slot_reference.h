// The scalar references of the operations on KV records: plain loops that follow runtime/device/kv_record.h
// and device.h. Nothing here shares a table or a trick with the kernels: numbers are found by search.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/device/device.h"
#include "shaders/shared/step_params.h"

namespace kvrun::testing {

inline constexpr KvType kAllKvTypes[] = {KvType::kF32, KvType::kF16, KvType::kFp8, KvType::kInt8,
                                         KvType::kInt4};
const char* KvTypeText(KvType type);

// The number of a type's element (for fp8, int8 and int4 before it is scaled) that is nearest to x, halves of
// a step to the even neighbour; beyond the largest, the largest.
double NearestElement(KvType type, double x);

// A row: K (plane 0) or V (plane 1) of one entry and head; its place in a record's words.
struct RecordRow {
  uint32_t plane = 0;
  uint32_t head = 0;
  uint32_t entry = 0;
};

std::vector<double> DecodeRow(const KvRecordShape& record, std::span<const uint32_t> words,
                              const RecordRow& row);
// Only the row's own words, and its halves of words of scales.
void EncodeRow(const KvRecordShape& record, const RecordRow& row, std::span<const float> values,
               std::span<uint32_t> words);
// Copies exactly what EncodeRow would write.
void CopyRow(const KvRecordShape& record, const RecordRow& row, std::span<const uint32_t> from,
             std::span<uint32_t> to);
// Whether the row is `values`, each known to +-tolerance, rounded to nearest: scales too, and elements by the
// scales that are there. Divisions may be off by a few units in the last place. Empty, or what is wrong.
std::string CheckRow(const KvRecordShape& record, const RecordRow& row, std::span<const double> values,
                     double tolerance, std::span<const uint32_t> words);

// The space of records (runtime/device/entry_space.h), by matrices.
std::vector<double> RotatedRow(std::span<const double> row);
std::vector<double> RotatedBackRow(std::span<const double> row);
std::vector<double> IntoSpaceRow(std::span<const double> row, std::span<const float> mean);
std::vector<double> OutOfSpaceRow(std::span<const double> row, std::span<const float> mean);
// What floats may be off by on either way: each of log2(n) sums, the mean, signs and the factor rounds once,
// and an element is n of the row's / sqrt(n).
double SpaceTolerance(std::span<const double> row, std::span<const float> mean);

uint32_t StreamOf(const SlotShape& shape, uint32_t n_kv_heads, uint32_t sequence, uint32_t kv_head);
// Where a position lies in the window: the record's first word, and the entry.
struct WindowPlace {
  size_t record_begin = 0;
  uint32_t entry = 0;
};
WindowPlace PlaceOf(const SlotShape& shape, uint32_t stream, uint32_t position);

// A SlotSource's content.
struct SlotReferenceSource {
  SlotShape shape;
  std::span<const uint32_t> slots;
  std::span<const uint32_t> tables;
};
struct SlotReferenceArgs {
  std::span<const StepToken> tokens;
  uint32_t n_heads = 0;
  uint32_t n_kv_heads = 0;
  uint32_t head_dim = 0;
  std::span<const SlotReferenceSource> sources;
  // [n_sequences, n_kv_heads, 2, head_dim]: of the records' space, from which the output is brought back.
  // Empty: records hold entries as they are.
  std::span<const float> means = {};
  float score_cap = 0.0F;
  float score_scale = 0.0F;
};
// An entry of args.sources[source].
struct SlotEntry {
  uint32_t source = 0;
  uint32_t slot = 0;
  uint32_t entry = 0;
};
// What a query row gives to the entries that count, one after another.
struct RowWeights {
  std::vector<SlotEntry> entries;
  std::vector<double> weights;
};
// [n_tokens, n_heads * head_dim]; qkv as in AttentionArgs. row_weights: null, or becomes those of
// [n_tokens * n_heads].
std::vector<double> AttendSlotsReference(const SlotReferenceArgs& args, std::span<const float> qkv,
                                         std::vector<RowWeights>* row_weights = nullptr);

}  // namespace kvrun::testing
