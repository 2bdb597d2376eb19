// Which items a save holds, and where their chunks lie in the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "platform/base/units.h"
#include "runtime/store/state_format.h"

namespace kvrun {

class StateHandle;
class StateSealer;

// A segment that is in the file: its header is valid, and all of it lies before the file's end.
struct StateSegment {
  uint64_t begin_bytes = 0;
  StateSegmentHeader header;

  uint64_t payload_begin_bytes() const { return begin_bytes + kStateBlockBytes; }
  uint64_t payload_end_bytes() const { return payload_begin_bytes() + header.payload_bytes; }
  uint64_t end_bytes() const {
    return RoundUp<uint64_t>(payload_end_bytes() + header.table_bytes_in_file(), kStateBlockBytes);
  }
};

class StateTables {
 public:
  struct Chunk {
    uint64_t offset_bytes;
    StateCheck check;
  };
  struct Item {
    StateKey key;
    uint64_t size_bytes;
    uint64_t first_chunk;  // in chunks()
  };

  static uint64_t ChunksOf(uint64_t size_bytes) {
    return size_bytes / kStateChunkBytes + (size_bytes % kStateChunkBytes != 0 ? 1 : 0);
  }
  // Of chunk `index` of an item.
  static uint32_t ChunkBytes(uint64_t size_bytes, uint64_t index);

  const std::vector<Item>& items() const { return items_; }  // ascending by key, once sorted
  std::span<const Chunk> ChunksOf(const Item& item) const {
    return std::span(chunks_).subspan(item.first_chunk, ChunksOf(item.size_bytes));
  }
  const Item* Find(const StateKey& key) const;

  // To be filled: room for what others have, and so many more. Chunks are those of the last item.
  void Reserve(const StateTables& like, uint64_t n_items = 0, uint64_t n_chunks = 0);
  void AddItem(const StateKey& key);
  void AddChunk(const Chunk& chunk, uint32_t n_bytes);
  const Item& last() const { return items_.back(); }
  // False: an item is there twice; `twice` is it.
  bool Sort(StateKey* twice);

  // Of a file that holds nothing else. tag_bytes: of what is sealed; 0: it is plain.
  uint64_t WholeFileBytes(uint32_t tag_bytes) const;
  uint64_t MemoryBytes() const;
  void DropSpareMemory();

 private:
  std::vector<Item> items_;
  std::vector<Chunk> chunks_;
};

// The tables of the save that `segment` is, `before` being those of the one before it. kCorrupt: the segment
// is no whole save. `sealer`: of a file that is sealed; else null.
Result<StateTables> ReadStateTables(const StateHandle& file, uint64_t file_id, const StateSegment& segment,
                                    const StateTables& before, StateSealer* sealer = nullptr);

}  // namespace kvrun
