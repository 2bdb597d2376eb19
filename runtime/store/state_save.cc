#include "runtime/store/state_save.h"

#include <fmt/format.h>

#include <algorithm>

#include "platform/base/units.h"

namespace kvrun {

StateSave::StateSave(StateHandle& file, const StateTables& before, const Place& place)
    : file_(file),
      before_(before),
      file_id_(place.file_id),
      sealer_(place.sealer),
      at_bytes_(place.begin_bytes),
      written_end_bytes_(place.begin_bytes) {
  segment_.begin_bytes = place.begin_bytes;
  segment_.header.number = place.number;
  segment_.header.previous_check = place.previous_check;
  segment_.header.salt = place.salt;
  segment_.header.tag_bytes = sealer_ != nullptr ? kStateTagBytes : 0;
  tables_.Reserve(before);
  buffer_.reserve(kStateChunkBytes);
  // The header's block is written, too: once the rest is synced no space can be missing.
  buffer_.resize(kStateBlockBytes);
  at_bytes_ += kStateBlockBytes;
}

Status StateSave::Put(const StateKey& key, std::span<const std::byte> bytes, bool is_last) {
  if (!is_last && bytes.size() % kStateChunkBytes != 0) {
    return {StatusCode::kInvalidArgument,
            fmt::format("a piece of {} of a session's state has {} bytes: all but the last have whole chunks "
                        "of {}",
                        StateKeyInWords(key), bytes.size(), kStateChunkBytes)};
  }
  KVRUN_RETURN_IF_ERROR(BeginItem(key));
  while (!bytes.empty()) {
    const auto chunk = bytes.first(std::min<size_t>(bytes.size(), kStateChunkBytes));
    KVRUN_RETURN_IF_ERROR(PutChunk(chunk));
    bytes = bytes.subspan(chunk.size());
  }
  is_in_item_ = !is_last;
  return Status::Ok();
}

Status StateSave::BeginItem(const StateKey& key) {
  if (!is_in_item_) {
    if (tables_.items().size() == kMostStateItems) {
      return {StatusCode::kInvalidArgument,
              fmt::format("{} of a session's state is one too many: a save has at most {}",
                          StateKeyInWords(key), kMostStateItems)};
    }
    tables_.AddItem(key);
    same_ = before_.Find(key);
    n_item_chunks_ = 0;
  } else if (tables_.last().key != key) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{} of a session's state comes between pieces of {}", StateKeyInWords(key),
                        StateKeyInWords(tables_.last().key))};
  }
  return Status::Ok();
}

Status StateSave::PutChunk(std::span<const std::byte> bytes) {
  const auto n_bytes = static_cast<uint32_t>(bytes.size());
  const uint64_t index = n_item_chunks_++;
  const StateCheck check = StateCheckOf(bytes, file_id_);
  if (same_ != nullptr && index < StateTables::ChunksOf(same_->size_bytes) &&
      StateTables::ChunkBytes(same_->size_bytes, index) == n_bytes) {
    const StateTables::Chunk& chunk = before_.ChunksOf(*same_)[index];
    if (chunk.check == check) {
      tables_.AddChunk(chunk, n_bytes);
      return Status::Ok();
    }
  }
  if (index >= UINT32_MAX) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{} of a session's state has more than {} chunks of {} bytes",
                        StateKeyInWords(tables_.last().key), UINT32_MAX, kStateChunkBytes)};
  }
  tables_.AddChunk({at_bytes_, check}, n_bytes);
  segment_.header.payload_bytes += n_bytes + segment_.header.tag_bytes;
  return AppendAs(StateSealed::kChunk, bytes);
}

Status StateSave::AppendAs(StateSealed what, std::span<const std::byte> plain) {
  if (sealer_ == nullptr) return Append(plain);
  sealed_.resize(plain.size() + kStateTagBytes);
  KVRUN_RETURN_IF_ERROR(sealer_->Seal(what, at_bytes_, plain, sealed_));
  return Append(sealed_);
}

Status StateSave::Append(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kStateChunkBytes) KVRUN_RETURN_IF_ERROR(Flush());
  at_bytes_ += bytes.size();
  if (bytes.size() >= kStateChunkBytes) return Write(at_bytes_ - bytes.size(), bytes);
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  return Status::Ok();
}

Status StateSave::Write(uint64_t offset_bytes, std::span<const std::byte> bytes) {
  written_end_bytes_ = std::max(written_end_bytes_, offset_bytes + bytes.size());
  return file_.Write(offset_bytes, bytes);
}

Status StateSave::Flush() {
  KVRUN_RETURN_IF_ERROR(Write(at_bytes_ - buffer_.size(), buffer_));
  buffer_.clear();
  return Status::Ok();
}

