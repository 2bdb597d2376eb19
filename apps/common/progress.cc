#include "apps/common/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "apps/common/files.h"
#include "apps/common/interrupt.h"
#include "apps/common/report.h"

namespace kvrun::cli {
namespace {

constexpr std::chrono::milliseconds kTerminalPeriod{100};
constexpr std::chrono::milliseconds kLogPeriod{1000};
// Of a log that nobody asked for. What is over soon leaves nothing there.
constexpr std::chrono::seconds kSparseBegin{3};
constexpr std::chrono::seconds kSparsePeriod{10};

const char* PhaseName(kvrun_phase phase) {
  switch (phase) {
    case KVRUN_PHASE_LOAD: return "loading";
    case KVRUN_PHASE_PREFILL: return "prefill";
    case KVRUN_PHASE_SELF_TEST: return "self-test";
    case KVRUN_PHASE_EVALUATE: return "evaluating";
    case KVRUN_PHASE_CALIBRATE: return "calibrating";
    case KVRUN_PHASE_OPEN_SESSION: return "opening";
    case KVRUN_PHASE_SAVE_SESSION: return "saving";
  }
  return "working";
}

std::string Amount(kvrun_phase phase, uint64_t amount) {
  return phase == KVRUN_PHASE_LOAD ? FormatBytes(amount) : fmt::format("{}", amount);
}

std::string Rate(kvrun_phase phase, double per_second) {
  if (phase == KVRUN_PHASE_LOAD) return FormatBytes(static_cast<uint64_t>(per_second)) + "/s";
  return fmt::format("{:.1f} {}/s", per_second, phase == KVRUN_PHASE_SELF_TEST ? "test" : "token");
}

std::string Duration(double seconds) {
  const auto whole = static_cast<uint64_t>(seconds + 0.5);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{}:{:02} min", whole / 60, whole % 60);
  return fmt::format("{}:{:02} h", whole / 3600, whole / 60 % 60);
}

}  // namespace

std::string DurationText(double seconds) {
  if (seconds < 90) {
    const auto whole = std::max<uint64_t>(1, static_cast<uint64_t>(seconds + 0.5));
    return fmt::format("{} second{}", whole, whole == 1 ? "" : "s");
  }
  return seconds < 5400 ? fmt::format("{:.1f} minutes", seconds / 60)
                        : fmt::format("{:.1f} hours", seconds / 3600);
}

Progress::Progress(ProgressMode mode)
    : shown_(mode != ProgressMode::kNever),
      terminal_(isatty(STDERR_FILENO) == 1),
      sparse_(mode == ProgressMode::kAuto && !terminal_),
      last_shown_(Clock::now() - kSparsePeriod + kSparseBegin) {}

void Progress::Clear() {
  if (line_open_) WriteStderr("\r\033[K");
  line_open_ = false;
  running_ = false;
}

int Progress::Callback(void* user, kvrun_phase phase, uint64_t done, uint64_t total) {
  try {
    static_cast<Progress*>(user)->Update(phase, "", done, total);
  } catch (...) {
    return 1;  // out of memory while formatting a line: end the call, not the process
  }
  return Interrupted() ? 1 : 0;
}

bool Progress::Note(const std::string& what, uint64_t done, uint64_t total) {
  Update(KVRUN_PHASE_SELF_TEST, what, done, total);
  return Interrupted();
}

void Progress::Update(kvrun_phase phase, const std::string& what, uint64_t done, uint64_t total) {
  if (!shown_) return;
  const auto now = Clock::now();
  const bool starts = !running_ || phase != phase_ || what != what_;
  if (starts) {
    phase_ = phase;
    what_ = what;
    first_done_ = done;
    start_ = now;
    running_ = true;
  }
  const bool ends = done >= total;
  if (ends) running_ = false;
  if (!IsDue(now, starts || ends)) return;
  last_shown_ = now;
  const std::string line = Line(done, total, std::chrono::duration<double>(now - start_).count());
  if (terminal_) {
    WriteStderr("\r\033[K" + line);
    line_open_ = true;
    if (ends) Clear();
  } else {
    WriteStderr(line + "\n");
  }
}

bool Progress::IsDue(Clock::time_point now, bool is_edge) const {
  if (sparse_) return now - last_shown_ >= kSparsePeriod;
  return is_edge || now - last_shown_ >= (terminal_ ? kTerminalPeriod : kLogPeriod);
}

std::string Progress::Line(uint64_t done, uint64_t total, double elapsed_s) const {
  std::string line = what_.empty() ? PhaseName(phase_) : what_;
  const bool is_labelled =
      phase_ == KVRUN_PHASE_LOAD || phase_ == KVRUN_PHASE_PREFILL || phase_ == KVRUN_PHASE_EVALUATE;
  if (!label_.empty() && is_labelled) line += " (" + label_ + ")";
  line += fmt::format(": {} of {}", Amount(phase_, done), Amount(phase_, total));
  if (total > 0) line += fmt::format(", {} %", done * 100 / total);
  if (done <= first_done_ || elapsed_s <= 0) return line;
  const double per_second = static_cast<double>(done - first_done_) / elapsed_s;
  if (what_.empty()) line += ", " + Rate(phase_, per_second);
  if (done >= total) return line;
  double left_s = static_cast<double>(total - done) / per_second + later_s_;
  if (end_) {
    const double most_s = std::chrono::duration<double>(*end_ - Clock::now()).count();
    if (most_s > 0.0) left_s = std::min(left_s, most_s);
  }
  return line + fmt::format(", {} left", Duration(left_s));
}

}  // namespace kvrun::cli
