#include "runtime/store/state_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "platform/base/units.h"
#include "runtime/store/state_file_io.h"
#include "runtime/store/state_save.h"
#include "runtime/store/state_tables.h"

namespace kvrun {
namespace {

constexpr uint64_t kDeadBytesThatMayStay = kMiB;

const StateTables& NoTables() {
  static const StateTables none;
  return none;
}

}  // namespace

class StateFile::Impl {
 public:
  Impl(StateFileIo& io, std::string path, bool read_only)
      : io_(io), path_(std::move(path)), read_only_(read_only) {}
  ~Impl() { Abandon(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Status CheckForCreation();
  Status Load();
  Status Read(const StateKey& key, uint64_t offset_bytes, std::span<std::byte> to) const;
  Status BeginSave();
  Status Put(const StateKey& key, std::span<const std::byte> bytes, bool is_last);
  Status Commit();

  const std::string& path() const { return path_; }
  const StateTables& tables() const { return tables_; }
  uint64_t file_bytes() const { return file_.valid() ? end_bytes_ : 0; }
  uint64_t MemoryBytes() const { return tables_.MemoryBytes() + (save_ ? save_->MemoryBytes() : 0); }
  StateFileCounters counters() const;

 private:
  // The segment at the end of what is read so far; false where there is no whole one.
  Result<bool> LoadSegment(uint64_t size_bytes);
  Status ReadChunk(const StateKey& key, const StateTables::Chunk& chunk, std::span<std::byte> to) const;
  bool MustWriteWhole() const;
  Status CutTail();
  Status BeginWhole();
  Status CommitSegment();
  Status CommitWhole();
  void TakeOver(StateSave& save);
  // Of the save that is under way: what it has written goes.
  void Abandon();
  void Fail(const Status& status);
  void CountAndClose(StateHandle* file);

  StateFileIo& io_;
  const std::string path_;
  const bool read_only_;

  StateHandle file_;  // none before the first save
  uint64_t file_id_ = 0;
  uint64_t n_segments_ = 0;
  uint64_t end_bytes_ = 0;   // of the last whole segment
  uint64_t size_bytes_ = 0;  // of the file: what is behind the end is of no use
  StateTables tables_;
  // A header may be on the disk, or not, or a name: nothing can be built on it.
  bool is_uncertain_ = false;
  uint64_t whole_from_bytes_ = 0;  // below it the file is not written anew only to be smaller

  StateHandle whole_;      // the file beside, of a save that writes one
  StateHandle folder_;     // the same
  uint64_t whole_id_ = 0;  // the same
  std::unique_ptr<StateSave> save_;

  StateFileCounters closed_;  // of files that are closed, and saves
};

Status StateFile::Impl::CheckForCreation() {
  KVRUN_RETURN_IF_ERROR(CheckStateFileName(io_, path_));
  KVRUN_RETURN_IF_ERROR(StateHandle::OpenFolder(io_, path_).status());
  RemoveStateFileBeside(io_, path_);
  return Status::Ok();
}

Status StateFile::Impl::Load() {
  const auto access = read_only_ ? StateHandle::Access::kRead : StateHandle::Access::kReadAndWrite;
  KVRUN_ASSIGN_OR_RETURN(file_, StateHandle::Open(io_, path_, access));
  if (!read_only_) RemoveStateFileBeside(io_, path_);
  KVRUN_ASSIGN_OR_RETURN(size_bytes_, file_.SizeBytes());
  std::array<std::byte, StateFileHeader::kBytes> bytes{};
  if (size_bytes_ >= bytes.size()) KVRUN_RETURN_IF_ERROR(file_.Read(0, bytes));
  KVRUN_ASSIGN_OR_RETURN(const StateFileHeader header, StateFileHeader::Decode(bytes, path_));
  file_id_ = header.file_id;
  end_bytes_ = kStateBlockBytes;
  bool is_whole = true;
  while (is_whole && n_segments_ < kMostStateSegments) {
    KVRUN_ASSIGN_OR_RETURN(is_whole, LoadSegment(size_bytes_));
  }
  if (n_segments_ == 0) {
    return {StatusCode::kCorrupt,
            fmt::format("the session's file {} is damaged: no whole save is in it: the session has to be "
                        "computed again, or its file copied again",
                        path_)};
  }
  tables_.DropSpareMemory();
  if (read_only_) return Status::Ok();
  // The process before may have been killed between a header or a name and its sync: what is built on must
  // stay.
  KVRUN_RETURN_IF_ERROR(file_.SyncData());
  KVRUN_ASSIGN_OR_RETURN(StateHandle folder, StateHandle::OpenFolder(io_, path_));
  return folder.SyncFolder();
}

Result<bool> StateFile::Impl::LoadSegment(uint64_t size_bytes) {
  StateSegment segment;
  segment.begin_bytes = end_bytes_;
  if (size_bytes < segment.payload_begin_bytes()) return false;
  std::array<std::byte, StateSegmentHeader::kBytes> bytes{};
  KVRUN_RETURN_IF_ERROR(file_.Read(segment.begin_bytes, bytes));
  if (!StateSegmentHeader::Decode(bytes, file_id_, &segment.header) || segment.header.number != n_segments_ ||
      segment.end_bytes() > size_bytes) {
    return false;
  }
  Result<StateTables> tables = ReadStateTables(file_, file_id_, segment, tables_);
  if (!tables.ok() && tables.status().code() == StatusCode::kCorrupt) return false;
  KVRUN_ASSIGN_OR_RETURN(tables_, std::move(tables));
  end_bytes_ = segment.end_bytes();
  ++n_segments_;
  return true;
}

Status StateFile::Impl::ReadChunk(const StateKey& key, const StateTables::Chunk& chunk,
                                  std::span<std::byte> to) const {
  KVRUN_RETURN_IF_ERROR(file_.Read(chunk.offset_bytes, to));
  if (StateCheckOf(to, file_id_) == chunk.check) return Status::Ok();
  return {StatusCode::kCorrupt,
          fmt::format("the session's file {} is damaged: {} is not what was written, at byte {}: the session "
                      "has to be computed again, or its file copied again",
                      path_, StateKeyInWords(key), chunk.offset_bytes)};
}

Status StateFile::Impl::Read(const StateKey& key, uint64_t offset_bytes, std::span<std::byte> to) const {
  const StateTables::Item* item = tables_.Find(key);
  if (item == nullptr) {
    return {StatusCode::kNotFound,
            fmt::format("the session's file {} has no {}", path_, StateKeyInWords(key))};
  }
  if (offset_bytes > item->size_bytes || to.size() > item->size_bytes - offset_bytes) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{} of the session's file {} has {} bytes: {} of them from byte {} on cannot be read",
                        StateKeyInWords(key), path_, item->size_bytes, to.size(), offset_bytes)};
  }
  std::vector<std::byte> part_of;  // a chunk that is not wanted whole
  const auto chunks = tables_.ChunksOf(*item);
  while (!to.empty()) {
    const uint64_t index = offset_bytes / kStateChunkBytes;
    const auto begin = static_cast<uint32_t>(offset_bytes % kStateChunkBytes);
    const uint32_t chunk_bytes = StateTables::ChunkBytes(item->size_bytes, index);
    const size_t n_bytes = std::min<size_t>(to.size(), chunk_bytes - begin);
    if (n_bytes == chunk_bytes) {
      KVRUN_RETURN_IF_ERROR(ReadChunk(key, chunks[index], to.first(n_bytes)));
    } else {
      part_of.resize(chunk_bytes);
      KVRUN_RETURN_IF_ERROR(ReadChunk(key, chunks[index], part_of));
      std::copy_n(part_of.begin() + begin, n_bytes, to.begin());
    }
    offset_bytes += n_bytes;
    to = to.subspan(n_bytes);
  }
  return Status::Ok();
}