// visit(record, item): of an item that is not as it was; null where it is gone.
template <typename Visit>
Status StateSave::ForEachChange(const Visit& visit) const {
  const auto& old_items = before_.items();
  auto old = old_items.begin();
  const auto visit_gone = [&] {
    StateItemRecord record{(old++)->key, StateItemRecord::Kind::kIsGone, 0, 0};
    return visit(record, nullptr);
  };
  for (const StateTables::Item& item : tables_.items()) {
    while (old != old_items.end() && old->key < item.key) KVRUN_RETURN_IF_ERROR(visit_gone());
    const StateTables::Item* same = nullptr;
    if (old != old_items.end() && old->key == item.key) same = &*old++;
    const auto chunks = tables_.ChunksOf(item);
    const auto n_written =
        std::count_if(chunks.begin(), chunks.end(), [&](const auto& chunk) { return IsWritten(chunk); });
    if (same != nullptr && same->size_bytes == item.size_bytes && n_written == 0) continue;
    const StateItemRecord record{item.key, StateItemRecord::Kind::kIs, static_cast<uint32_t>(n_written),
                                 item.size_bytes};
    KVRUN_RETURN_IF_ERROR(visit(record, &item));
  }
  while (old != old_items.end()) KVRUN_RETURN_IF_ERROR(visit_gone());
  return Status::Ok();
}

uint64_t StateSave::SizeBytes() const {
  const uint64_t n_chunks = CeilDiv<uint64_t>(segment_.header.payload_bytes, kStateChunkBytes);
  const uint64_t table_bytes = n_chunks * (StateItemRecord::kBytes + StateChunkRecord::kBytes);
  return RoundUp<uint64_t>(at_bytes_ - segment_.begin_bytes + table_bytes, kStateBlockBytes) +
         kStateBlockBytes;  // the header is written twice
}

Result<bool> StateSave::HasChanges() {
  if (is_in_item_) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} of a session's state is not whole: its last piece was not put",
                              StateKeyInWords(tables_.last().key)));
  }
  StateKey twice;
  if (!tables_.Sort(&twice)) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} of a session's state was put twice", StateKeyInWords(twice)));
  }
  StateSegmentHeader& header = segment_.header;
  KVRUN_RETURN_IF_ERROR(ForEachChange([&](const StateItemRecord& record, const StateTables::Item*) {
    ++header.n_items;
    header.n_chunks += record.n_chunks;
    return Status::Ok();
  }));
  return header.n_items > 0;
}

// Pieces of a table are as long as chunks.
Status StateSave::AppendToTable(std::span<const std::byte> bytes) {
  if (sealer_ == nullptr) return Append(bytes);
  table_piece_.insert(table_piece_.end(), bytes.begin(), bytes.end());
  return table_piece_.size() == kStateChunkBytes ? EndTable() : Status::Ok();
}

Status StateSave::EndTable() {
  if (table_piece_.empty()) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(AppendAs(StateSealed::kTable, table_piece_));
  table_piece_.clear();
  return Status::Ok();
}

Status StateSave::WriteTable() {
  StateChecker checker(file_id_);
  const auto append = [&](std::span<const std::byte> bytes) {
    checker.Add(bytes);
    return AppendToTable(bytes);
  };
  const auto write = [&](const StateItemRecord& record, const StateTables::Item* item) {
    KVRUN_RETURN_IF_ERROR(append(record.Encode()));
    if (item == nullptr) return Status::Ok();
    uint32_t index = 0;
    for (const StateTables::Chunk& chunk : tables_.ChunksOf(*item)) {
      const StateChunkRecord of_chunk{index++, chunk.offset_bytes, chunk.check};
      if (IsWritten(chunk)) KVRUN_RETURN_IF_ERROR(append(of_chunk.Encode()));
    }
    return Status::Ok();
  };
  KVRUN_RETURN_IF_ERROR(ForEachChange(write));
  KVRUN_RETURN_IF_ERROR(EndTable());
  segment_.header.table_check = checker.Value();
  KVRUN_RETURN_IF_ERROR(Append(std::vector<std::byte>(segment_.end_bytes() - at_bytes_)));
  return Flush();
}

Status StateSave::WriteHeader() {
  auto bytes = segment_.header.Encode(file_id_);
  if (sealer_ != nullptr) {
    KVRUN_ASSIGN_OR_RETURN(bytes, sealer_->EncodeHeader(segment_.header, segment_.begin_bytes));
  }
  header_check_ = StateSegmentHeader::CheckIn(bytes);
  return Write(segment_.begin_bytes, bytes);
}

}  // namespace kvrun
