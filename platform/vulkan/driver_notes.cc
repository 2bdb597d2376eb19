#include "platform/vulkan/driver_notes.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <utility>

#include <nlohmann/json.hpp>

#include "platform/base/units.h"
#include "platform/io/folder.h"
#include "platform/io/input_file.h"
#include "platform/io/own_file.h"
#include "platform/io/replace_file.h"

namespace kvrun {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "kvrun driver";
constexpr NoteKind kKinds[] = {NoteKind::kTrial, NoteKind::kApart, NoteKind::kUse};
constexpr uint32_t kMaxEnds = 2;
constexpr uint64_t kMaxFileBytes = kMiB;  // more than any of these files has
constexpr double kDefaultTimeoutS = 20.0;

const char* EndingOf(NoteKind kind) {
  switch (kind) {
    case NoteKind::kTrial: return ".trial";
    case NoteKind::kApart: return ".apart";
    case NoteKind::kUse: break;
  }
  return ".use";
}

// Notes of this process, for InterruptTrials: a handler may run at any time, so a slot's state is written
// last when it is taken.
struct Slot {
  std::atomic<int> is_taken{0};  // 1: being filled, 2: in use
  timespec begin;
  double limit_s;
  char path[1024];
};
std::array<Slot, 64> g_slots;
std::atomic<int> g_interruptions{0};
std::atomic<uint64_t> g_notes{0};
std::atomic<bool> g_is_copy{false};
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

int TakeSlot(const std::string& path, double limit_s) {
  if (path.size() >= sizeof Slot::path) return -1;
  for (size_t i = 0; i < g_slots.size(); ++i) {
    Slot& slot = g_slots[i];
    int expected = 0;
    if (!slot.is_taken.compare_exchange_strong(expected, 1)) continue;
    std::memcpy(slot.path, path.c_str(), path.size() + 1);
    clock_gettime(CLOCK_MONOTONIC, &slot.begin);
    slot.limit_s = limit_s;
    slot.is_taken.store(2);
    return static_cast<int>(i);
  }
  return -1;
}

// Another limit of memory makes another driver of it: what crashed for want of memory may work without.
std::string MemoryLimits() {
  std::string limits;
  for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
    rlimit limit = {};
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) continue;
    limits += fmt::format(" {}:{}", static_cast<int>(resource), static_cast<uint64_t>(limit.rlim_cur));
  }
  return limits;
}

// Whether no process holds it. What is no regular file (which may be a pipe, and then would be waited for) is
// none of these.
bool IsDead(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW));
  struct stat facts {};
  return file.valid() && fstat(file.get(), &facts) == 0 && S_ISREG(facts.st_mode) &&
         flock(file.get(), LOCK_SH | LOCK_NB) == 0;
}

// Empty where it cannot be read, or is none of these.
std::string TextOf(const std::string& path) {
  const Result<InputFile> file = InputFile::Open(path);
  if (!file.ok() || file->size_bytes() > kMaxFileBytes) return "";
  const Result<std::vector<std::byte>> bytes = file->ReadAll();
  if (!bytes.ok()) return "";
  return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}

// What was done with the driver.
std::string DoingIn(const std::string& note) {
  const std::string text = TextOf(note);
  return text.substr(0, text.find('\n'));
}

DriverRecord RecordIn(const std::string& text) {
  DriverRecord record;
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  try {
    if (json.at("format") != kFormat || json.at("version") != 1) return {};
    record.state = json.at("works").get<bool>() ? DriverState::kWorks : DriverState::kLeftOut;
    record.was_opened = json.at("was_opened").get<bool>();
    record.devices = json.at("devices").get<std::vector<std::string>>();
    record.why = json.at("why").get<std::string>();
    const auto& ends = json.at("ends");
    // Of a file that anyone may have written: a number beyond all integers is one too.
    if (!ends.is_number_unsigned() || ends.get<uint64_t>() > UINT32_MAX) return {};
    record.n_ends = ends.get<uint32_t>();
  } catch (const Json::exception&) {
    return {};  // damaged: the driver is tried again
  }
  return record;
}

Status WriteNote(int fd, const std::string& text, NoteKind kind) {
  if (write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return StatusFromErrno(errno, "cannot write the note");
  }
  if (kind != NoteKind::kUse && fsync(fd) != 0) return StatusFromErrno(errno, "cannot write the note");
  return Status::Ok();
}

}  // namespace

TrialNote::TrialNote(std::string path, UniqueFd lock, double limit_s)
    : path_(std::move(path)), lock_(std::move(lock)), slot_(TakeSlot(path_, limit_s)) {}

TrialNote::TrialNote(TrialNote&& other) noexcept
    : path_(std::move(other.path_)), lock_(std::move(other.lock_)), slot_(std::exchange(other.slot_, -1)) {}

TrialNote& TrialNote::operator=(TrialNote&& other) noexcept {
  Clear();
  path_ = std::move(other.path_);
  lock_ = std::move(other.lock_);
  slot_ = std::exchange(other.slot_, -1);
  return *this;
}

TrialNote::~TrialNote() { Clear(); }

void TrialNote::Clear() {
  if (!lock_.valid()) return;
  unlink(path_.c_str());  // before the lock goes
  if (slot_ >= 0) g_slots[static_cast<size_t>(slot_)].is_taken.store(0);
  slot_ = -1;
  lock_ = UniqueFd();
}

DriverNotes::DriverNotes(std::optional<std::string> folder) {
  if (!folder || !MakeFolder(*folder, MissingParents::kAreMade).ok()) return;
  if (access(folder->c_str(), W_OK | X_OK) == 0) folder_ = std::move(folder);
}

std::string DriverNotes::Stem(const DriverFile& driver) const {
  const std::string identity =
      fmt::format("{}\n{}\n{} {} {} {}{}", driver.manifest, driver.library, driver.manifest_bytes,
                  driver.manifest_mtime_ns, driver.library_bytes, driver.library_mtime_ns, MemoryLimits());
  std::string name = std::filesystem::path(driver.manifest).stem().string().substr(0, 100);
  return fmt::format("{}-{:016x}", name, XXH3_64bits(identity.data(), identity.size()));
}

std::string DriverNotes::RecordPath(const DriverFile& driver) const {
  return fmt::format("{}/{}.json", *folder_, Stem(driver));
}

// Those of ended processes.
std::vector<std::string> DriverNotes::NotesOf(const DriverFile& driver, NoteKind kind) const {
  const std::string begin = Stem(driver) + ".";
  std::vector<std::string> paths;
  std::error_code error;
  for (std::filesystem::directory_iterator i(*folder_, error), end; !error && i != end; i.increment(error)) {
    const std::string name = i->path().filename().string();
    if (!name.starts_with(begin) || !name.ends_with(EndingOf(kind))) continue;
    if (IsDead(i->path().string())) paths.push_back(i->path().string());
  }
  return paths;
}

DriverRecord DriverNotes::Read(const DriverFile& driver) const {
  if (!folder_) return {};
  DriverRecord record = RecordIn(TextOf(RecordPath(driver)));
  if (record.state == DriverState::kLeftOut) return record;
  if (const auto notes = NotesOf(driver, NoteKind::kTrial); !notes.empty()) {
    record.state = DriverState::kLeftOut;
    record.why = fmt::format("kvrun ended while it {}", DoingIn(notes.front()));
    return record;
  }
  if (const auto notes = NotesOf(driver, NoteKind::kApart); notes.size() >= kMaxEnds) {
    record.state = DriverState::kLeftOut;
    record.why = fmt::format("kvrun ended twice while it {}", DoingIn(notes.front()));
    return record;
  }
  return AfterUses(driver, std::move(record));
}

// What ended processes have left is counted in the record, and goes.
DriverRecord DriverNotes::AfterUses(const DriverFile& driver, DriverRecord record) const {
  const auto uses = NotesOf(driver, NoteKind::kUse);
  if (uses.empty()) return record;
  const std::string doing = DoingIn(uses.front());
  for (const std::string& path : uses) unlink(path.c_str());
  if (record.state != DriverState::kWorks) return record;
  record.n_ends += 1;
  record.was_opened = false;
  const bool is_last = record.n_ends >= kMaxEnds;
  if (is_last) record.why = fmt::format("kvrun ended twice while it {}", doing);
  record.state = is_last ? DriverState::kLeftOut : DriverState::kWorks;
  (void)Write(driver, record);
  if (!is_last) record.state = DriverState::kUntried;
  return record;
}

Status DriverNotes::Write(const DriverFile& driver, const DriverRecord& record) const {
  if (!folder_) return {StatusCode::kNotFound, "there is no folder to keep it in"};
  if (g_is_copy.load()) return Status::Ok();
  const Json json = {{"format", kFormat},
                     {"version", 1},
                     {"manifest", driver.manifest},
                     {"library", driver.library},
                     {"memory_limits", MemoryLimits()},
                     {"works", record.state == DriverState::kWorks},
                     {"was_opened", record.was_opened},
                     {"devices", record.devices},
                     {"why", record.why},
                     {"ends", record.n_ends}};
  const std::string text = json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  return ReplaceFile(RecordPath(driver), std::as_bytes(std::span(text)));
}

TrialNote DriverNotes::Begin(const DriverFile& driver, NoteKind kind, const std::string& doing,
                             double limit_s) const {
  if (!folder_ || g_is_copy.load()) return {};
  // Locked before it has its name: nobody sees it without its lock.
  const std::string path =
      fmt::format("{}/{}.{}-{}{}", *folder_, Stem(driver), getpid(), g_notes.fetch_add(1), EndingOf(kind));
  const std::string temporary = path + ".new";
  UniqueFd file(open(temporary.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return {};
  const std::string text = fmt::format("{}\n{}\n", doing, driver.manifest);
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0 || !WriteNote(file.get(), text, kind).ok() ||
      std::rename(temporary.c_str(), path.c_str()) != 0) {
    unlink(temporary.c_str());
    return {};
  }
  if (kind != NoteKind::kUse) (void)SyncFolder(*folder_);
  return {path, std::move(file), limit_s};
}

void DriverNotes::ForgetEnds(const DriverFile& driver, const std::string& doing) const {
  if (!folder_ || g_is_copy.load()) return;
  for (const std::string& path : NotesOf(driver, NoteKind::kApart)) {
    if (DoingIn(path) == doing) unlink(path.c_str());
  }
}

void DriverNotes::Forget(const DriverFile& driver) const {
  if (!folder_) return;
  unlink(RecordPath(driver).c_str());
  for (const NoteKind kind : kKinds) {
    for (const std::string& path : NotesOf(driver, kind)) unlink(path.c_str());
  }
}

std::string DriverNotes::PathsOf(const DriverFile& driver) const {
  if (!folder_) return "";
  const std::vector<std::string> notes = NotesOf(driver, NoteKind::kTrial);
  return notes.size() == 1 && access(RecordPath(driver).c_str(), F_OK) != 0
             ? notes.front()
             : fmt::format("{}/{}.*", *folder_, Stem(driver));
}

std::optional<std::string> DriverNotesFolder() {
  const std::optional<std::string> folder = CacheFolder();
  if (!folder) return std::nullopt;
  return *folder + "/drivers";
}

void InterruptTrials() {
  const int saved_errno = errno;
  g_interruptions.fetch_add(1);
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  for (Slot& slot : g_slots) {
    if (slot.is_taken.load() != 2) continue;
    const double spent_s = static_cast<double>(now.tv_sec - slot.begin.tv_sec) +
                           1e-9 * static_cast<double>(now.tv_nsec - slot.begin.tv_nsec);
    if (spent_s < slot.limit_s) unlink(slot.path);
  }
  errno = saved_errno;
}

int TrialInterruptions() { return g_interruptions.load(); }

void BecomeTrialCopy() { g_is_copy.store(true); }
bool IsTrialCopy() { return g_is_copy.load(); }

double DriverTimeoutSeconds() {
  const char* value = std::getenv("KVRUN_DRIVER_TIMEOUT");
  if (value == nullptr || *value == '\0') return kDefaultTimeoutS;
  const double seconds = std::strtod(value, nullptr);
  return seconds > 0.0 ? std::min(seconds, 3600.0) : kDefaultTimeoutS;
}

}  // namespace kvrun
