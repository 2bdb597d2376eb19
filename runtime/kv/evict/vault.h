// Where lists are while a prompt is computed, as the memory is the prompt's then: their records in a file,
// what else they are in memory. While a second document is read, what was kept of the first lies here.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "platform/base/status.h"
#include "runtime/kv/evict/scored_entries.h"
#include "runtime/kv/memory/kept_lists.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/store/spill_file.h"

namespace kvrun {

class Vault {
 public:
  // A list: the best first, where it is of a prompt.
  struct List {
    std::vector<uint32_t> positions;
    uint32_t n_low = 0;       // the last ones
    std::vector<float> mass;  // [positions, moments]
    std::vector<Recurrence> recurrences;
  };

  // The plan must outlive it.
  Vault(const KvPlan& plan, uint32_t n_layers, std::unique_ptr<SpillFile> file)
      : plan_(plan), file_(std::move(file)), lists_(size_t{n_layers} * plan.n_streams) {}
  // What the file has to hold.
  static uint64_t FileBytes(const KvPlan& plan, uint32_t n_layers) {
    return uint64_t{n_layers} * plan.n_streams * VaultListBytes(plan);
  }

  List& list(uint32_t layer, uint32_t stream) { return lists_[ListOf(layer, stream)]; }
  // Of a list, its records: those with their precision, then the low ones. Nothing is written of none.
  Status Write(uint32_t layer, uint32_t stream, std::span<const std::byte> records) {
    return records.empty() ? Status::Ok() : file_->Write(Offset(layer, stream), records);
  }
  // Of all that a list has.
  uint64_t RecordBytes(const List& list) const {
    return (list.positions.size() - list.n_low) * plan_.record.size_bytes() +
           list.n_low * plan_.of_kept().low_record.size_bytes();
  }
  // All that a list has. Valid until the next call.
  Result<std::span<const std::byte>> Read(uint32_t layer, uint32_t stream);
  // Room for the records of a list, to be filled and written.
  std::vector<std::byte>& records() { return records_; }
  void DropRecords() { records_ = {}; }
  // The lists are in memory again.
  void Empty() {
    for (List& list : lists_) list = {};
    DropRecords();
  }

 private:
  size_t ListOf(uint32_t layer, uint32_t stream) const { return size_t{layer} * plan_.n_streams + stream; }
  uint64_t Offset(uint32_t layer, uint32_t stream) const {
    return ListOf(layer, stream) * VaultListBytes(plan_);
  }

  const KvPlan& plan_;
  std::unique_ptr<SpillFile> file_;
  std::vector<List> lists_;  // [n_layers, n_streams]
  std::vector<std::byte> records_;
};

}  // namespace kvrun
