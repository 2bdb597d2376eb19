#include "runtime/engine/session/session_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <span>
#include <utility>

#include "platform/io/named_file.h"
#include "runtime/engine/text/utf8.h"
#include "runtime/store/overlay_file.h"
#include "runtime/store/state_visitor.h"

namespace kvrun {
namespace {

constexpr StateKey kIdentityKey{StatePart::kIdentity, 0};
constexpr uint64_t kMostIdentityBytes = 64 * 1024;
constexpr StateKey kWrittenKey{StatePart::kWear, 0};

Status VisitIdentity(StateVisitor& visitor, std::string* text) {
  std::vector<uint8_t> bytes(text->begin(), text->end());
  KVRUN_RETURN_IF_ERROR(visitor.Vector(kIdentityKey, &bytes, kMostIdentityBytes));
  text->assign(bytes.begin(), bytes.end());
  return Status::Ok();
}

// What a session that was never saved, or is of no use any more, has left. Not where another process has it,
// or where it is no file of this user's own.
Status RemoveLeft(const std::string& path, const BlockFileOptions& options) {
  const Result<std::unique_ptr<BlockFile>> left = OpenNamedBlockFile(path, NamedFileUse::kWrite, options);
  if (left.status().code() == StatusCode::kNotFound) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(left.status());
  return unlink(path.c_str()) == 0 ? Status::Ok() : StatusFromErrno(errno, "cannot remove " + path);
}

}  // namespace

// The state file's lock is still held.
SessionFiles::~SessionFiles() {
  for (const std::string& name : made_) (void)unlink(name.c_str());
}

Result<std::unique_ptr<SessionFiles>> SessionFiles::Open(const std::string& path,
                                                         std::shared_ptr<const SecretKey> key) {
  std::unique_ptr<SessionFiles> files(new SessionFiles(path, std::move(key)));
  Result<std::unique_ptr<StateFile>> state = StateFile::Open(path, false, nullptr, files->key_.get());
  if (state.status().code() == StatusCode::kNotFound) {
    KVRUN_RETURN_IF_ERROR(files->BeginNew());
    return files;
  }
  if (state.status().code() == StatusCode::kCorrupt) {
    KVRUN_RETURN_IF_ERROR(files->BeginAnew(state.status().message()));
    return files;
  }
  KVRUN_ASSIGN_OR_RETURN(files->state_, std::move(state));
  Result<SessionIdentity> identity = ReadIdentityOf(*files->state_);
  if (identity.status().code() == StatusCode::kCorrupt) {
    KVRUN_RETURN_IF_ERROR(files->BeginAnew(identity.status().message()));
    return files;
  }
  KVRUN_RETURN_IF_ERROR(identity.status());
  if (identity->is_begun()) files->identity_ = std::move(identity).value();
  files->written_ = ReadWrittenOf(*files->state_);
  return files;
}

Result<std::unique_ptr<SessionFiles>> SessionFiles::OpenToRead(const std::string& path,
                                                               std::shared_ptr<const SecretKey> key) {
  std::unique_ptr<SessionFiles> files(new SessionFiles(path, std::move(key)));
  files->is_read_only_ = true;
  KVRUN_ASSIGN_OR_RETURN(files->state_, StateFile::OpenShared(path, nullptr, files->key_.get()));
  KVRUN_ASSIGN_OR_RETURN(SessionIdentity identity, ReadIdentityOf(*files->state_));
  if (!identity.is_begun()) {
    return Status(StatusCode::kNotFound,
                  fmt::format("nothing was saved in the session {} yet: there is nothing to read", path));
  }
  files->identity_ = std::move(identity);
  return files;
}

WrittenDays SessionFiles::ReadWrittenOf(const StateFile& state) {
  StateLoader loader(state);
  WrittenDays written;
  const bool is_read = loader.Has(kWrittenKey) && written.VisitState(loader, kWrittenKey).ok();
  return is_read ? written : WrittenDays();
}

// From now on no other process takes its place, and files of records beside it are its own: before that, they
// are somebody else's.
Status SessionFiles::BeginNew() {
  for (const Kind kind : {Kind::kRecords, Kind::kRows}) {
    struct stat facts {};
    if (lstat(NameOf(kind).c_str(), &facts) != 0) continue;
    return {StatusCode::kInvalidArgument,
            fmt::format("{} is there already, and there is no session that it belongs to: remove it, or name "
                        "another session",
                        NameOf(kind))};
  }
  KVRUN_ASSIGN_OR_RETURN(state_, StateFile::Create(path_, nullptr, key_.get()));
  KVRUN_RETURN_IF_ERROR(state_->BeginSave());
  StateSaver saver(*state_);
  std::string text = WriteIdentity({});
  KVRUN_RETURN_IF_ERROR(VisitIdentity(saver, &text));
  KVRUN_RETURN_IF_ERROR(state_->Commit());
  made_.push_back(path_);
  return Status::Ok();
}

std::string SessionFiles::ReadNote() const {
  if (state_ == nullptr) return {};
  const Result<std::string> note = Session::ReadNote(*state_);
  return note.ok() ? *note : std::string();
}

// Passes it on.
Status SessionFiles::Damaged(Status status) const {
  if (is_damaged_ != nullptr) *is_damaged_ = status.code() == StatusCode::kCorrupt;
  return status;
}

Result<SessionIdentity> SessionFiles::ReadIdentityOf(const StateFile& state) {
  StateLoader loader(state);
  std::string text;
  KVRUN_RETURN_IF_ERROR(VisitIdentity(loader, &text));
  return ReadIdentity(text);
}

Status SessionFiles::BeginAnew(const std::string& why) {
  identity_.reset();
  why_anew_ = why;
  kept_ = {};
  if (state_ != nullptr) written_ = ReadWrittenOf(*state_);
  CountState();
  state_.reset();
  counted_state_bytes_ = 0;
  KVRUN_ASSIGN_OR_RETURN(state_, StateFile::Create(path_, nullptr, key_.get()));
  return Status::Ok();
}

std::string SessionFiles::NameOf(Kind kind) const {
  return path_ + (kind == Kind::kRecords ? kRecordsEnding : kRowsEnding);
}

Result<std::unique_ptr<BlockFile>> SessionFiles::Make(Kind kind, const BlockFileOptions& options,
                                                      const SizeFn& size) {
  KvFileSize of_file;
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> base, OpenBase(kind, options, size, &of_file));
  return is_read_only_ ? WriteOver(std::move(base), kind, options, of_file) : std::move(base);
}

