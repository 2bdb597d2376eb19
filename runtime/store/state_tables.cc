#include "runtime/store/state_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/store/state_file_io.h"
#include "runtime/store/state_seal.h"

namespace kvrun {
namespace {

Status NoWholeSave(const StateHandle& file, const char* why) {
  return {StatusCode::kCorrupt,
          fmt::format("the session's file {} is damaged: {}: the session has to be computed again, or its "
                      "file copied again",
                      file.path(), why)};
}

Status TableContradictsItself(const StateHandle& file) {
  return NoWholeSave(file, "a table of it contradicts itself");
}

// The records of a table, from its begin to its end. Never all of them in memory.
class TableBytes {
 public:
  TableBytes(const StateHandle& file, const StateSegment& segment, uint64_t file_id, StateSealer* sealer)
      : file_(file),
        sealer_(sealer),
        at_bytes_(segment.payload_end_bytes()),
        left_bytes_(segment.header.table_bytes()),
        checker_(file_id) {}

  bool AtEnd() const { return left_bytes_ == 0 && rest_.empty(); }

  // A record, which both kinds of are of one size, of which the buffer is a multiple.
  template <typename Record>
  Status NextRecord(Record* record) {
    static_assert(kStateChunkBytes % Record::kBytes == 0);
    if (rest_.empty()) KVRUN_RETURN_IF_ERROR(Refill());
    if (rest_.empty() || !Record::Decode(rest_.template first<Record::kBytes>(), record)) {
      return TableContradictsItself(file_);
    }
    rest_ = rest_.subspan(Record::kBytes);
    return Status::Ok();
  }

  // Of what has been read.
  StateCheck Check() const { return checker_.Value(); }

 private:
  Status Refill() {
    const size_t n_bytes = std::min<uint64_t>(left_bytes_, kStateChunkBytes);
    buffer_.resize(n_bytes + (sealer_ != nullptr ? kStateTagBytes : 0));
    KVRUN_RETURN_IF_ERROR(file_.Read(at_bytes_, buffer_));
    const std::span<std::byte> piece = std::span(buffer_).first(n_bytes);
    if (sealer_ != nullptr && !sealer_->Open(StateSealed::kTable, at_bytes_, buffer_, piece).ok())
      return NoWholeSave(file_, "a table of it is not what was written");
    checker_.Add(piece);
    at_bytes_ += buffer_.size();
    left_bytes_ -= n_bytes;
    rest_ = piece;
    return Status::Ok();
  }

  const StateHandle& file_;
  StateSealer* const sealer_;
  uint64_t at_bytes_;
  uint64_t left_bytes_;
  StateChecker checker_;
  std::vector<std::byte> buffer_;
  std::span<const std::byte> rest_;
};

// It is what was written, and has as many records as its header says: only then is memory taken for them. A
// table of zeros, which a file without bytes of its own may seem to have, ends it at the first record.
Status CheckTable(const StateHandle& file, uint64_t file_id, const StateSegment& segment,
                  StateSealer* sealer) {
  TableBytes table(file, segment, file_id, sealer);
  const StateSegmentHeader& header = segment.header;
  uint64_t n_chunks = 0;
  for (uint64_t i = 0; i < header.n_items; ++i) {
    StateItemRecord item;
    KVRUN_RETURN_IF_ERROR(table.NextRecord(&item));
    for (uint32_t j = 0; j < item.n_chunks; ++j) {
      StateChunkRecord chunk;
      KVRUN_RETURN_IF_ERROR(table.NextRecord(&chunk));
      if (chunk.offset_bytes < segment.payload_begin_bytes()) return TableContradictsItself(file);
    }
    n_chunks += item.n_chunks;
  }
  if (n_chunks != header.n_chunks) return TableContradictsItself(file);
  if (table.Check() == header.table_check) return Status::Ok();
  return NoWholeSave(file, "a table of it is not what was written");
}

// Tables of a save out of those before it and what a segment says is another way. All is checked: whoever
// wrote the file can have computed its checksums.
class TableReader {
 public:
  TableReader(const StateHandle& file, uint64_t file_id, const StateSegment& segment,
              const StateTables& before, StateSealer* sealer)
      : file_(file), segment_(segment), before_(before), bytes_(file, segment, file_id, sealer) {
    after_.Reserve(before, segment.header.n_items, segment.header.n_chunks);
  }

  Result<StateTables> Read() {
    const auto& old_items = before_.items();
    auto old = old_items.begin();
    StateKey last_key;
    while (!bytes_.AtEnd()) {
      StateItemRecord record;
      KVRUN_RETURN_IF_ERROR(bytes_.NextRecord(&record));
      ++n_items_;
      if (n_items_ > 1 && record.key <= last_key) return Contradiction();
      last_key = record.key;
      for (; old != old_items.end() && old->key < record.key; ++old) Keep(*old);
      const StateTables::Item* same = nullptr;
      if (old != old_items.end() && old->key == record.key) same = &*old++;
      if (record.kind == StateItemRecord::Kind::kIs) {
        KVRUN_RETURN_IF_ERROR(AddItem(record, same));
      } else if (same == nullptr) {
        return Contradiction();
      }
    }
    for (; old != old_items.end(); ++old) Keep(*old);
    // So items are no longer than their file.
    if (listed_bytes_ != segment_.header.payload_bytes) return Contradiction();
    if (n_items_ != segment_.header.n_items || after_.items().size() > kMostStateItems)
      return Contradiction();
    return std::move(after_);
  }

