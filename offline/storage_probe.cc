#include "offline/storage_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "offline/probe.h"
#include "platform/base/random.h"
#include "platform/base/units.h"
#include "runtime/kv/kv_options.h"

namespace kvrun::offline {
namespace {

using Clock = std::chrono::steady_clock;
using Files = std::vector<std::unique_ptr<BlockFile>>;

constexpr uint64_t kMaxFileBytes = 256 * kMiB;
constexpr uint64_t kMaxQuickFileBytes = 16 * kMiB;
constexpr uint64_t kLeastFileBytes = 4 * kMiB;
constexpr uint64_t kShareOfFreeSpace = 8;
constexpr double kFillShare = 0.25;  // of the time
constexpr uint32_t kLargestBlockBytes = 1024 * 1024;
constexpr uint32_t kLargestQuickBlockBytes = 64 * 1024;
constexpr uint32_t kSmallestBlockBytes = 512;
constexpr std::array<uint32_t, 4> kDepths = {1, 4, 16, 32};
constexpr std::array<uint32_t, 2> kQuickDepths = {1, 16};
constexpr uint32_t kQueueDepth = 32;
constexpr uint64_t kHandful = 5;  // reads of a run, at least
constexpr size_t kWriteBytes = 1024 * 1024;
constexpr size_t kWriteDepth = 4;
constexpr uint64_t kCachedShare = 8;  // of the file, what a point may read of it through the page cache
constexpr std::align_val_t kMemoryAlignment{64 * 1024};

double SystemSeconds() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

class AlignedMemory {
 public:
  explicit AlignedMemory(size_t bytes) : data_(new (kMemoryAlignment) std::byte[bytes]()) {}
  std::byte* data() const { return data_.get(); }

 private:
  struct Delete {
    void operator()(std::byte* memory) const { operator delete[](memory, kMemoryAlignment); }
  };
  std::unique_ptr<std::byte[], Delete> data_;
};

// Sorts the values.
double Quantile(std::vector<double>* values, double share) {
  std::sort(values->begin(), values->end());
  const auto last = static_cast<double>(values->size() - 1);
  return (*values)[static_cast<size_t>(last * share + 0.5)];
}

// Requests of one length to one file, so many in flight.
class Stream {
 public:
  Stream(BlockFile& file, IoKind kind, size_t block_bytes, size_t depth, std::function<double()> now_s)
      : file_(file),
        now_s_(std::move(now_s)),
        kind_(kind),
        block_bytes_(block_bytes),
        memory_(block_bytes * depth),
        slots_(depth) {
    completions_.resize(depth);
    for (size_t i = depth; i > 0; --i) free_.push_back(i - 1);
    for (size_t i = 0; i < depth; ++i) slots_[i].segment = {memory_.data() + i * block_bytes, block_bytes};
  }

  bool full() const { return free_.empty(); }
  size_t n_in_flight() const { return slots_.size() - free_.size(); }
  // Of the slot that the next Add takes.
  std::byte* memory() const { return memory_.data() + free_.back() * block_bytes_; }

  // Not full. Reaches the file with the next Kick.
  void Add(uint64_t offset) {
    const size_t slot = free_.back();
    free_.pop_back();
    requests_.push_back({kind_, offset, {&slots_[slot].segment, 1}, slot});
  }

  Status Kick() {
    const double now_s = now_s_();
    for (const IoRequest& request : requests_) slots_[request.tag].submitted_s = now_s;
    size_t n_taken = 0;
    while (n_taken < requests_.size()) {
      KVRUN_ASSIGN_OR_RETURN(const size_t n, file_.Submit(std::span(requests_).subspan(n_taken)));
      if (n == 0) return {StatusCode::kInternal, "a file takes fewer requests than its depth"};
      n_taken += n;
    }
    requests_.clear();
    return Status::Ok();
  }

  // Waits for at least one. Appends each one's time from submission on, in microseconds.
  Status Take(std::vector<double>* latencies_us) {
    KVRUN_ASSIGN_OR_RETURN(const size_t n_done, file_.Complete(completions_, 1));
    const double now_s = now_s_();
    for (size_t i = 0; i < n_done; ++i) {
      const IoCompletion& completion = completions_[i];
      free_.push_back(completion.tag);
      if (completion.error_number != 0) {
        return StatusFromErrno(completion.error_number, kind_ == IoKind::kRead
                                                            ? "cannot read what was just written"
                                                            : "cannot write a file to measure");
      }
      latencies_us->push_back(1e6 * (now_s - slots_[completion.tag].submitted_s));
    }
    return Status::Ok();
  }

  // Nothing may use the memory any more when this ends, whatever has failed.
  ~Stream() {
    while (n_in_flight() > 0) {
      const Result<size_t> n_done = file_.Complete(completions_, 1);
      if (!n_done.ok() || *n_done == 0) return;
      for (size_t i = 0; i < *n_done; ++i) free_.push_back(completions_[i].tag);
    }
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

 private:
  struct Slot {
    iovec segment = {};
    double submitted_s = 0.0;
  };

  BlockFile& file_;
  std::function<double()> now_s_;
  IoKind kind_;
  size_t block_bytes_;
  AlignedMemory memory_;
  std::vector<Slot> slots_;
  std::vector<size_t> free_;
  std::vector<IoRequest> requests_;
  std::vector<IoCompletion> completions_;
};

Status CheckPoint(const BlockFile& file, const RatePoint& point, const RateLimits& limits) {
  const IoMode& mode = file.mode();
  const bool fits = point.block_bytes > 0 && point.block_bytes % mode.alignment_bytes == 0 &&
                    point.depth > 0 && point.depth <= mode.queue_depth &&
                    limits.file_bytes >= point.block_bytes;
  if (fits) return Status::Ok();
  return {StatusCode::kInvalidArgument,
          fmt::format(
              "reads of {} bytes, {} at once, cannot be measured in a file of {} (alignment {}, depth {})",
              point.block_bytes, point.depth, FormatBytes(limits.file_bytes), mode.alignment_bytes,
              mode.queue_depth)};
}

// ---- ProbeStorage

struct Job {
  BlockFile* file = nullptr;
  RatePoint point;
};

Result<std::optional<IoBackend>> BackendNamed(const std::string& name) {
  if (name == "auto") return std::optional<IoBackend>();
  for (const IoBackend backend : {IoBackend::kIoUring, IoBackend::kAio, IoBackend::kThreads}) {
    if (name == IoBackendName(backend)) return std::optional<IoBackend>(backend);
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("there is no back end \"{}\": auto, io_uring, aio, threads", name));
}

Result<BlockFileOptions> FileOptions(const StorageProbeOptions& options, const std::string& folder) {
  KVRUN_ASSIGN_OR_RETURN(const std::optional<IoBackend> backend, BackendNamed(options.backend));
  return BlockFileOptions{.folder = folder,
                          .makes_parents = options.folder.empty(),
                          .auto_backend = !backend.has_value(),
                          .backend = backend.value_or(IoBackend::kIoUring),
                          .queue_depth = kQueueDepth,
                          .allow_tmpfs = options.allow_tmpfs};
}

Result<Files> OpenFiles(const StorageProbeOptions& options, const std::string& folder) {
  KVRUN_ASSIGN_OR_RETURN(const BlockFileOptions asked, FileOptions(options, folder));
  if (options.all_modes) return CreateBlockFileModes(asked);
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file, CreateBlockFile(asked));
  Files files;
  files.push_back(std::move(file));
  return files;
}

Result<uint64_t> FileBytes(const StorageProbeOptions& options, const std::string& folder) {
  KVRUN_ASSIGN_OR_RETURN(const uint64_t free_bytes, FreeSpaceBytes(folder));
  const uint64_t most = options.all_modes ? kMaxFileBytes : kMaxQuickFileBytes;
  const uint64_t asked = options.file_bytes != 0
                             ? RoundUp<uint64_t>(options.file_bytes, kWriteBytes)
                             : std::min(most, free_bytes / kShareOfFreeSpace / kWriteBytes * kWriteBytes);
  const uint64_t needed = std::max(asked, kLeastFileBytes);
  if (needed <= free_bytes && asked >= kLeastFileBytes) return asked;
  if (needed <= free_bytes && options.file_bytes != 0) return needed;
  const uint64_t shown = options.file_bytes != 0 ? needed : kLeastFileBytes * kShareOfFreeSpace;
  return Status(StatusCode::kIo,
                fmt::format("to measure storage needs {} of free space in {}, where {} are: make "
                            "room, or name another folder with --kv-dir",
                            FormatBytes(shown), folder, FormatBytes(free_bytes)));
}

std::vector<Job> JobsOf(const Files& files, bool all_modes, uint64_t file_bytes) {
  const uint64_t largest =
      std::min<uint64_t>(all_modes ? kLargestBlockBytes : kLargestQuickBlockBytes, file_bytes);
  const std::span<const uint32_t> depths =
      all_modes ? std::span<const uint32_t>(kDepths) : std::span<const uint32_t>(kQuickDepths);
  // Buffered reads could be of any length: they are of the same as direct ones, to be held against them.
  const uint32_t alignment = files.front()->mode().alignment_bytes;
  std::vector<Job> jobs;
  for (const std::unique_ptr<BlockFile>& file : files) {
    for (const uint32_t depth : depths) {
      for (uint32_t block = std::max(kSmallestBlockBytes, alignment); block <= largest; block *= 2) {
        jobs.push_back({file.get(), {block, depth}});
      }
    }
  }
  return jobs;
}

Result<StorageRate> Measure(const Job& job, uint64_t file_bytes, double seconds) {
  RateLimits limits{.file_bytes = file_bytes, .seconds = seconds};
  if (!job.file->mode().direct) {
    job.file->DropCache();
    limits.max_bytes = file_bytes / kCachedShare;
  }
  return MeasureRate(*job.file, job.point, limits);
}

}  // namespace

Result<StorageRate> MeasureRate(BlockFile& file, const RatePoint& point, const RateLimits& limits) {
  KVRUN_RETURN_IF_ERROR(CheckPoint(file, point, limits));
  const uint64_t n_blocks = std::min<uint64_t>(limits.file_bytes / point.block_bytes, UINT32_MAX);
  const uint64_t run_bytes = limits.max_bytes / kRateRuns;
  Random random(n_blocks + point.depth);
  const std::function<double()> now_s = limits.now_s ? limits.now_s : SystemSeconds;
  Stream stream(file, IoKind::kRead, point.block_bytes, point.depth, now_s);
  std::vector<double> latencies_us;
  std::vector<double> rates;
  const auto add = [&] {
    while (!stream.full()) {
      stream.Add(uint64_t{random.Below(static_cast<uint32_t>(n_blocks))} * point.block_bytes);
    }
    return stream.Kick();
  };
  KVRUN_RETURN_IF_ERROR(add());
  std::vector<double> first_us;
  KVRUN_RETURN_IF_ERROR(stream.Take(&first_us));
  double begin_s = now_s();
  for (uint32_t run = 0; run < kRateRuns; ++run) {
    const size_t n_before = latencies_us.size();
    while (true) {
      KVRUN_RETURN_IF_ERROR(add());
      KVRUN_RETURN_IF_ERROR(stream.Take(&latencies_us));
      const double end_s = now_s();
      const double seconds = end_s - begin_s;
      const uint64_t n_reads = latencies_us.size() - n_before;
      const uint64_t bytes = n_reads * point.block_bytes;
      if (n_reads < kHandful || (seconds < limits.seconds / kRateRuns && bytes < run_bytes)) continue;
      rates.push_back(static_cast<double>(bytes) / std::max(seconds, 1e-9));
      begin_s = end_s;
      break;
    }
  }
  // Those that were submitted together at first did not wait for a full queue each.
  const size_t n_first = point.depth - std::min<size_t>(point.depth, first_us.size());
  if (latencies_us.size() >= n_first + kHandful) {
    latencies_us.erase(latencies_us.begin(), latencies_us.begin() + static_cast<ptrdiff_t>(n_first));
  }
  return StorageRate{.backend = std::string(IoBackendName(file.mode().backend)),
                     .direct = file.mode().direct,
                     .block_bytes = point.block_bytes,
                     .depth = point.depth,
                     .bytes_per_s = Quantile(&rates, 0.5),
                     .latency_us = std::max(Quantile(&latencies_us, 0.5), 1e-3),
                     .latency_p99_us = std::max(Quantile(&latencies_us, 0.99), 1e-3)};
}

Result<uint64_t> FillRandomly(BlockFile& file, const FillLimits& limits,
                              const std::function<bool(uint64_t, uint64_t)>& progress) {
  KVRUN_RETURN_IF_ERROR(file.Reserve(limits.file_bytes));
  Random random(limits.file_bytes);
  Stream stream(file, IoKind::kWrite, kWriteBytes, std::min<size_t>(kWriteDepth, file.mode().queue_depth),
                SystemSeconds);
  std::vector<double> latencies_us;
  const double begin_s = SystemSeconds();
  uint64_t added_bytes = 0;
  while (true) {
    const bool in_time = SystemSeconds() - begin_s < limits.seconds;
    while (!stream.full() && added_bytes < limits.file_bytes &&
           (in_time || added_bytes < limits.least_bytes)) {
      for (size_t i = 0; i < kWriteBytes; i += sizeof(uint64_t)) {
        const uint64_t value = random.Next();
        std::memcpy(stream.memory() + i, &value, sizeof value);
      }
      stream.Add(added_bytes);
      added_bytes += kWriteBytes;
    }
    KVRUN_RETURN_IF_ERROR(stream.Kick());
    if (stream.n_in_flight() == 0) return added_bytes;
    KVRUN_RETURN_IF_ERROR(stream.Take(&latencies_us));
    if (progress && progress(latencies_us.size() * kWriteBytes, limits.file_bytes)) {
      return Status(StatusCode::kCancelled, "the measurement of storage was cancelled");
    }
  }
}

Status CheckStorage(const StorageProbeOptions& options) {
  const std::string folder = options.folder.empty() ? DefaultKvFolder() : options.folder;
  KVRUN_ASSIGN_OR_RETURN(BlockFileOptions asked, FileOptions(options, folder));
  asked.only_tries = true;
  KVRUN_RETURN_IF_ERROR(CreateBlockFile(asked).status());
  return FileBytes(options, folder).status();
}

Result<StorageProfile> ProbeStorage(const StorageProbeOptions& options, const OfflineProgress& progress) {
  const std::string folder = options.folder.empty() ? DefaultKvFolder() : options.folder;
  KVRUN_ASSIGN_OR_RETURN(const Files files, OpenFiles(options, folder));
  KVRUN_ASSIGN_OR_RETURN(const uint64_t asked_bytes, FileBytes(options, folder));
  const std::vector<Job> jobs = JobsOf(files, options.all_modes, asked_bytes);
  const uint64_t total = jobs.size();
  const auto note = [&](uint64_t done) { return progress && progress("storage", done, total); };
  const Status cancelled(StatusCode::kCancelled, "the measurement of storage was cancelled");
  if (note(0)) return cancelled;
  KVRUN_ASSIGN_OR_RETURN(const uint64_t file_bytes,
                         FillRandomly(*files.front(),
                                      {.file_bytes = asked_bytes,
                                       .least_bytes = kLeastFileBytes,
                                       .seconds = options.budget_seconds * kFillShare},
                                      [&](uint64_t, uint64_t) { return note(0); }));
  for (const std::unique_ptr<BlockFile>& file : files) file->DropCache();
  StorageProfile profile{
      .folder = folder, .alignment_bytes = files.front()->mode().alignment_bytes, .rates = {}};
  const double seconds = options.budget_seconds * (1 - kFillShare) / static_cast<double>(total);
  for (const Job& job : jobs) {
    KVRUN_ASSIGN_OR_RETURN(StorageRate rate, Measure(job, file_bytes, seconds));
    profile.rates.push_back(std::move(rate));
    if (note(profile.rates.size())) return cancelled;
  }
  return profile;
}

}  // namespace kvrun::offline
