// A file of records that nobody reads without its key. To those who read and write it it is a BlockFile like
// another, over one that gets and gives what is sealed: a SavePointFile, or a nameless file.
//
// What a write is given is sealed into memory of this file's own, some units at a time, and written from
// there. A read lands where it is wanted, and is opened there. A unit that is not what was written last - on
// its way or on the disk, by accident or on purpose - is found (SealedUnits), and nothing of it is handed
// out.
//
// Where it has helpers, several threads open what has come while Complete waits for them: each whole
// requests. They have no part in anything else.
//
// Threads: one at a time. Submit and Complete allocate nothing, but for messages of errors.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "platform/base/status.h"
#include "platform/io/block_file.h"
#include "platform/io/secret_key.h"
#include "runtime/store/sealed_units.h"
#include "runtime/store/state_visitor.h"

namespace kvrun {

class SealedFile final : public BlockFile {
 public:
  // Units are multiples of it, and of what the file below asks for. Where a unit is a power of two, up to a
  // page, mode() asks for whole units.
  static constexpr uint32_t kAlignmentBytes = 512;
  // Of a file of which any part may be written: a unit less would need more memory.
  static constexpr uint32_t kPageBytes = 4096;

  // `number`: of the file, among those of one session. n_helpers: threads that open beside the caller's.
  // kUnsupported: this build cannot encrypt.
  static Result<std::unique_ptr<SealedFile>> Create(std::unique_ptr<BlockFile> file, const SecretKey& key,
                                                    const SealedShape& shape, uint32_t number = 0,
                                                    uint32_t n_helpers = 0);
  ~SealedFile() override;  // of reads in flight, the memory may hold what is sealed

  // What it holds in memory beside the file below: what SealedUnits does, what writes are sealed into, tables
  // of requests, and helpers.
  static uint64_t MemoryBytes(const SealedShape& shape, uint32_t queue_depth, uint32_t n_helpers = 0);

  const IoMode& mode() const override;
  // Requests are of whole units, else they are complete with EINVAL (or ENODATA, where they are behind the
  // last one); writes of units that cannot be there fail with EIO. Of a unit that was never written zeros are
  // read. A read of which a unit does not open is complete with EBADMSG: such units are zeros then, and the
  // others are what they are. A write that fails leaves units that were never written. A request may be
  // several of the file below, one after another.
  Result<size_t> Submit(std::span<const IoRequest> requests) override;
  Result<size_t> Complete(std::span<IoCompletion> completions, size_t at_least) override;
  // Units are more from then on, where the file below has room for them.
  Status Reserve(uint64_t size_bytes) override;
  void RegisterMemory(std::span<const iovec> regions) override;
  Status Sync() override;
  // Units that lie in it as a whole count as never written.
  void Discard(uint64_t offset_bytes, uint64_t size_bytes) override;
  void DropCache() override;
  IoCounters counters() const override;  // of the file below

  // Which units are there, and what opens them, for a file below that keeps its bytes: beside that one's own
  // state, saved and loaded together with it. With no request in flight. Loading: before all else.
  // kCorrupt: it contradicts itself. kInvalidArgument: it is of more units.
  Status VisitState(StateVisitor& visitor);

 private:
  class Impl;
  explicit SealedFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvrun
