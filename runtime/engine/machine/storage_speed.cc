#include "runtime/engine/machine/storage_speed.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "platform/base/units.h"
#include "platform/io/read_rate.h"
#include "runtime/engine/machine/measurement_file.h"
#include "runtime/engine/machine/storage_speed_file.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/plan/kv_plan_input.h"

namespace kvrun {
namespace {

constexpr uint32_t kBlockBytes = 4096;
constexpr uint32_t kDepth = 16;
constexpr uint64_t kFileBytes = 4 * kMiB;
constexpr double kSeconds = 0.1;  // of a try
constexpr uint32_t kTries = 3;    // of what seems slow: a busy machine is slow for longer than a window
constexpr uint32_t kCardGroupTokens = 8;
constexpr uint32_t kDiskGroupTokens = 16;
constexpr uint64_t kCachedShare = 8;  // of the file, what may be read of it through the page cache

// What this process was told, with where it was to be kept; nothing: that it cannot be told.
struct Answer {
  std::optional<std::string> path;
  SpeedKey key;
  std::optional<double> reads_per_s;
};

struct Answers {
  std::mutex mutex;  // held while storage is measured: two at a time would slow each other
  std::vector<Answer> list;
};

Answers& AnswersOfProcess() {
  static Answers answers;
  return answers;
}

std::optional<double> KeptSpeed(const std::optional<std::string>& path, const SpeedKey& key) {
  if (!path) return std::nullopt;
  const Result<double> kept = FindSpeed(*path, key);
  return kept.ok() ? std::optional(*kept) : std::nullopt;
}

// Of what is below a million: 4236.7 as "4,200", as no more than two digits of it count.
std::string RoundText(double value) {
  uint64_t unit = 1;
  while (value / static_cast<double>(unit) >= 100.0) unit *= 10;
  const uint64_t rounded = static_cast<uint64_t>(value / static_cast<double>(unit) + 0.5) * unit;
  if (rounded < 1000) return fmt::format("{}", rounded);
  return fmt::format("{},{:03}", rounded / 1000, rounded % 1000);
}

}  // namespace

uint32_t GroupTokensFor(double reads_per_s) {
  if (reads_per_s < kCardReadsPerSecond) return kDiskGroupTokens;
  return reads_per_s < kFlashReadsPerSecond ? kCardGroupTokens : kDefaultGroupTokens;
}

std::string GroupNote(double reads_per_s) {
  const uint32_t group_tokens = GroupTokensFor(reads_per_s);
  const bool is_disk = group_tokens == kDiskGroupTokens;
  return fmt::format("{} reads {} blocks of 4 KiB a second, so KV is read in groups of {} entries, as on {}",
                     is_disk ? "the storage" : "the flash", RoundText(reads_per_s), group_tokens,
                     is_disk ? "hard disks" : "eMMC");
}

Result<double> MeasureReadsPerSecond(BlockFile& file) {
  KVRUN_ASSIGN_OR_RETURN(
      const uint64_t file_bytes,
      FillWithNoise(file, {.file_bytes = kFileBytes, .least_bytes = kFillBytes, .seconds = kSeconds}, {}));
  RateLimits limits{.file_bytes = file_bytes, .seconds = kSeconds};
  if (!file.mode().direct) limits.max_bytes = file_bytes / kCachedShare;
  double best = 0.0;
  for (uint32_t i = 0; i < kTries && best < kFlashReadsPerSecond; ++i) {
    file.DropCache();
    KVRUN_ASSIGN_OR_RETURN(const double found, BestReadsPerSecond(file, {kBlockBytes, kDepth}, limits));
    best = std::max(best, found);
  }
  return best;
}

std::optional<double> ReadsPerSecondOf(BlockFile& file, const SpeedQuestion& question) {
  const Result<SpeedKey> key = SpeedKeyOf(question.folder, file.mode(), question.version);
  if (!key.ok()) return std::nullopt;
  Answers& answers = AnswersOfProcess();
  const std::lock_guard lock(answers.mutex);
  const auto same = [&](const Answer& answer) { return answer.path == question.path && answer.key == *key; };
  const auto found = std::find_if(answers.list.begin(), answers.list.end(), same);
  if (found != answers.list.end()) return found->reads_per_s;
  std::optional<double> speed = KeptSpeed(question.path, *key);
  if (!speed) {
    if (!question.may_measure) return std::nullopt;
    const Result<double> measured = MeasureReadsPerSecond(file);
    if (measured.ok()) speed = *measured;
    // Where it cannot be kept, the next start measures again.
    if (speed && question.path) (void)WriteSpeed(*question.path, {*key, *speed});
  }
  answers.list.push_back({question.path, *key, speed});
  return speed;
}

std::optional<std::string> SpeedsPath() { return MeasurementPath("storage_speed.json"); }

}  // namespace kvrun
