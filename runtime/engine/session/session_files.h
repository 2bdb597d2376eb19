// The files of a session that is kept: PATH has its state (StateFile), and beside it PATH.kv its records and
// PATH.rows the rows of their index, where its method has such on flash (SavePointFile).
// docs/formats/session.md.
//
// One process at a time has a session: it holds the state's lock as long as this lives. Or any number read
// it.
//
// Threads: one at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "platform/base/status.h"
#include "platform/io/secret_key.h"
#include "runtime/engine/session/session.h"
#include "runtime/engine/session/session_identity.h"
#include "runtime/engine/session/session_kv.h"
#include "runtime/store/save_point_file.h"
#include "runtime/store/sealed_file.h"
#include "runtime/store/state_file.h"
#include "runtime/store/state_progress.h"
#include "runtime/store/write_meter.h"
#include "runtime/store/written_days.h"

namespace kvrun {

class SessionFiles final : public KeptFiles, public KeptState {
 public:
  // Of the files beside the state's.
  static constexpr const char* kRecordsEnding = ".kv";
  static constexpr const char* kRowsEnding = ".rows";
  // kCorrupt: the state has none that can be read.
  static Result<SessionIdentity> ReadIdentityOf(const StateFile& state);
  // How much was written for the session, up to its last save; nothing where it does not say.
  static WrittenDays ReadWrittenOf(const StateFile& state);

  // What there is at the path. `key`: all of it is encrypted; null: it is plain. Without a session, and where
  // what is there cannot be gone on with, it is to be begun: why_anew() says why, empty where there was
  // nothing. kInvalidArgument: what is there is not this user's own file, or another process has it, or it is
  // under another key, or encrypted and there is no key, or plain and there is one; kUnsupported: it is of
  // another version of kvrun, and is left alone.
  static Result<std::unique_ptr<SessionFiles>> Open(const std::string& path,
                                                    std::shared_ptr<const SecretKey> key = nullptr);
  // What there is, which stays as it is: what a session writes over it goes to nameless files of its own, and
  // nothing is saved. Others may do the same at once, and nobody saves to it meanwhile. kNotFound: there is
  // no session; kCorrupt: it cannot be read; else as Open.
  static Result<std::unique_ptr<SessionFiles>> OpenToRead(const std::string& path,
                                                          std::shared_ptr<const SecretKey> key = nullptr);
  // A new session that was never saved leaves nothing.
  ~SessionFiles() override;

  const std::string& path() const { return path_; }
  // Of the session that is there; nothing: it is to be begun.
  const std::optional<SessionIdentity>& identity() const { return identity_; }
  const std::string& why_anew() const { return why_anew_; }
  // What is there is of no use: it goes when the new one is first saved.
  Status BeginAnew(const std::string& why);
  // Of the session that is there; empty where it cannot be read.
  std::string ReadNote() const;
  // Set where what is there turns out to be damaged while it is opened.
  void TellDamage(std::shared_ptr<bool> is_damaged) { is_damaged_ = std::move(is_damaged); }

  // --- While the session is made.
  void SetRoom(uint32_t room_tokens) { room_tokens_ = room_tokens; }
  uint32_t room_tokens() const override { return room_tokens_; }
  // Asked while the session is loaded, and while it is saved, in bytes of what the state has of it; either
  // may be empty. What is cancelled so is kCancelled, and the last save point counts.
  void SetProgress(StateProgress of_load, StateProgress of_save) {
    load_progress_ = std::move(of_load);
    save_progress_ = std::move(of_save);
  }
  // What its files get counts there.
  void SetMeter(std::shared_ptr<WriteMeter> meter);
  Result<std::unique_ptr<BlockFile>> Make(Kind kind, const BlockFileOptions& options,
                                          const SizeFn& size) override;
  // Into a session that was made for what is there, with its files. kCorrupt: it has to be computed again.
  Status Load(Session& session);

  // What save points say of the session, but for its words, which the tokenizer (or null) tells.
  void SetIdentity(SessionIdentity identity, const Tokenizer* tokenizer);
  Status Save(Session& session) override;
  bool saves() const override { return !is_read_only_; }
  uint64_t written_bytes() const;  // by save points, without records
  // For the session, ever: what a process wrote that was killed after its last save is not among it.
  const WrittenDays& written() const { return written_; }

 private:
  SessionFiles(std::string path, std::shared_ptr<const SecretKey> key)
      : path_(std::move(path)), key_(std::move(key)) {}
  // A file that is kept, with what encrypts it or null. The session's stores own them.
  struct Kept {
    SavePointFile* file = nullptr;
    SealedFile* seals = nullptr;

    Status VisitState(StateVisitor& visitor, Kind kind) const;
  };
  Status BeginNew();
  Result<std::unique_ptr<BlockFile>> OpenBase(Kind kind, const BlockFileOptions& options, const SizeFn& size,
                                              KvFileSize* of_file);
  Result<std::unique_ptr<BlockFile>> WriteOver(std::unique_ptr<BlockFile> base, Kind kind,
                                               const BlockFileOptions& options, const KvFileSize& of_file);
  Status Damaged(Status status) const;
  std::string NameOf(Kind kind) const;
  std::string FirstWords(const Session& session) const;
  Status SaveState(Session& session, StateVisitor& saver) const;
  void CountState();
  Status SaveWritten(StateVisitor& visitor);

  std::string path_;
  std::shared_ptr<const SecretKey> key_;  // null: it is plain
  bool is_read_only_ = false;
  std::unique_ptr<StateFile> state_;
  std::optional<SessionIdentity> identity_;  // of what is there
  SessionIdentity saved_;                    // of what is saved
  const Tokenizer* tokenizer_ = nullptr;
  std::string why_anew_;
  std::shared_ptr<bool> is_damaged_;
  StateProgress load_progress_;
  StateProgress save_progress_;
  uint32_t room_tokens_ = 0;
  std::shared_ptr<WriteMeter> meter_;  // may be null
  WrittenDays written_;
  uint64_t noted_bytes_ = 0;          // of the meter's, that written_ has
  uint64_t counted_state_bytes_ = 0;  // of the state's, that the meter has
  std::vector<std::string> made_;     // names of a new session, until it is saved
  std::array<Kept, 2> kept_;          // by Kind
  Kept& KeptOf(Kind kind) { return kept_[static_cast<size_t>(kind)]; }
};

}  // namespace kvrun
