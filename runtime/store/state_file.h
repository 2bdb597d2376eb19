// What a session keeps of itself in a file, beside its records: named *items*, each a string of bytes. A save
// writes what has changed since the save before. Knows bytes, not what they mean. Format:
// docs/formats/state_file.md.
//
// An item is cut into chunks of kStateChunkBytes. A save is a *segment* at the file's end: the chunks that
// are not as they were (by a hash of each that stays in memory), and a table of them. What the table does not
// mention is as it was. Segments add up: where what is of no use any more exceeds what is, the next save
// writes all chunks to another file, which then takes the name.
//
// Whenever the process or the machine ends: the file then holds the last save that Commit has answered, or
// one that was under way, whole; never a part of one. What damage has made of it is an error, not an older
// save.
//
// One process at a time has a file to save to it, which keeps others from that by a lock; who only reads
// needs none, and sees the last save there was when it opened the file.
//
// With a key all of the file is sealed, but that it is one, and what tells whether a key is its own: the rest
// is of no use to whoever has the file alone. What was changed of it does not open, and is as damaged.
//
// Threads: one at a time.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "platform/base/status.h"
#include "platform/io/secret_key.h"

namespace kvrun {

class StateFileIo;

// A page of most flash. A list that grew writes its last chunk anew: of 8B's KV in memory, 512 lists, 4 MiB.
inline constexpr uint32_t kStateChunkBytes = 16 * 1024;

// What an item is. Items of one part do not mind those of another.
enum class StatePart : uint16_t {
  kIdentity = 1,  // of what the session was: model, shapes, options
  kSequence = 2,  // tokens and lengths
  kLedger = 3,
  kStore = 4,  // which records are there, and their checksums
  kWindow = 5,
  kIndex = 6,
  kSpaces = 7,
  kStaticSet = 8,
  kKept = 9,
  kLayerStates = 10,
  kResidentKv = 11,
  kFile = 12,   // where what the file of records held lies in it
  kPass = 13,   // what a forward pass knows besides its KV
  kSlots = 14,  // what lay in slots, where that decides what is attended to
  kSeals = 15,  // what opens the units of a file of records that are sealed
  kWear = 16,   // how much was written for the session
};

struct StateKey {
  StatePart part = StatePart::kIdentity;
  uint16_t item = 0;  // the part's own number
  uint32_t layer = 0;
  uint32_t stream = 0;  // or a sequence, or whatever tells items of a layer apart
  auto operator<=>(const StateKey&) const = default;
};

struct StateFileCounters {
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
  uint64_t saves = 0;
};

class StateFile {
 public:
  // An empty one, which is on disk when it is first saved; what had its name is there until then. The folder
  // must be there; it stays that folder wherever the process goes. Mode 0600. kInvalidArgument: what has its
  // name is not a file of this user's own, or another process has it to save to it. (Where nothing has the
  // name yet, the first of two processes to begin a save gets it, and the other one's saves say so.)
  // `io`: of tests; null is the system's. `key`: it is sealed; else plain. kUnsupported: this build cannot
  // encrypt.
  static Result<std::unique_ptr<StateFile>> Create(const std::string& path, StateFileIo* io = nullptr,
                                                   const SecretKey* key = nullptr);
  // The last whole save. kNotFound: there is no file. kUnsupported: of another version of the format, which
  // the message names. kCorrupt: no whole save is in it, or one that was answered is not whole any more: it
  // has to be computed again. kInvalidArgument: not a file of this user's own (a link, a pipe, another's), or
  // another process has it to save to it; or it is sealed and there is no key, or another one; or it is plain
  // and there is a key. `read_only`: may be of a folder that cannot be written; no saves,
  // and no lock.
  //
  // Where the disk cannot read what lies behind a whole save, that save is what the file holds: a sector may
  // be unreadable because the power went while it was written. The next save then writes a whole file.
  //
  // kIo also where what is there cannot be synced. The system says that once: a second Open may then answer,
  // and build on, what a power cut loses.
  static Result<std::unique_ptr<StateFile>> Open(const std::string& path, bool read_only = false,
                                                 StateFileIo* io = nullptr, const SecretKey* key = nullptr);
  // As Open of one that is only read, and nobody saves to it while this lives; others may do the same.
  // kInvalidArgument: another process has it to save to it.
  static Result<std::unique_ptr<StateFile>> OpenShared(const std::string& path, StateFileIo* io = nullptr,
                                                       const SecretKey* key = nullptr);
  // Whether it is sealed; errors are those of Open that need no key.
  static Result<bool> IsSealed(const std::string& path, StateFileIo* io = nullptr);
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  const std::string& path() const;

  // --- What the last save holds.
  // Nothing: there is no such item. 0 bytes is an item.
  std::optional<uint64_t> SizeOf(const StateKey& key) const;
  // A part of an item: kCorrupt where its chunks are not what was written. kNotFound where there is no such
  // item, kInvalidArgument where it is shorter.
  Status Read(const StateKey& key, uint64_t offset_bytes, std::span<std::byte> to) const;
  // Of all items, ascending by key.
  void ForEach(const std::function<void(const StateKey&, uint64_t size_bytes)>& visit) const;

  // --- A save. Begins; then Put of every item that there is; then Commit. An item that was not put is gone.
  // After an error, and after BeginSave without Commit, this is what the last save holds, and a save may
  // begin anew. (Where Commit failed at its very end, the file itself may hold the save that failed, whole,
  // as it may after a power cut, until the next save begins.) kInvalidArgument: another process has the file.
  Status BeginSave();
  // The bytes may go when it returns. An item may be put in pieces, one after another: an item's pieces but
  // the last are whole chunks. No other item comes in between.
  Status Put(const StateKey& key, std::span<const std::byte> bytes, bool is_last = true);
  // What Commit would write of all that was put, and has written: to some hundred bytes. 0: nothing, as all
  // is as it was.
  uint64_t SaveBytes() const;
  // It is on the disk, and cannot be lost by a power cut.
  Status Commit();

  // To the end of the last save. A save that was killed may have left more, which the next one cuts off.
  uint64_t file_bytes() const;
  uint64_t MemoryBytes() const;  // of its tables, and of a save that is under way
  StateFileCounters counters() const;

 private:
  class Impl;
  explicit StateFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvrun
