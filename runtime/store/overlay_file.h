// A file of records that somebody else keeps, and what this process writes over it: the base is only read,
// and a unit that is written goes to a nameless file of this one's own, at the same place. To those who read
// and write it it is a BlockFile like another. So any number of processes stand on one base at once, and none
// sees what another one writes.
//
// Threads: one at a time. Submit and Complete allocate nothing, but for messages of errors.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "platform/base/status.h"
#include "platform/io/block_file.h"

namespace kvrun {

class OverlayFile final : public BlockFile {
 public:
  // Both files have units of unit_bytes at multiples of it: a multiple of what they ask for. size_bytes: of
  // all units, rounded up to whole ones. `own` holds nothing yet. mode() is its own, with the larger
  // alignment.
  static Result<std::unique_ptr<OverlayFile>> Create(std::unique_ptr<BlockFile> base,
                                                     std::unique_ptr<BlockFile> own, uint64_t size_bytes,
                                                     uint32_t unit_bytes);
  ~OverlayFile() override;

  // What it holds in memory beside the files below: two bits for each unit, and tables of requests.
  static uint64_t MemoryBytes(uint64_t size_bytes, uint32_t unit_bytes, uint32_t queue_depth);

  const IoMode& mode() const override;
  // Writes are of whole units, else they are complete with EINVAL. Of a unit that was never written what the
  // base answers is read. A write that fails leaves units that were never written, of which zeros are read. A
  // request whose units lie in both files is several of these, one after another, up to the first that fails.
  Result<size_t> Submit(std::span<const IoRequest> requests) override;
  Result<size_t> Complete(std::span<IoCompletion> completions, size_t at_least) override;
  // The space is not reserved, as little is written: kInvalidArgument where there are fewer units.
  Status Reserve(uint64_t size_bytes) override;
  void RegisterMemory(std::span<const iovec> regions) override;
  Status Sync() override;
  // Of units that were written, their space is given back; the base stays as it is.
  void Discard(uint64_t offset_bytes, uint64_t size_bytes) override;
  void DropCache() override;
  IoCounters counters() const override;  // of both files

 private:
  class BothFiles;
  class Impl;
  explicit OverlayFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvrun
