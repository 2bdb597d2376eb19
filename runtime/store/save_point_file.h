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
// Between save points nothing is synced. Space is taken as it is written (the file is sparse), so a full disk
// shows when it is full.
//
// Threads: one at a time. Submit and Complete allocate nothing, but where a unit gets its first shadow.
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
  // of all homes, rounded up to whole units. unit_bytes: a multiple of kAlignmentBytes. mode() asks for
  // kAlignmentBytes at least, whatever the file below asks for, and its notes are the file's.
  static Result<std::unique_ptr<SavePointFile>> Create(std::unique_ptr<BlockFile> file, uint64_t size_bytes,
                                                       uint32_t unit_bytes);
  ~SavePointFile() override;

  // What it holds in memory beside the file below, without places of shadows: 8 bytes for each unit that has
  // had one, in pages of 1024 units.
  static uint64_t MemoryBytes(uint64_t size_bytes, uint32_t unit_bytes, uint32_t queue_depth);

  const IoMode& mode() const override;
  // Writes are of whole units, else they are complete with EINVAL. A read of a unit that was never written
  // answers ENODATA or zeros. A request whose units lie apart is several of the file below, one after
  // another.
  Result<size_t> Submit(std::span<const IoRequest> requests) override;
  Result<size_t> Complete(std::span<IoCompletion> completions, size_t at_least) override;
  // The space is not reserved: kInvalidArgument where there are fewer homes.
  Status Reserve(uint64_t size_bytes) override;
  void RegisterMemory(std::span<const iovec> regions) override;
  void DropCache() override;
  IoCounters counters() const override;  // of the file below
  Status Sync() override;
  // Units that lie in it as a whole are of no use any more: at the next save point their places are free, and
  // their space is given back.
  void Discard(uint64_t offset_bytes, uint64_t size_bytes) override;

  // Which units are there, and where those lie that are not at home; of the file that has this number among
  // those of a session. Saving: with no request in flight. Loading: kCorrupt where it contradicts itself; it
  // may be of fewer or more homes, of which those that are there must fit.
  Status VisitState(StateVisitor& visitor, uint32_t number);
  void EndSave();

  uint64_t used_bytes() const;  // of units that are there, and of shadows and homes that a save point holds

 private:
  class Impl;
  explicit SavePointFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvrun
