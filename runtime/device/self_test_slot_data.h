// What self-tests of attention over slots attend to, and what comes of it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/device/self_test_run.h"
#include "runtime/device/self_test_slots.h"

namespace kvrun {

// Rows of a record as numbers, by the contract of kv_record.h.
class RecordReader {
 public:
  RecordReader(const KvRecordShape& shape, std::span<const uint32_t> words) : shape_(shape), words_(words) {}

  double At(bool is_value, uint32_t row, uint32_t i) const;

 private:
  static double Number(KvType type, uint32_t element);

  const KvRecordShape& shape_;
  std::span<const uint32_t> words_;
};

// EntrySpace::constants for one sequence of SlotCase::kKvHeads heads; the norms in front are of no use.
std::vector<float> TestedSpace(uint32_t head_dim);
// The mean of a plane of [kKvHeads, 2] there.
std::span<const float> TestedMean(std::span<const float> space, uint32_t plane, uint32_t head_dim);
// A row into the records' space and out of it, by the matrix (runtime/device/entry_space.h).
void IntoTestedSpace(std::span<const float> mean, std::span<double> row);
void OutOfTestedSpace(std::span<const float> mean, std::span<double> row);

struct TestedEntry {
  uint32_t slot = 0;
  uint32_t in_slot = 0;
  float bias = 0.0F;
};

class SlotTestData {
 public:
  explicit SlotTestData(const SlotCase& c);

  // But for the scratch memory; the output is poisoned.
  SlotAttentionArgs Args(SelfTestRun& run) const;
  // Those that count, in order.
  std::span<const TestedEntry> entries() const { return entries_; }
  // Softmax weights of the entries, of a query head.
  std::vector<double> Weights(uint32_t head) const;
  // The logarithm of what the softmax of a query head divides by.
  double LogTotal(uint32_t head) const;
  std::vector<double> Output() const;

 private:
  double Element(uint32_t head, bool is_value, const TestedEntry& entry, uint32_t i) const;
  std::vector<double> Scores(uint32_t head) const;

  SlotCase c_;
  KvRecordShape record_;
  std::vector<float> qkv_;
  std::vector<uint32_t> slots_;
  std::vector<uint32_t> table_;
  std::vector<TestedEntry> entries_;
};

}  // namespace kvrun
