#include "runtime/store/state_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "platform/base/units.h"
#include "platform/io/seal.h"
#include "runtime/store/state_file_io.h"
#include "runtime/store/state_folder.h"
#include "runtime/store/state_reader.h"
#include "runtime/store/state_save.h"
#include "runtime/store/state_seal.h"
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
  enum class Use : uint8_t { kSave, kRead, kShare };
  Impl(StateFileIo& io, std::string path, StateFolder folder, Use use, const SecretKey* key)
      : io_(io), path_(std::move(path)), folder_(std::move(folder)), use_(use) {
    if (key != nullptr) key_.emplace(key->bytes());
  }
  ~Impl() { Abandon(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Status PrepareCreation();
  Status Load();
  Status Read(const StateKey& key, uint64_t offset_bytes, std::span<std::byte> to) const;
  Status BeginSave();
  Status Put(const StateKey& key, std::span<const std::byte> bytes, bool is_last);
  Status Commit();
  uint64_t SaveBytes() const {
    const bool is_of_use = save_ != nullptr && (whole_.valid() || save_->segment().header.payload_bytes > 0);
    return is_of_use ? save_->SizeBytes() : 0;
  }

  const std::string& path() const { return path_; }
  const StateTables& tables() const { return tables_; }
  uint64_t file_bytes() const { return file_.valid() ? end_bytes_ : 0; }
  uint64_t MemoryBytes() const {
    return tables_.MemoryBytes() + (save_ ? save_->MemoryBytes() : 0) +
           (sealer_ ? sealer_->MemoryBytes() : 0);
  }
  StateFileCounters counters() const;

 private:
  Status ReadChunk(const StateKey& key, const StateTables::Chunk& chunk, std::span<std::byte> to) const;
  // What has the name is locked by this process, if anything has it.
  Status HoldName();
  // It would be better, but a segment is as good.
  bool WantsWhole() const;
  // What was uncertain is settled, and a segment can go behind the last one.
  bool CanAppend();
  Status CutTail();
  Status BeginSegment();
  Status BeginWhole();
  // Of a file that is sealed, the header's second part.
  Status WriteSeal(Cipher cipher);
  Status CommitSegment();
  Status CommitWhole();
  void TakeOver(StateSave& save);
  // Of the save that is under way: what it has written goes.
  void Abandon();
  void Fail(const Status& status);
  void Count(const StateHandle& file);

  StateFileIo& io_;
  const std::string path_;
  const StateFolder folder_;
  const Use use_;
  std::optional<SecretKey> key_;
  const SecretKey* key() const { return key_ ? &*key_ : nullptr; }
  uint32_t tag_bytes() const { return key_ ? kStateTagBytes : 0; }

  StateHandle file_;  // none before the first save
  StateHandle held_;  // what has the name, if that is another file; locked
  uint64_t file_id_ = 0;
  std::unique_ptr<StateSealer> sealer_;  // of file_, with a key
  uint64_t n_segments_ = 0;
  uint64_t end_bytes_ = 0;   // of the last whole segment
  uint64_t size_bytes_ = 0;  // of the file: what is behind the end is of no use
  StateCheck last_check_{};  // of the last segment's header
  StateTables tables_;
  // A header behind the end may be on the disk, or not: it has to be cut off before anything is written
  // there.
  bool header_is_uncertain_ = false;
  bool name_is_uncertain_ = false;  // the same of a name
  bool has_unread_tail_ = false;    // which may be a save: it stays until a whole file takes its place
  // A save that has failed to write a whole file: the next ones append, below these.
  uint64_t whole_from_bytes_ = 0;
  uint64_t whole_from_segments_ = kManyStateSegments;

  StateHandle whole_;      // the file beside, of a save that writes one
  uint64_t whole_id_ = 0;  // the same
  std::unique_ptr<StateSealer> whole_sealer_;
  std::unique_ptr<StateSave> save_;

  StateFileCounters closed_;  // of files that are closed, and saves
};

Status StateFile::Impl::PrepareCreation() {
  KVRUN_RETURN_IF_ERROR(HoldName());
  return folder_.RemoveLeftBeside();
}

Status StateFile::Impl::Load() {
  const bool saves = use_ == Use::kSave;
  KVRUN_ASSIGN_OR_RETURN(file_, saves                 ? folder_.OpenLocked()
                                : use_ == Use::kShare ? folder_.OpenShared()
                                                      : folder_.OpenToRead());
  // Who has it without having the name locked is about to see that.
  if (saves) (void)folder_.RemoveLeftBeside();
  KVRUN_ASSIGN_OR_RETURN(StateContents found, ReadStateFile(file_, key()));
  sealer_ = std::move(found.sealer);
  file_id_ = found.file_id;
  n_segments_ = found.n_segments;
  end_bytes_ = found.end_bytes;
  size_bytes_ = found.size_bytes;
  last_check_ = found.last_check;
  tables_ = std::move(found.tables);
  has_unread_tail_ = found.has_unread_tail;
  if (!saves) return Status::Ok();
  // The process before may have been killed between a header or a name and its sync: what is built on must
  // stay.
  KVRUN_RETURN_IF_ERROR(file_.SyncData());
  return folder_.Sync();
}

Status StateFile::Impl::HoldName() {
  for (const StateHandle* file : {&file_, &held_}) {
    if (file->valid() && folder_.IsNamed(*file)) return Status::Ok();
  }
  held_ = StateHandle();
  Result<StateHandle> named = folder_.OpenLocked();
  if (!named.ok() && named.status().code() == StatusCode::kNotFound) return Status::Ok();
  KVRUN_ASSIGN_OR_RETURN(held_, std::move(named));
  return Status::Ok();
}

Status StateFile::Impl::ReadChunk(const StateKey& key, const StateTables::Chunk& chunk,
                                  std::span<std::byte> to) const {
  bool is_right = true;
  if (sealer_ == nullptr) {
    KVRUN_RETURN_IF_ERROR(file_.Read(chunk.offset_bytes, to));
  } else {
    std::vector<std::byte> sealed(to.size() + kStateTagBytes);
    KVRUN_RETURN_IF_ERROR(file_.Read(chunk.offset_bytes, sealed));
    is_right = sealer_->Open(StateSealed::kChunk, chunk.offset_bytes, sealed, to).ok();
  }
  if (is_right && StateCheckOf(to, file_id_) == chunk.check) return Status::Ok();
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

bool StateFile::Impl::WantsWhole() const {
  if (n_segments_ >= whole_from_segments_) return true;
  const uint64_t live_bytes = tables_.WholeFileBytes(tag_bytes());
  const uint64_t dead_bytes = end_bytes_ - std::min(end_bytes_, live_bytes);
  const bool is_worth_it = dead_bytes > live_bytes && dead_bytes > kDeadBytesThatMayStay;
  return is_worth_it && end_bytes_ >= whole_from_bytes_;
}

bool StateFile::Impl::CanAppend() {
  if (!file_.valid() || has_unread_tail_ || n_segments_ >= kMostStateSegments) return false;
  // Nobody else should, but what is appended to a file without a name, or behind another's segment, is lost.
  const Result<uint64_t> size_bytes = file_.SizeBytes();
  if (!size_bytes.ok() || *size_bytes != size_bytes_ || !folder_.IsNamed(file_)) return false;
  if (name_is_uncertain_ && !folder_.Sync().ok()) return false;
  name_is_uncertain_ = false;
  return CutTail().ok();
}

Status StateFile::Impl::BeginSave() {
  Abandon();
  if (use_ != Use::kSave) {
    return {StatusCode::kInvalidArgument,
            fmt::format("the session's file {} was opened to be read: a save needs another name", path_)};
  }
  if (!WantsWhole() && CanAppend()) return BeginSegment();
  Status status = BeginWhole();
  if (!status.ok()) Fail(status);
  return status;
}

Status StateFile::Impl::BeginSegment() {
  StateSave::Place place{file_id_, n_segments_, end_bytes_, last_check_, sealer_.get(), {}};
  if (sealer_ != nullptr) {
    KVRUN_ASSIGN_OR_RETURN(place.salt, sealer_->BeginSegment(end_bytes_));
  }
  save_ = std::make_unique<StateSave>(file_, tables_, place);
  return Status::Ok();
}

// What a save left that did not end. Nothing of it may look like a header once other bytes are around it.
Status StateFile::Impl::CutTail() {
  if (size_bytes_ == end_bytes_ && !header_is_uncertain_) return Status::Ok();
  header_is_uncertain_ = true;
  KVRUN_RETURN_IF_ERROR(file_.Truncate(end_bytes_));
  KVRUN_RETURN_IF_ERROR(file_.SyncData());
  size_bytes_ = end_bytes_;
  header_is_uncertain_ = false;
  return Status::Ok();
}

Status StateFile::Impl::BeginWhole() {
  KVRUN_RETURN_IF_ERROR(HoldName());
  KVRUN_ASSIGN_OR_RETURN(whole_, folder_.MakeBeside());
  KVRUN_RETURN_IF_ERROR(HoldName());  // something may have got the name while nothing was locked
  whole_id_ = io_.NewFileId();
  const auto cipher = PreferredCipher();
  const StateFileHeader header{whole_id_, key_ ? static_cast<uint32_t>(cipher) : 0};
  KVRUN_RETURN_IF_ERROR(whole_.Write(0, header.Encode()));
  if (key_) KVRUN_RETURN_IF_ERROR(WriteSeal(cipher));
  StateSave::Place place{whole_id_, 0, kStateBlockBytes, {}, whole_sealer_.get(), {}};
  if (key_) {
    KVRUN_ASSIGN_OR_RETURN(place.salt, whole_sealer_->BeginSegment(place.begin_bytes));
  }
  save_ = std::make_unique<StateSave>(whole_, NoTables(), place);
  return Status::Ok();
}

Status StateFile::Impl::WriteSeal(Cipher cipher) {
  KVRUN_ASSIGN_OR_RETURN(StateSealer sealer, StateSealer::Create(cipher, *key_, whole_id_));
  whole_sealer_ = std::make_unique<StateSealer>(std::move(sealer));
  KVRUN_ASSIGN_OR_RETURN(const StateSealHeader header, StateSealHeader::Of(*key_));
  return whole_.Write(StateFileHeader::kBytes, header.Encode(whole_id_));
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
  header_is_uncertain_ = true;
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
  KVRUN_RETURN_IF_ERROR(HoldName());
  name_is_uncertain_ = true;
  KVRUN_RETURN_IF_ERROR(folder_.Rename(whole_));
  KVRUN_RETURN_IF_ERROR(folder_.Sync());
  Count(file_);
  file_ = std::move(whole_);
  whole_ = StateHandle();
  held_ = StateHandle();
  file_id_ = whole_id_;
  sealer_ = std::move(whole_sealer_);
  n_segments_ = 0;
  whole_from_bytes_ = 0;
  whole_from_segments_ = kManyStateSegments;
  TakeOver(*save_);
  return Status::Ok();
}

void StateFile::Impl::TakeOver(StateSave& save) {
  tables_ = std::move(save.tables());
  tables_.DropSpareMemory();
  end_bytes_ = size_bytes_ = save.segment().end_bytes();
  last_check_ = save.header_check();
  ++n_segments_;
  header_is_uncertain_ = name_is_uncertain_ = has_unread_tail_ = false;
}

void StateFile::Impl::Fail(const Status& status) {
  // There may be no space for two files, but for a segment: a smaller file is not tried at each save.
  const bool is_of_whole = save_ == nullptr || whole_.valid();
  if (is_of_whole && status.code() == StatusCode::kIo) {
    whole_from_bytes_ = 2 * end_bytes_;
    whole_from_segments_ = std::max(kManyStateSegments, 2 * n_segments_);
  }
  Abandon();
}

void StateFile::Impl::Abandon() {
  const uint64_t written_end_bytes =
      save_ != nullptr && !whole_.valid() ? save_->written_end_bytes() : end_bytes_;
  save_.reset();
  if (whole_.valid()) {
    Count(whole_);
    folder_.RemoveBeside(whole_);
    // It may have got the name: nobody else gets it then.
    if (folder_.IsNamed(whole_)) held_ = std::move(whole_);
    whole_ = StateHandle();
  }
  if (written_end_bytes == end_bytes_) return;
  // Another process's bytes, which should not be there, stay. Where the rest cannot be cut off, the next save
  // tries it again.
  Result<uint64_t> size_bytes = file_.SizeBytes();
  if (!size_bytes.ok() || *size_bytes > written_end_bytes) return;
  if (*size_bytes > end_bytes_) {
    (void)file_.Truncate(end_bytes_);
    size_bytes = file_.SizeBytes();
  }
  if (size_bytes.ok()) size_bytes_ = *size_bytes;
}

void StateFile::Impl::Count(const StateHandle& file) {
  closed_.read_bytes += file.read_bytes();
  closed_.written_bytes += file.written_bytes();
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

Result<std::unique_ptr<StateFile>> StateFile::Create(const std::string& path, StateFileIo* io,
                                                     const SecretKey* key) {
  if (key != nullptr) KVRUN_RETURN_IF_ERROR(CheckEncryption());
  StateFileIo& system = io != nullptr ? *io : SystemStateFileIo();
  KVRUN_ASSIGN_OR_RETURN(StateFolder folder, StateFolder::Open(system, path));
  auto impl = std::make_unique<Impl>(system, path, std::move(folder), Impl::Use::kSave, key);
  KVRUN_RETURN_IF_ERROR(impl->PrepareCreation());
  return std::unique_ptr<StateFile>(new StateFile(std::move(impl)));
}

Result<std::unique_ptr<StateFile>> StateFile::Open(const std::string& path, bool read_only, StateFileIo* io,
                                                   const SecretKey* key) {
  StateFileIo& system = io != nullptr ? *io : SystemStateFileIo();
  KVRUN_ASSIGN_OR_RETURN(StateFolder folder,
                         read_only ? StateFolder::Unopened(system, path) : StateFolder::Open(system, path));
  const auto use = read_only ? Impl::Use::kRead : Impl::Use::kSave;
  auto impl = std::make_unique<Impl>(system, path, std::move(folder), use, key);
  KVRUN_RETURN_IF_ERROR(impl->Load());
  return std::unique_ptr<StateFile>(new StateFile(std::move(impl)));
}

Result<std::unique_ptr<StateFile>> StateFile::OpenShared(const std::string& path, StateFileIo* io,
                                                         const SecretKey* key) {
  StateFileIo& system = io != nullptr ? *io : SystemStateFileIo();
  KVRUN_ASSIGN_OR_RETURN(StateFolder folder, StateFolder::Unopened(system, path));
  auto impl = std::make_unique<Impl>(system, path, std::move(folder), Impl::Use::kShare, key);
  KVRUN_RETURN_IF_ERROR(impl->Load());
  return std::unique_ptr<StateFile>(new StateFile(std::move(impl)));
}

Result<bool> StateFile::IsSealed(const std::string& path, StateFileIo* io) {
  KVRUN_ASSIGN_OR_RETURN(const StateFolder folder,
                         StateFolder::Unopened(io != nullptr ? *io : SystemStateFileIo(), path));
  KVRUN_ASSIGN_OR_RETURN(const StateHandle file, folder.OpenToRead());
  std::array<std::byte, StateFileHeader::kBytes> bytes{};
  KVRUN_RETURN_IF_ERROR(file.Read(0, bytes));
  KVRUN_ASSIGN_OR_RETURN(const StateFileHeader header, StateFileHeader::Decode(bytes, path));
  return header.is_sealed();
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

uint64_t StateFile::SaveBytes() const { return impl_->SaveBytes(); }

uint64_t StateFile::file_bytes() const { return impl_->file_bytes(); }
uint64_t StateFile::MemoryBytes() const { return impl_->MemoryBytes(); }
StateFileCounters StateFile::counters() const { return impl_->counters(); }

}  // namespace kvrun