bool StateFile::Impl::MustWriteWhole() const {
  if (!file_.valid() || is_uncertain_ || n_segments_ >= kMostStateSegments) return true;
  const uint64_t live_bytes = tables_.WholeFileBytes();
  const uint64_t dead_bytes = end_bytes_ - std::min(end_bytes_, live_bytes);
  const bool is_worth_it = dead_bytes > live_bytes && dead_bytes > kDeadBytesThatMayStay;
  if (is_worth_it && end_bytes_ >= whole_from_bytes_) return true;
  // Nobody else should, but what is appended to a file without a name, or behind another's segment, is lost.
  const Result<uint64_t> size_bytes = file_.SizeBytes();
  return !size_bytes.ok() || *size_bytes != size_bytes_ || !file_.HasItsName();
}

Status StateFile::Impl::BeginSave() {
  Abandon();
  if (read_only_) {
    return {StatusCode::kInvalidArgument,
            fmt::format("the session's file {} was opened to be read: a save needs another name", path_)};
  }
  if (MustWriteWhole()) {
    Status status = BeginWhole();
    if (!status.ok()) Fail(status);
    return status;
  }
  KVRUN_RETURN_IF_ERROR(CutTail());
  save_ = std::make_unique<StateSave>(file_, tables_, StateSave::Place{file_id_, n_segments_, end_bytes_});
  return Status::Ok();
}

