#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "offline/probe.h"
#include "platform/base/units.h"
#include "platform/io/block_file.h"
#include "platform/io/read_rate.h"
#include "runtime/kv/serve/kv_folder.h"

namespace kvrun::offline {
namespace {

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
constexpr uint64_t kCachedShare = 8;  // of the file, what a point may read of it through the page cache

struct Job {
  BlockFile* file = nullptr;
  RatePoint point;
};

Result<std::optional<IoBackend>> BackendNamed(const std::string& name) {
  if (name == "auto") return std::optional<IoBackend>();
  for (const IoBackend backend : {IoBackend::kIoUring, IoBackend::kAio, IoBackend::kThreads}) {
    if (name == IoBackendName(backend)) return std::optional<IoBackend>(backend);
  }
  return Status(
      StatusCode::kInvalidArgument,
      fmt::format("there is no way \"{}\" to read files: name auto, io_uring, aio or threads", name));
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
                             ? RoundUp<uint64_t>(options.file_bytes, kFillBytes)
                             : std::min(most, free_bytes / kShareOfFreeSpace / kFillBytes * kFillBytes);
  const uint64_t needed = std::max(asked, kLeastFileBytes);
  if (needed <= free_bytes && asked >= kLeastFileBytes) return asked;
  if (needed <= free_bytes && options.file_bytes != 0) return needed;
  const uint64_t shown = options.file_bytes != 0 ? needed : kLeastFileBytes * kShareOfFreeSpace;
  return Status(StatusCode::kIo, fmt::format("measuring storage needs {} of free space in {}, where {} are "
                                             "free: make room, or name another folder with --kv-dir",
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
  KVRUN_ASSIGN_OR_RETURN(const ReadRate rate, MeasureReadRate(*job.file, job.point, limits));
  return StorageRate{.backend = std::string(IoBackendName(job.file->mode().backend)),
                     .direct = job.file->mode().direct,
                     .block_bytes = job.point.block_bytes,
                     .depth = job.point.depth,
                     .bytes_per_s = rate.bytes_per_s,
                     .latency_us = rate.latency_us,
                     .latency_p99_us = rate.latency_p99_us};
}

Result<std::string> FolderOf(const StorageProbeOptions& options, FolderUse use) {
  if (!options.folder.empty()) return options.folder;
  return FindKvFolder(use, options.allow_tmpfs ? InMemory::kIsAllowed : InMemory::kIsRefused);
}

}  // namespace

Status CheckStorage(const StorageProbeOptions& options) {
  KVRUN_ASSIGN_OR_RETURN(const std::string folder, FolderOf(options, FolderUse::kIsTried));
  KVRUN_ASSIGN_OR_RETURN(BlockFileOptions asked, FileOptions(options, folder));
  asked.only_tries = true;
  KVRUN_RETURN_IF_ERROR(CreateBlockFile(asked).status());
  return FileBytes(options, folder).status();
}

Result<StorageProfile> ProbeStorage(const StorageProbeOptions& options, const OfflineProgress& progress) {
  KVRUN_ASSIGN_OR_RETURN(const std::string folder, FolderOf(options, FolderUse::kIsMade));
  KVRUN_ASSIGN_OR_RETURN(const Files files, OpenFiles(options, folder));
  KVRUN_ASSIGN_OR_RETURN(const uint64_t asked_bytes, FileBytes(options, folder));
  const std::vector<Job> jobs = JobsOf(files, options.all_modes, asked_bytes);
  const uint64_t total = jobs.size();
  const auto note = [&](uint64_t done) { return progress && progress("storage", done, total); };
  const Status cancelled(StatusCode::kCancelled, "the measurement of storage was cancelled");
  if (note(0)) return cancelled;
  KVRUN_ASSIGN_OR_RETURN(const uint64_t file_bytes,
                         FillWithNoise(*files.front(),
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
