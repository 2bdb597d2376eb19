// A save that is under way: a segment that grows at its place in a file, and becomes valid at its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/store/state_file_io.h"
#include "runtime/store/state_tables.h"

namespace kvrun {

class StateSave {
 public:
  struct Place {
    uint64_t file_id = 0;
    uint64_t number = 0;  // of the segment
    uint64_t begin_bytes = 0;
    StateCheck previous_check{};  // of the header before
  };

  // `before`: what the file holds, of which nothing is written again.
  StateSave(StateHandle& file, const StateTables& before, const Place& place);
  StateSave(const StateSave&) = delete;
  StateSave& operator=(const StateSave&) = delete;

  Status Put(const StateKey& key, std::span<const std::byte> bytes, bool is_last);
  // All is put: whether it is anything else than before. An item that is not whole, or is there twice, is an
  // error.
  Result<bool> HasChanges();
  // Writes all but the header. Then that, once what is written is synced.
  Status WriteTable();
  Status WriteHeader();

  uint64_t file_id() const { return file_id_; }
  const StateSegment& segment() const { return segment_; }
  StateTables& tables() { return tables_; }
  // Nothing of it lies behind, whether a write that failed has done a part or not. Its begin: nothing at all.
  uint64_t written_end_bytes() const { return written_end_bytes_; }
  uint64_t MemoryBytes() const { return tables_.MemoryBytes() + buffer_.capacity(); }

 private:
  Status BeginItem(const StateKey& key);
  Status PutChunk(std::span<const std::byte> bytes);
  Status Append(std::span<const std::byte> bytes);
  Status Write(uint64_t offset_bytes, std::span<const std::byte> bytes);
  Status Flush();
  template <typename Visit>
  Status ForEachChange(const Visit& visit) const;
  bool IsWritten(const StateTables::Chunk& chunk) const {
    return chunk.offset_bytes >= segment_.payload_begin_bytes();
  }

  StateHandle& file_;
  const StateTables& before_;
  const uint64_t file_id_;
  StateSegment segment_;
  StateTables tables_;

  std::vector<std::byte> buffer_;  // what is not written yet, before at_bytes_
  uint64_t at_bytes_;
  uint64_t written_end_bytes_;

  bool is_in_item_ = false;                  // more pieces are to come
  const StateTables::Item* same_ = nullptr;  // as the last item was before
  uint64_t n_item_chunks_ = 0;
};

}  // namespace kvrun
