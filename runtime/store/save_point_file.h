// A file of records that outlives its process: whatever happens, what it held at its last *save point* is
// there, until the next save point is on the disk. To those who read and write it it is a BlockFile like
// another; they may overwrite anything at any time.
//
// The file has a *home* for each of its *units* (unit_bytes at a multiple of unit_bytes), and room for
// *shadows* behind them. What is written for the first time goes to its home. What the last save point holds
// is never overwritten: a unit of it that is written again goes to its other place, a shadow or the home, and
// which one counts is part of the next save point. Say that unit 7 lies at home and is written: it goes to
// shadow 0. After the save point the home is free, and the next write goes there.
//
// A save point is in two files: bytes here, and in a StateFile which of them count. In this order:
//
//   Sync          all that was written is on the disk
//   VisitState    into the state file's save, which is then committed
//   EndSave       what the save point before held is free
//
// Until EndSave, what VisitState has shown is kept like what the save point before holds: where Commit fails,
// or the process ends in it, either may be what the state file has. So it is with each save that fails, and a
// unit that is written after each of them takes another shadow each time, until one does not fail.
//
// Between save points nothing is synced. Space is taken as it is written (the file is sparse), so a full disk
// shows when it is full.
//
// Threads: one at a time. Submit and Complete allocate nothing, but where a unit gets its first shadow, or
// there are more shadows than there ever were.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "platform/io/block_file.h"
#include "runtime/store/state_visitor.h"

namespace kvrun {

class SavePointFile final : public BlockFile {
 public:
  // Units are multiples of the alignment of every file system and page size that counts: so a file can be
  // read wherever it is copied to.
  static constexpr uint32_t kAlignmentBytes = 4096;

  // Over a file that holds nothing, or what a state says (VisitState, loading, before all else). size_bytes:
  // of all homes, rounded up to whole units. unit_bytes: a multiple of what mode() asks for, which is
  // kAlignmentBytes at least, whatever the file below asks for; its notes are the file's.
  static Result<std::unique_ptr<SavePointFile>> Create(std::unique_ptr<BlockFile> file, uint64_t size_bytes,
                                                       uint32_t unit_bytes);
  ~SavePointFile() override;

  // What it holds in memory beside the file below, without shadows: 4 bytes for each unit that has had one
  // and one for each shadow, in pages of 1024.
  static uint64_t MemoryBytes(uint64_t size_bytes, uint32_t unit_bytes, uint32_t queue_depth);

  const IoMode& mode() const override;
  // Writes are of whole units that have homes, else they are complete with EINVAL. Of a unit that was
  // never written zeros are read. A write that fails leaves units that were never written; what the save
  // point holds of them is kept. A request whose units lie apart is several of the file below, one after
  // another, up to the first that fails.
  Result<size_t> Submit(std::span<const IoRequest> requests) override;
  Result<size_t> Complete(std::span<IoCompletion> completions, size_t at_least) override;
  // The space is not reserved: kInvalidArgument where there are fewer homes.
  Status Reserve(uint64_t size_bytes) override;
  void RegisterMemory(std::span<const iovec> regions) override;
  void DropCache() override;
  IoCounters counters() const override;  // of the file below
  Status Sync() override;
  // Units that lie in it as a whole are of no use any more: at the next save point their places are free, and
  // their space is given back; that of places that no save point holds at once. A read answers ENODATA.
  void Discard(uint64_t offset_bytes, uint64_t size_bytes) override;

  // Which units are there, and where those lie that are not at home; of the file that has this number among
  // those of a session. With no request in flight. Saving: after Sync. What is only counted is kept, too,
  // like what a save was shown that failed.
  //
  // Loading: kCorrupt where it contradicts itself, or the file below ends before what is there.
  // kInvalidArgument: it is of units of another size, of fewer homes, or of more, of which one that there is
  // no room for is there. Whatever of the file does not count stays in it until it is written over.
  Status VisitState(StateVisitor& visitor, uint32_t number);
  // What VisitState has shown last is on the disk as a save point. With no request in flight.
  void EndSave();

  uint64_t used_bytes() const;  // of units that are there, and of shadows and homes that a save point holds

 private:
  class Impl;
  explicit SavePointFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvrun
