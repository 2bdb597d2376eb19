// Reads arbitrary bytes as the file that a session keeps its state in; then saves into it, and reads that.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "platform/base/check.h"
#include "runtime/store/state_file.h"
#include "runtime/store/state_file_io.h"
#include "runtime/store/state_format.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes);

namespace {

using kvrun::StateKey;

// One file, in memory; what is written beside it takes its place.
class OneFileIo : public kvrun::StateFileIo {
 public:
  explicit OneFileIo(std::vector<std::byte> bytes) : bytes_{std::move(bytes), {}} {}

  int Open(int, const char*, int flags, mode_t) override { return (flags & O_CREAT) != 0 ? 1 : 0; }
  int Close(int) override { return 0; }
  int Stat(int fd, struct stat* facts) override {
    *facts = {};
    facts->st_mode = S_IFREG | 0600;
    facts->st_uid = ::geteuid();
    facts->st_size = static_cast<off_t>(bytes_[fd].size());
    return 0;
  }
  int StatName(int, const char*, struct stat* facts) override { return Stat(0, facts); }
  ssize_t ReadAt(int fd, void* to, size_t n_bytes, off_t offset_bytes) override {
    const size_t offset = std::min(static_cast<size_t>(offset_bytes), bytes_[fd].size());
    const size_t n = std::min(n_bytes, bytes_[fd].size() - offset);
    if (n > 0) std::memcpy(to, bytes_[fd].data() + offset, n);
    return static_cast<ssize_t>(n);
  }
  ssize_t WriteAt(int fd, const void* from, size_t n_bytes, off_t offset_bytes) override {
    const auto offset = static_cast<size_t>(offset_bytes);
    bytes_[fd].resize(std::max(bytes_[fd].size(), offset + n_bytes));
    std::memcpy(bytes_[fd].data() + offset, from, n_bytes);
    return static_cast<ssize_t>(n_bytes);
  }
  int Truncate(int fd, off_t size_bytes) override {
    bytes_[fd].resize(static_cast<size_t>(size_bytes));
    return 0;
  }
  int SyncData(int) override { return 0; }
  int Sync(int) override { return 0; }
  int Rename(int, const char*, const char*) override {
    bytes_[0] = bytes_[1];
    return 0;
  }
  int Remove(int, const char*) override { return 0; }
  int Lock(int) override { return 0; }
  uint64_t NewFileId() override { return 1; }

 private:
  std::vector<std::byte> bytes_[2];
};

// Checksums no fuzzer can guess: those of the headers are set right, as whoever wants to can do.
void SetChecks(std::vector<std::byte>& bytes) {
  using namespace kvrun;
  const auto set = [&](size_t at, const StateCheck& check) {
    std::copy(check.begin(), check.end(), bytes.begin() + static_cast<ptrdiff_t>(at));
  };
  const std::span<const std::byte> all = bytes;
  if (bytes.size() < StateFileHeader::kBytes) return;
  set(48, StateCheckOf(all.first(48), 0));
  const auto header = StateFileHeader::Decode(all.first<StateFileHeader::kBytes>(), "");
  if (!header.ok()) return;
  StateCheck previous{};
  for (uint64_t begin = kStateBlockBytes; begin + kStateBlockBytes <= bytes.size();) {
    StateSegmentHeader segment;
    set(begin + 56, previous);
    set(begin + 112, StateCheckOf(all.subspan(begin, 112), header->file_id));
    const auto place = all.subspan(begin).first<StateSegmentHeader::kBytes>();
    if (!StateSegmentHeader::Decode(place, header->file_id, &segment)) return;
    const uint64_t table_begin = begin + kStateBlockBytes + segment.payload_bytes;
    if (table_begin > bytes.size() || segment.table_bytes() > bytes.size() - table_begin) return;
    set(begin + 40, StateCheckOf(all.subspan(table_begin, segment.table_bytes()), header->file_id));
    previous = StateCheckOf(all.subspan(begin, 112), header->file_id);
    set(begin + 112, previous);
    begin =
        (table_begin + segment.table_bytes() + kStateBlockBytes - 1) / kStateBlockBytes * kStateBlockBytes;
  }
}

std::vector<std::pair<StateKey, std::vector<std::byte>>> ReadAll(const kvrun::StateFile& file) {
  std::vector<std::pair<StateKey, std::vector<std::byte>>> items;
  file.ForEach([&](const StateKey& key, uint64_t size_bytes) {
    KVRUN_CHECK(size_bytes <= file.file_bytes());
    std::vector<std::byte> bytes(size_bytes);
    if (file.Read(key, 0, bytes).ok()) items.emplace_back(key, std::move(bytes));
  });
  return items;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  std::vector<std::byte> bytes(size_bytes);
  if (size_bytes > 0) std::memcpy(bytes.data(), data, size_bytes);
  if (size_bytes > 0 && bytes.back() != std::byte{1}) SetChecks(bytes);
  OneFileIo io(std::move(bytes));
  const auto file = kvrun::StateFile::Open("s", false, &io);
  if (!file.ok()) return 0;
  // What can be read of it goes on; what is saved into it is there.
  auto items = ReadAll(**file);
  if (!items.empty()) items.front().second.push_back(std::byte{1});
  KVRUN_CHECK((*file)->BeginSave().ok());
  for (const auto& [key, value] : items) KVRUN_CHECK((*file)->Put(key, value).ok());
  KVRUN_CHECK((*file)->Commit().ok());
  KVRUN_CHECK(ReadAll(**file) == items);
  const auto again = kvrun::StateFile::Open("s", true, &io);
  KVRUN_CHECK(again.ok() && ReadAll(**again) == items);
  return 0;
}