 private:
  Status Contradiction() const { return TableContradictsItself(file_); }

  void Keep(const StateTables::Item& item) {
    after_.AddItem(item.key);
    const auto chunks = before_.ChunksOf(item);
    for (uint64_t i = 0; i < chunks.size(); ++i) {
      after_.AddChunk(chunks[i], StateTables::ChunkBytes(item.size_bytes, i));
    }
  }

  Status AddItem(const StateItemRecord& record, const StateTables::Item* same) {
    const uint64_t n_chunks = StateTables::ChunksOf(record.size_bytes);
    after_.AddItem(record.key);
    uint64_t index = 0;
    for (uint32_t i = 0; i < record.n_chunks; ++i) {
      StateChunkRecord chunk;
      KVRUN_RETURN_IF_ERROR(bytes_.NextRecord(&chunk));
      if (chunk.index < index || chunk.index >= n_chunks) return Contradiction();
      KVRUN_RETURN_IF_ERROR(KeepChunks(record, same, index, chunk.index));
      const uint32_t n_bytes = StateTables::ChunkBytes(record.size_bytes, chunk.index);
      const uint64_t n_bytes_in_file = uint64_t{n_bytes} + segment_.header.tag_bytes;
      if (chunk.offset_bytes < segment_.payload_begin_bytes() ||
          chunk.offset_bytes > segment_.payload_end_bytes() ||
          n_bytes_in_file > segment_.payload_end_bytes() - chunk.offset_bytes) {
        return Contradiction();
      }
      listed_bytes_ += n_bytes_in_file;
      after_.AddChunk({chunk.offset_bytes, chunk.check}, n_bytes);
      index = uint64_t{chunk.index} + 1;
    }
    return KeepChunks(record, same, index, n_chunks);
  }

  // Those that the segment does not mention: the first that was not there ends it, whatever the file says
  // that there are.
  Status KeepChunks(const StateItemRecord& record, const StateTables::Item* same, uint64_t begin,
                    uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) {
      const uint32_t n_bytes = StateTables::ChunkBytes(record.size_bytes, i);
      if (same == nullptr || i >= StateTables::ChunksOf(same->size_bytes) ||
          StateTables::ChunkBytes(same->size_bytes, i) != n_bytes) {
        return Contradiction();
      }
      after_.AddChunk(before_.ChunksOf(*same)[i], n_bytes);
    }
    return Status::Ok();
  }

  const StateHandle& file_;
  const StateSegment& segment_;
  const StateTables& before_;
  TableBytes bytes_;
  StateTables after_;
  uint64_t listed_bytes_ = 0;
  uint64_t n_items_ = 0;
};

}  // namespace

uint32_t StateTables::ChunkBytes(uint64_t size_bytes, uint64_t index) {
  return static_cast<uint32_t>(std::min<uint64_t>(kStateChunkBytes, size_bytes - index * kStateChunkBytes));
}

const StateTables::Item* StateTables::Find(const StateKey& key) const {
  const auto found =
      std::lower_bound(items_.begin(), items_.end(), key,
                       [](const Item& item, const StateKey& wanted) { return item.key < wanted; });
  return found != items_.end() && found->key == key ? &*found : nullptr;
}

void StateTables::Reserve(const StateTables& like, uint64_t n_items, uint64_t n_chunks) {
  items_.reserve(like.items_.size() + n_items);
  chunks_.reserve(like.chunks_.size() + n_chunks);
}

void StateTables::AddItem(const StateKey& key) { items_.push_back({key, 0, chunks_.size()}); }

void StateTables::AddChunk(const Chunk& chunk, uint32_t n_bytes) {
  chunks_.push_back(chunk);
  items_.back().size_bytes += n_bytes;
}

bool StateTables::Sort(StateKey* twice) {
  std::sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) { return a.key < b.key; });
  const auto found = std::adjacent_find(items_.begin(), items_.end(),
                                        [](const Item& a, const Item& b) { return a.key == b.key; });
  if (found == items_.end()) return true;
  *twice = found->key;
  return false;
}

uint64_t StateTables::WholeFileBytes(uint32_t tag_bytes) const {
  uint64_t size_bytes = uint64_t{2} * kStateBlockBytes + items_.size() * StateItemRecord::kBytes +
                        chunks_.size() * (StateChunkRecord::kBytes + tag_bytes);
  for (const Item& item : items_) size_bytes += item.size_bytes;
  return size_bytes;
}

uint64_t StateTables::MemoryBytes() const {
  return items_.capacity() * sizeof(Item) + chunks_.capacity() * sizeof(Chunk);
}

void StateTables::DropSpareMemory() {
  items_.shrink_to_fit();
  chunks_.shrink_to_fit();
}

Result<StateTables> ReadStateTables(const StateHandle& file, uint64_t file_id, const StateSegment& segment,
                                    const StateTables& before, StateSealer* sealer) {
  KVRUN_RETURN_IF_ERROR(CheckTable(file, file_id, segment, sealer));
  return TableReader(file, file_id, segment, before, sealer).Read();
}

}  // namespace kvrun
