// Progress of long calls on standard error: what, how far, how fast, how long still. Also the place where
// Ctrl-C reaches the library, so every long call gets it, shown or not.
#pragma once

#include <kvrun/kvrun.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace kvrun::cli {

// "45 seconds", "3.5 minutes".
std::string DurationText(double seconds);

enum class ProgressMode : uint8_t { kAuto, kAlways, kNever };

class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  // kAuto shows it on a terminal as it goes, and elsewhere a line every 10 seconds of what takes longer
  // than 3.
  explicit Progress(ProgressMode mode);
  ~Progress() { Clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Said after the phase's name, such as "prompt 3 of 16".
  void SetLabel(const std::string& label) { label_ = label; }

  // What is to come after the phases that are shown takes so many seconds more: they count as left.
  void SetLater(double seconds) { later_s_ = seconds; }

  // What is shown will have ended in so many seconds, whatever it looks like: it is cut short by then.
  void SetLimit(double seconds) {
    end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

  // Removes the line from the terminal, before something else is written there.
  void Clear();

  // The same for what is no call of the library: `what` is done in steps of its own. True to cancel.
  bool Note(const std::string& what, uint64_t done, uint64_t total);

  // A kvrun_progress_fn; `user` is a Progress.
  static int Callback(void* user, kvrun_phase phase, uint64_t done, uint64_t total);

 private:
  // `what` is empty where the phase says it.
  void Update(kvrun_phase phase, const std::string& what, uint64_t done, uint64_t total);
  std::string Line(uint64_t done, uint64_t total, double elapsed_s) const;
  // `is_edge`: the phase begins or ends.
  bool IsDue(Clock::time_point now, bool is_edge) const;

  bool shown_;
  bool terminal_;
  bool sparse_;
  std::string label_;
  double later_s_ = 0.0;
  std::optional<Clock::time_point> end_;
  kvrun_phase phase_ = KVRUN_PHASE_LOAD;
  std::string what_;
  bool running_ = false;  // between the first and the last call of one phase
  bool line_open_ = false;
  uint64_t first_done_ = 0;
  Clock::time_point start_;
  Clock::time_point last_shown_;
};

}  // namespace kvrun::cli