Result<std::unique_ptr<BlockFile>> SessionFiles::OpenBase(Kind kind, const BlockFileOptions& options,
                                                          const SizeFn& size, KvFileSize* of_file) {
  const bool is_there = identity_.has_value();
  if (!is_there) KVRUN_RETURN_IF_ERROR(RemoveLeft(NameOf(kind), options));
  NamedFileUse use = is_there ? NamedFileUse::kWrite : NamedFileUse::kCreate;
  if (is_read_only_) use = NamedFileUse::kRead;
  Result<std::unique_ptr<BlockFile>> opened = OpenNamedBlockFile(NameOf(kind), use, options);
  if (opened.status().code() == StatusCode::kNotFound) {
    return Damaged(Status(StatusCode::kCorrupt, opened.status().message()));
  }
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file, std::move(opened));
  file = Metered(std::move(file), meter_);
  if (!made_.empty()) made_.push_back(NameOf(kind));
  IoMode mode = file->mode();
  mode.alignment_bytes = std::max(mode.alignment_bytes, SavePointFile::kAlignmentBytes);
  *of_file = size(mode);
  const SealedShape& shape = of_file->shape;
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<SavePointFile> kept,
                         SavePointFile::Create(std::move(file), shape.size_bytes, shape.unit_bytes));
  Kept& pair = KeptOf(kind);
  pair = {kept.get(), nullptr};
  std::unique_ptr<BlockFile> outer = std::move(kept);
  if (key_ != nullptr) {
    KVRUN_ASSIGN_OR_RETURN(auto sealed, SealedFile::Create(std::move(outer), *key_, shape,
                                                           static_cast<uint32_t>(kind), of_file->n_helpers));
    pair.seals = sealed.get();
    outer = std::move(sealed);
  }
  if (is_there) {
    StateLoader loader(*state_);
    KVRUN_RETURN_IF_ERROR(Damaged(pair.VisitState(loader, kind)));
  }
  return outer;
}

// The key of what is written over ends with the process, as that does.
Result<std::unique_ptr<BlockFile>> SessionFiles::WriteOver(std::unique_ptr<BlockFile> base, Kind kind,
                                                           const BlockFileOptions& options,
                                                           const KvFileSize& of_file) {
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> own, CreateBlockFile(options));
  own = Metered(std::move(own), meter_);
  if (key_ != nullptr) {
    KVRUN_ASSIGN_OR_RETURN(const SecretKey key, SecretKey::Random());
    KVRUN_ASSIGN_OR_RETURN(own, SealedFile::Create(std::move(own), key, of_file.shape,
                                                   static_cast<uint32_t>(kind), of_file.n_helpers));
  }
  KVRUN_ASSIGN_OR_RETURN(auto overlay,
                         OverlayFile::Create(std::move(base), std::move(own), of_file.shape.size_bytes,
                                             of_file.shape.unit_bytes));
  return std::unique_ptr<BlockFile>(std::move(overlay));
}

