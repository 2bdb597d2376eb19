// A save that is under way: a segment that grows at its place in a file, and becomes valid at its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/store/state_file_io.h"
#include "runtime/store/state_seal.h"
#include "runtime/store/state_tables.h"

namespace kvrun {

class StateSave {
 public:
  struct Place {
    uint64_t file_id = 0;
    uint64_t number = 0;  // of the segment
    uint64_t begin_bytes = 0;
    StateCheck previous_check{};    // of the header before
    StateSealer* sealer = nullptr;  // of a file that is sealed: it has begun the segment, of this salt
    StateSalt salt{};
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

  const StateSegment& segment() const { return segment_; }
  const StateCheck& header_check() const { return header_check_; }  // once it is written
  StateTables& tables() { return tables_; }
  // Nothing of it lies behind, whether a write that failed has done a part or not. Its begin: nothing at all.
  uint64_t written_end_bytes() const { return written_end_bytes_; }
  // What all that was put takes: to some hundred bytes.
  uint64_t SizeBytes() const;
  uint64_t MemoryBytes() const {
    return tables_.MemoryBytes() + buffer_.capacity() + sealed_.capacity() + table_piece_.capacity();
  }

 private:
  Status BeginItem(const StateKey& key);
  Status PutChunk(std::span<const std::byte> bytes);
  Status Append(std::span<const std::byte> bytes);
  // The same, sealed where the file is.
  Status AppendAs(StateSealed what, std::span<const std::byte> plain);
  Status AppendToTable(std::span<const std::byte> bytes);
  Status EndTable();
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
  StateSealer* const sealer_;  // null: the file is plain
  StateSegment segment_;
  StateTables tables_;
  StateCheck header_check_{};

  std::vector<std::byte> buffer_;  // what is not written yet, before at_bytes_
  uint64_t at_bytes_;
  uint64_t written_end_bytes_;
  std::vector<std::byte> sealed_;       // what is appended, and its tag
  std::vector<std::byte> table_piece_;  // which is not sealed yet

  bool is_in_item_ = false;                  // more pieces are to come
  const StateTables::Item* same_ = nullptr;  // as the last item was before
  uint64_t n_item_chunks_ = 0;
};

}  // namespace kvrun