// What a save left that did not end. Nothing of it may look like a header once other bytes are around it.
Status StateFile::Impl::CutTail() {
  if (size_bytes_ == end_bytes_) return Status::Ok();
  is_uncertain_ = true;
  KVRUN_RETURN_IF_ERROR(file_.Truncate(end_bytes_));
  KVRUN_RETURN_IF_ERROR(file_.SyncData());
  size_bytes_ = end_bytes_;
  is_uncertain_ = false;
  return Status::Ok();
}

Status StateFile::Impl::BeginWhole() {
  KVRUN_ASSIGN_OR_RETURN(StateHandle folder, StateHandle::OpenFolder(io_, path_));
  KVRUN_ASSIGN_OR_RETURN(whole_, StateHandle::MakeBeside(io_, path_));
  folder_ = std::move(folder);
  whole_id_ = io_.NewFileId();
  KVRUN_RETURN_IF_ERROR(whole_.Write(0, StateFileHeader{whole_id_}.Encode()));
  save_ = std::make_unique<StateSave>(whole_, NoTables(), StateSave::Place{whole_id_, 0, kStateBlockBytes});
  return Status::Ok();
}

Status StateFile::Impl::Put(const StateKey& key, std::span<const std::byte> bytes, bool is_last) {
  if (save_ == nullptr) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{} of a session's state cannot be put into {}: no save has begun, or it has failed",
                        StateKeyInWords(key), path_)};
  }
  Status status = save_->Put(key, bytes, is_last);
  if (!status.ok()) Fail(status);
  return status;
}

Status StateFile::Impl::Commit() {
  if (save_ == nullptr) {
    return {StatusCode::kInvalidArgument,
            fmt::format("the save of the session to {} cannot end: none has begun, or it has failed", path_)};
  }
  Status status = whole_.valid() ? CommitWhole() : CommitSegment();
  if (!status.ok()) {
    Fail(status);
    return status;
  }
  ++closed_.saves;
  Abandon();
  return status;
}

Status StateFile::Impl::CommitSegment() {
  KVRUN_ASSIGN_OR_RETURN(const bool has_changes, save_->HasChanges());
  if (!has_changes) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(save_->WriteTable());
  KVRUN_RETURN_IF_ERROR(file_.SyncData());
  is_uncertain_ = true;
  KVRUN_RETURN_IF_ERROR(save_->WriteHeader());
  KVRUN_RETURN_IF_ERROR(file_.SyncData());
  TakeOver(*save_);
  return Status::Ok();
}

Status StateFile::Impl::CommitWhole() {
  KVRUN_RETURN_IF_ERROR(save_->HasChanges().status());
  KVRUN_RETURN_IF_ERROR(save_->WriteTable());
  KVRUN_RETURN_IF_ERROR(save_->WriteHeader());
  KVRUN_RETURN_IF_ERROR(whole_.Sync());
  is_uncertain_ = true;
  KVRUN_RETURN_IF_ERROR(RenameStateFile(io_, path_));
  KVRUN_RETURN_IF_ERROR(folder_.SyncFolder());
  CountAndClose(&file_);
  file_ = std::move(whole_);
  file_id_ = whole_id_;
  n_segments_ = 0;
  whole_from_bytes_ = 0;
  TakeOver(*save_);
  return Status::Ok();
}

void StateFile::Impl::TakeOver(StateSave& save) {
  tables_ = std::move(save.tables());
  tables_.DropSpareMemory();
  end_bytes_ = size_bytes_ = save.segment().end_bytes();
  ++n_segments_;
  is_uncertain_ = false;
}

void StateFile::Impl::Fail(const Status& status) {
  // There may be no space for two files, but for a segment: a smaller file is not tried at each save.
  const bool is_of_whole = save_ == nullptr || whole_.valid();
  if (is_of_whole && status.code() == StatusCode::kIo) whole_from_bytes_ = 2 * end_bytes_;
  Abandon();
}

void StateFile::Impl::Abandon() {
  const bool is_segment = save_ != nullptr && !whole_.valid();
  save_.reset();
  folder_ = StateHandle();
  if (whole_.valid()) {
    CountAndClose(&whole_);
    RemoveStateFileBeside(io_, path_);
  }
  if (!is_segment) return;
  // Where the rest cannot be cut off, the next save tries it again.
  Result<uint64_t> size_bytes = file_.SizeBytes();
  if (size_bytes.ok() && *size_bytes > end_bytes_) {
    (void)file_.Truncate(end_bytes_);
    size_bytes = file_.SizeBytes();
  }
  if (size_bytes.ok()) size_bytes_ = *size_bytes;
}

void StateFile::Impl::CountAndClose(StateHandle* file) {
  closed_.read_bytes += file->read_bytes();
  closed_.written_bytes += file->written_bytes();
  *file = StateHandle();
}

StateFileCounters StateFile::Impl::counters() const {
  StateFileCounters counters = closed_;
  for (const StateHandle* file : {&file_, &whole_}) {
    counters.read_bytes += file->read_bytes();
    counters.written_bytes += file->written_bytes();
  }
  return counters;
}

StateFile::StateFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StateFile::~StateFile() = default;

Result<std::unique_ptr<StateFile>> StateFile::Create(const std::string& path, StateFileIo* io) {
  auto impl = std::make_unique<Impl>(io != nullptr ? *io : SystemStateFileIo(), path, false);
  KVRUN_RETURN_IF_ERROR(impl->CheckForCreation());
  return std::unique_ptr<StateFile>(new StateFile(std::move(impl)));
}

Result<std::unique_ptr<StateFile>> StateFile::Open(const std::string& path, bool read_only, StateFileIo* io) {
  auto impl = std::make_unique<Impl>(io != nullptr ? *io : SystemStateFileIo(), path, read_only);
  KVRUN_RETURN_IF_ERROR(impl->Load());
  return std::unique_ptr<StateFile>(new StateFile(std::move(impl)));
}

const std::string& StateFile::path() const { return impl_->path(); }

std::optional<uint64_t> StateFile::SizeOf(const StateKey& key) const {
  const StateTables::Item* item = impl_->tables().Find(key);
  return item != nullptr ? std::optional(item->size_bytes) : std::nullopt;
}

Status StateFile::Read(const StateKey& key, uint64_t offset_bytes, std::span<std::byte> to) const {
  return impl_->Read(key, offset_bytes, to);
}

void StateFile::ForEach(const std::function<void(const StateKey&, uint64_t size_bytes)>& visit) const {
  for (const StateTables::Item& item : impl_->tables().items()) visit(item.key, item.size_bytes);
}

Status StateFile::BeginSave() { return impl_->BeginSave(); }
Status StateFile::Put(const StateKey& key, std::span<const std::byte> bytes, bool is_last) {
  return impl_->Put(key, bytes, is_last);
}
Status StateFile::Commit() { return impl_->Commit(); }

uint64_t StateFile::file_bytes() const { return impl_->file_bytes(); }
uint64_t StateFile::MemoryBytes() const { return impl_->MemoryBytes(); }
StateFileCounters StateFile::counters() const { return impl_->counters(); }

}  // namespace kvrun
