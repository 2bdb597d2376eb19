// Rows of an index on flash: of each layer so many *lists*, one for each stream, of one greatest length. What
// is read are lists of one layer that adjoin, begun ahead and fetched when they are needed; what is written
// is a whole list, which may be shorter than the greatest. Knows bytes, not clusters. Format:
// docs/formats/index_rows.md.
//
// List l of layer i lies at (i * n_lists + l) * stride, the stride being the greatest length rounded up to
// the alignment of direct I/O. The file has no name and no header, as that of the clusters. Of every list its
// length and a checksum (XXH3, its low 32 bits, seeded with the list's place) are kept in memory: what is
// bad, old or from another place is found, and never handed out.
//
// Threads: one at a time, and no other than the file's. Nothing is allocated after Create, but for messages
// of errors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/io/block_file.h"
#include "runtime/store/checked_read.h"
#include "runtime/store/staged_file.h"
#include "runtime/store/state_visitor.h"

namespace kvrun {

struct RowStoreShape {
  uint32_t n_layers = 0;
  uint32_t n_lists = 0;     // of a layer
  uint64_t list_bytes = 0;  // of the longest; less than 4 GiB
  // Of a file that is kept: room for a list in it, no less. 0: list_bytes.
  uint64_t lane_bytes = 0;
};

class RowStore {
 public:
  // Reserves the file's space.
  static Result<std::unique_ptr<RowStore>> Create(std::unique_ptr<BlockFile> file,
                                                  const RowStoreShape& shape);
  ~RowStore() = default;  // waits for what is in flight
  RowStore(const RowStore&) = delete;
  RowStore& operator=(const RowStore&) = delete;

  // What reads and writes go through.
  static uint64_t StagingBytes(const RowStoreShape& shape, uint32_t alignment_bytes);
  // What is known of a list, in memory.
  static constexpr uint64_t kBytesOfList = 2 * sizeof(uint32_t);
  // Of a file for it: more is never in flight.
  static constexpr uint32_t kQueueDepth = 3;

  // Of a list that Write was called for after the last Forget.
  bool IsWritten(uint32_t layer, uint32_t list) const {
    return checksums_[Place(layer, list)] != kNotWritten;
  }

  // Saves, loads or counts which lists are there, their lengths and checksums; the file keeps them. With no
  // write under way, and no read; loading is into a store without lists. A list that is lost is an error, as
  // of Copy. kInvalidArgument where what is loaded lies otherwise in the file.
  Status VisitState(StateVisitor& visitor);

  // --- Reading. Begins to read lists [first, first + n) of a layer, of which there may be some that are not
  // written. The former read has ended. Waits only for writes of the same lists.
  Status Begin(uint32_t layer, uint32_t first, uint32_t n);
  bool HasBegun(uint32_t layer, uint32_t list) const {
    const uint64_t place = Place(layer, list);
    return read_.is_used && place >= read_.place && place - read_.place < read_.n;
  }
  // A list that is written and whose read has begun; waits for it. One that came back bad is read once more.
  // Answers how long it is: the bytes of `to`, [list_bytes], behind that are as they were. After an error,
  // which names layer and stream, `to` holds anything; it may be tried again.
  Result<uint64_t> Copy(uint32_t layer, uint32_t list, std::span<std::byte> to);
  // Of the read, where there is one: waits for it.
  Status End();

  // --- Writing. The list is `bytes` from now on, [1, list_bytes] of them; returns when they may be reused. A
  // list whose write fails is lost, as Copy says from then on, with the reason of the last write that failed.
  Status Write(uint32_t layer, uint32_t list, std::span<const std::byte> bytes);
  // Waits for all writes.
  Status Flush();
  // The list counts as not written.
  void Forget(uint32_t layer, uint32_t list);

  const IoMode& mode() const { return file_->mode(); }
  const StoreStats& stats() const { return stats_; }

 private:
  static constexpr uint32_t kWrites = kQueueDepth - 1;            // in flight, at most
  static constexpr std::align_val_t kMemoryAlignment{64 * 1024};  // of any direct I/O
  static constexpr uint64_t kReadTag = kWrites;                   // of a write: which it is
  static constexpr uint32_t kLost = kNotWritten + 1;              // in place of a checksum, too

  // A request and its part of the staging.
  struct Slot {
    std::byte* memory = nullptr;
    bool is_used = false;  // of a read: until it ends
    bool in_flight = false;
    uint64_t place = 0;         // of its first list
    uint32_t n = 0;             // lists that adjoin
    bool is_forgotten = false;  // of a write: nobody wants the list any more
    int error_number = 0;
    iovec segment{};
  };

  struct AlignedDelete {
    void operator()(std::byte* bytes) const { ::operator delete(bytes, kMemoryAlignment); }
  };

  RowStore(std::unique_ptr<BlockFile> file, const RowStoreShape& shape);

  static uint64_t Stride(const RowStoreShape& shape, uint32_t alignment_bytes);
  uint64_t Place(uint32_t layer, uint32_t list) const { return uint64_t{layer} * shape_.n_lists + list; }
  uint64_t Padded(uint64_t bytes) const;
  uint32_t Checksum(uint64_t place, const std::byte* bytes) const {  // of a list as long as it is
    return ChecksumOf({bytes, lengths_[place]}, place, kLost + 1);
  }
  std::string Named(uint64_t place) const;
  // Of n_lists that adjoin: the last one as long as it is.
  Status Submit(Slot& slot, IoKind kind, uint64_t place, std::byte* memory, uint32_t n_lists);
  Status Wait(const Slot& slot);
  Status Poll(size_t at_least);
  void OnWritten(Slot& slot);
  // Until no write of these places is in flight.
  Status WaitForWrites(uint64_t first_place, uint32_t n);
  uint64_t TagOf(const Slot& slot) const {
    return &slot == &read_ ? kReadTag : static_cast<uint64_t>(&slot - writes_.data());
  }
  bool Matches(uint64_t place) const;
  Status Lost(uint64_t place) const;
  std::byte* Staged(uint64_t place) const { return read_.memory + (place - read_.place) * stride_; }

  RowStoreShape shape_;
  uint64_t stride_;
  std::unique_ptr<std::byte, AlignedDelete> staging_;
  std::vector<uint32_t> checksums_;  // by place
  std::vector<uint32_t> lengths_;    // by place, in bytes
  Slot read_;
  std::array<Slot, kWrites> writes_;
  std::array<IoCompletion, kQueueDepth> completions_;
  uint32_t n_writes_ = 0;
  int write_error_number_ = 0;  // of the write that failed last
  Status error_;                // where it is not ok, the file is of no use any more
  StoreStats stats_;
  std::unique_ptr<BlockFile> file_;  // the first to go: requests in flight use the members above
};

}  // namespace kvrun
