// Files in memory whose process can be killed at any call, and whose machine can lose its power: then of what
// was not synced any part may be gone, in units of 512 bytes, and any other part there.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "platform/base/random.h"
#include "runtime/store/state_file_io.h"

namespace kvrun::testing {

class PowerCutIo : public StateFileIo {
 public:
  static constexpr size_t kSectorBytes = 512;

  explicit PowerCutIo(uint64_t seed) : random_(seed) {}

  // --- What the test does.
  void DieAt(uint64_t n_calls) { dies_at_ = n_calls_ + n_calls; }
  // One call fails. `drops`: where it is a sync, what was not synced is on the disk or not, and no later sync
  // writes it (as Linux does it).
  void FailAt(uint64_t n_calls, int error_number, bool drops) {
    fails_at_ = n_calls_ + n_calls;
    error_number_ = error_number;
    drops_ = drops;
  }
  bool will_die() const { return dies_at_ != UINT64_MAX; }
  bool is_dead() const { return is_dead_; }
  bool has_failed() const { return has_failed_; }
  void Revive() {
    is_dead_ = has_failed_ = false;
    dies_at_ = fails_at_ = UINT64_MAX;
    for (auto& [fd, inode] : files_) {
      if (inode != nullptr) inode->locked_by = 0;
    }
    files_.clear();
  }
  void CutPower() {
    const uint32_t kept_of_8 = random_.Below(9);
    ApplyNames([&] { return random_.Below(8) < kept_of_8; });
    for (auto& [name, inode] : durable_names_) {
      Apply(*inode, [&] { return random_.Below(8) < kept_of_8; });
      inode->cached = inode->durable;
    }
    names_ = durable_names_;
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& [name, inode] : names_) names.push_back(name);
    return names;
  }
  // What a file is, for tests that damage it.
  std::vector<std::byte>& Bytes(const std::string& name) {
    auto& inode = names_[name];
    if (inode == nullptr) inode = std::make_shared<Inode>();
    return inode->cached;
  }

  // --- What the state file does.
  int Open(int, const char* name, int flags, mode_t) override {
    if (Fails()) return -1;
    if ((flags & O_DIRECTORY) != 0) return NewFd(nullptr);
    auto found = names_.find(name);
    if ((flags & O_CREAT) == 0 && found == names_.end()) return Error(ENOENT);
    if ((flags & O_CREAT) != 0) {
      if (found != names_.end()) return Error(EEXIST);
      found = names_.emplace(name, std::make_shared<Inode>()).first;
      name_changes_.push_back({"", name, found->second});
    }
    return NewFd(found->second);
  }
  int Close(int fd) override {
    const auto found = files_.find(fd);
    if (found == files_.end()) return 0;
    if (found->second != nullptr && found->second->locked_by == fd) found->second->locked_by = 0;
    files_.erase(found);
    return 0;
  }
  int Stat(int fd, struct stat* facts) override {
    if (Fails()) return -1;
    Facts(*files_.at(fd), facts);
    return 0;
  }
  int StatName(int, const char* name, struct stat* facts) override {
    if (Fails()) return -1;
    const auto found = names_.find(name);
    if (found == names_.end()) return Error(ENOENT);
    Facts(*found->second, facts);
    return 0;
  }
  ssize_t ReadAt(int fd, void* to, size_t n_bytes, off_t offset_bytes) override {
    if (Fails()) return -1;
    const auto& bytes = files_.at(fd)->cached;
    const auto offset = static_cast<size_t>(offset_bytes);
    const size_t n = offset < bytes.size() ? std::min(n_bytes, bytes.size() - offset) : 0;
    if (n > 0) std::memcpy(to, bytes.data() + offset, n);
    return static_cast<ssize_t>(n);
  }
  ssize_t WriteAt(int fd, const void* from, size_t n_bytes, off_t offset_bytes) override {
    const bool was_dead = is_dead_;
    const bool fails = Fails();
    // The call that ends it all may have done a part.
    if (fails) n_bytes = was_dead || n_bytes == 0 ? 0 : random_.Below(static_cast<uint32_t>(n_bytes));
    if (n_bytes > 0) {
      Inode& inode = *files_.at(fd);
      const auto* const bytes = static_cast<const std::byte*>(from);
      inode.changes.push_back({static_cast<size_t>(offset_bytes), {bytes, bytes + n_bytes}, false});
      Write(inode.cached, inode.changes.back().offset, bytes, n_bytes);
    }
    return fails ? -1 : static_cast<ssize_t>(n_bytes);
  }
  int Truncate(int fd, off_t size_bytes) override {
    if (Fails()) return -1;
    Inode& inode = *files_.at(fd);
    inode.cached.resize(static_cast<size_t>(size_bytes));
    inode.changes.push_back({static_cast<size_t>(size_bytes), {}, true});
    return 0;
  }
  int SyncData(int fd) override { return Sync(fd); }
  int Sync(int fd) override {
    const std::shared_ptr<Inode> inode = files_.at(fd);
    const bool fails = Fails();
    if (fails && (!drops_ || is_dead_ || inode == nullptr)) return -1;
    const auto is_kept = [&] { return !fails || random_.Below(2) == 0; };
    if (inode == nullptr)
      ApplyNames(is_kept);
    else
      Apply(*inode, is_kept);
    return fails ? -1 : 0;
  }
  int Rename(int, const char* from, const char* to) override {
    if (Fails()) return -1;
    const auto found = names_.find(from);
    if (found == names_.end()) return Error(ENOENT);
    name_changes_.push_back({from, to, found->second});
    ApplyName(names_, name_changes_.back());
    return 0;
  }
  int Remove(int, const char* name) override {
    if (Fails()) return -1;
    const auto found = names_.find(name);
    if (found == names_.end()) return Error(ENOENT);
    name_changes_.push_back({name, "", found->second});
    ApplyName(names_, name_changes_.back());
    return 0;
  }
  int Lock(int fd) override {
    if (Fails()) return -1;
    Inode& inode = *files_.at(fd);
    if (inode.locked_by != 0 && inode.locked_by != fd) return Error(EWOULDBLOCK);
    inode.locked_by = fd;
    return 0;
  }
  int LockShared(int fd) override { return Lock(fd); }
  pid_t LockHolder(const struct stat&) override { return 0; }
  pid_t LockSharer(const struct stat&) override { return 0; }
  uint64_t NewFileId() override { return random_.Next(); }

 private:
  struct Change {
    size_t offset;
    std::vector<std::byte> bytes;
    bool is_size;
  };
  struct Inode {
    std::vector<std::byte> cached;
    std::vector<std::byte> durable;
    std::vector<Change> changes;  // from one to the other
    int locked_by = 0;
  };
  struct NameChange {
    std::string from;  // empty: it is new
    std::string to;    // empty: it is removed
    std::shared_ptr<Inode> inode;
  };
  using NameMap = std::map<std::string, std::shared_ptr<Inode>>;

  static int Error(int error_number) {
    errno = error_number;
    return -1;
  }
  bool Fails() {
    const uint64_t call = n_calls_++;
    if (call >= dies_at_) is_dead_ = true;
    const bool fails = call == fails_at_;
    has_failed_ = has_failed_ || fails;
    if (is_dead_ || fails) errno = fails ? error_number_ : EIO;
    return is_dead_ || fails;
  }
  int NewFd(std::shared_ptr<Inode> inode) {
    files_[++last_fd_] = std::move(inode);
    return last_fd_;
  }
  static void Facts(const Inode& inode, struct stat* facts) {
    *facts = {};
    facts->st_mode = S_IFREG | 0600;
    facts->st_uid = ::geteuid();
    facts->st_ino = reinterpret_cast<uintptr_t>(&inode);
    facts->st_size = static_cast<off_t>(inode.cached.size());
  }
  static void Write(std::vector<std::byte>& bytes, size_t offset, const std::byte* from, size_t n_bytes) {
    bytes.resize(std::max(bytes.size(), offset + n_bytes));
    std::copy_n(from, n_bytes, bytes.begin() + static_cast<ptrdiff_t>(offset));
  }
  template <typename IsKept>
  static void Apply(Inode& inode, const IsKept& is_kept) {
    for (const Change& change : inode.changes) {
      if (change.is_size && is_kept()) inode.durable.resize(change.offset);
      for (size_t done = 0; done < change.bytes.size();) {
        const size_t to_sector = kSectorBytes - (change.offset + done) % kSectorBytes;
        const size_t n = std::min(change.bytes.size() - done, to_sector);
        if (is_kept()) Write(inode.durable, change.offset + done, change.bytes.data() + done, n);
        done += n;
      }
    }
    inode.changes.clear();
  }
  static void ApplyName(NameMap& names, const NameChange& change) {
    const auto found = names.find(change.from);
    if (found != names.end() && found->second == change.inode) names.erase(found);
    if (!change.to.empty()) names[change.to] = change.inode;
  }
  template <typename IsKept>
  void ApplyNames(const IsKept& is_kept) {
    for (const NameChange& change : name_changes_) {
      if (is_kept()) ApplyName(durable_names_, change);
    }
    name_changes_.clear();
  }

  Random random_;
  NameMap names_;
  NameMap durable_names_;
  std::vector<NameChange> name_changes_;
  std::map<int, std::shared_ptr<Inode>> files_;  // none: the folder
  int last_fd_ = 2;
  uint64_t n_calls_ = 0;
  uint64_t dies_at_ = UINT64_MAX;
  uint64_t fails_at_ = UINT64_MAX;
  int error_number_ = 0;
  bool drops_ = false;
  bool is_dead_ = false;
  bool has_failed_ = false;
};

}  // namespace kvrun::testing