Status SessionFiles::Kept::VisitState(StateVisitor& visitor, Kind kind) const {
  KVRUN_RETURN_IF_ERROR(file->VisitState(visitor, static_cast<uint32_t>(kind)));
  return seals != nullptr ? seals->VisitState(visitor) : Status::Ok();
}

Status SessionFiles::Load(Session& session) {
  StateLoader loader(*state_);
  if (!load_progress_) return Damaged(session.VisitState(loader));
  uint64_t total_bytes = 0;
  state_->ForEach([&](const StateKey& key, uint64_t size_bytes) {
    const bool is_of_files = key.part == StatePart::kIdentity || key.part == StatePart::kFile ||
                             key.part == StatePart::kSeals || key.part == StatePart::kWear;
    total_bytes += is_of_files ? 0 : size_bytes;
  });
  TellingVisitor telling(loader, total_bytes, load_progress_);
  KVRUN_RETURN_IF_ERROR(Damaged(session.VisitState(telling)));
  return telling.End();
}

// What there is to be saved is looked through first, to say how much it is; no bytes move for that.
Status SessionFiles::SaveState(Session& session, StateVisitor& saver) const {
  if (!save_progress_) return session.VisitState(saver);
  StateCounter counter;
  KVRUN_RETURN_IF_ERROR(session.VisitState(counter));
  TellingVisitor telling(saver, counter.size_bytes(), save_progress_);
  KVRUN_RETURN_IF_ERROR(session.VisitState(telling));
  return telling.End();
}

void SessionFiles::SetIdentity(SessionIdentity identity, const Tokenizer* tokenizer) {
  saved_ = std::move(identity);
  tokenizer_ = tokenizer;
}

std::string SessionFiles::FirstWords(const Session& session) const {
  constexpr size_t kTokens = 24;
  const std::span<const TokenId> tokens = session.Tokens(0);
  if (tokenizer_ == nullptr) return {};
  const auto end = tokens.begin() + static_cast<std::ptrdiff_t>(std::min(tokens.size(), kTokens));
  return RepairedUtf8(tokenizer_->Decode({tokens.begin(), end}));
}

// Records are on the disk before the state that names them.
Status SessionFiles::Save(Session& session) {
  if (is_read_only_) {
    return {StatusCode::kInvalidArgument,
            fmt::format("the session {} was opened to be read: what follows is kept nowhere", path_)};
  }
  KVRUN_RETURN_IF_ERROR(state_->BeginSave());
  StateSaver saver(*state_);
  saved_.words = FirstWords(session);
  std::string text = WriteIdentity(saved_);
  KVRUN_RETURN_IF_ERROR(VisitIdentity(saver, &text));
  KVRUN_RETURN_IF_ERROR(SaveState(session, saver));
  for (const Kind kind : {Kind::kRecords, Kind::kRows}) {
    const Kept& kept = KeptOf(kind);
    if (kept.file == nullptr) continue;
    KVRUN_RETURN_IF_ERROR(kept.file->Sync());
    KVRUN_RETURN_IF_ERROR(kept.VisitState(saver, kind));
  }
  KVRUN_RETURN_IF_ERROR(SaveWritten(saver));
  const Status committed = state_->Commit();
  CountState();
  KVRUN_RETURN_IF_ERROR(committed);
  for (const Kept& kept : kept_) {
    if (kept.file != nullptr) kept.file->EndSave();
  }
  identity_ = saved_;
  made_.clear();
  // Also where nothing had changed: those that were not used for longest are pruned first.
  (void)utimensat(AT_FDCWD, path_.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
  return Status::Ok();
}

void SessionFiles::SetMeter(std::shared_ptr<WriteMeter> meter) {
  meter_ = std::move(meter);
  CountState();
}

void SessionFiles::CountState() {
  if (state_ == nullptr || meter_ == nullptr) return;
  meter_->Add(written_bytes() - counted_state_bytes_);
  counted_state_bytes_ = written_bytes();
}

// Together with the save's own bytes. Where the save would write nothing, this is not a reason to.
Status SessionFiles::SaveWritten(StateVisitor& visitor) {
  const uint64_t save_bytes = state_->SaveBytes();
  if (save_bytes > 0 && meter_ != nullptr) {
    const uint64_t bytes = meter_->bytes() + save_bytes;
    written_.Add(Today(), bytes - std::min(bytes, noted_bytes_));
    noted_bytes_ = std::max(noted_bytes_, bytes);
  }
  return written_.VisitState(visitor, kWrittenKey);
}

uint64_t SessionFiles::written_bytes() const { return state_->counters().written_bytes; }

}  // namespace kvrun
