// `kvadapt tune`: from a model on a device, a folder on flash and a budget to a config with one solution per
// batch size and context. Source: KVSwap, section 3.5 and appendix A.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "offline/candidate.h"
#include "offline/device_profile.h"
#include "offline/probe.h"
#include "offline/solver.h"
#include "offline/step_meter.h"
#include "offline/time_model.h"
#include "platform/base/status.h"
#include "runtime/engine/config/config_file.h"
#include "runtime/include/kvrun/kvrun.h"

namespace kvrun::offline {

struct TuneOptions {
  std::string budget;              // as --kv-budget; of the largest batch at the largest context
  std::vector<uint32_t> contexts;  // tokens per sequence; one solution for each, with each batch size
  std::vector<uint32_t> batches;
  double kl_limit = 0.0;     // the greatest KL accepted; 0: less than what kvrun chooses from the budget has
  std::vector<int32_t> ids;  // of texts, to measure quality on
  // Of kvadapt calibrate: tried beside adapters that are computed from prompts, which are all there are where
  // this is empty.
  std::string adapter_path;
  std::string folder;  // for KV; empty: where sessions keep it
  bool allow_tmpfs = false;
  bool exact_activations = false;                    // what the engine was made with
  double minutes = 7.0;                              // a limit: what does not fit into it is left out
  double spent_seconds = 0.0;                        // of it, before this call
  uint32_t n_steps = 128;                            // of a piece of text, fed one by one
  uint32_t n_pieces = 4;                             // half of them for the search, half for the final choice
  uint32_t n_checks = 0;                             // random points: predicted beside measured
  uint64_t memory_bytes = 0;                         // for the KV of texts; 0: what is available
  const StorageProfile* storage = nullptr;           // measured before; null: measured now
  std::function<void(const std::string& text)> say;  // for people, at once; may be empty
};

// Why a point that differs in one thing was not taken.
struct RejectedNeighbour {
  std::string change;         // "group 8"
  std::string reason;         // "slower", "KL", "does not fit", "not tried", ..
  double predicted_ms = 0.0;  // 0 where it does not fit
  double kl = 0.0;
  bool kl_is_measured = false;  // else guessed
};

struct TuneSolution {
  SearchSetting setting;
  Measured chosen;
  Measured own;  // what kvrun chooses from the budget alone
  // No text was read in time: nothing is known of KLs, `chosen` is `own`, and nothing is in `measured`.
  bool has_quality = true;
  double kl_limit = 0.0;        // of the search, on its parts of the text
  double kl_bound = 0.0;        // of the final choice, on all parts: of what kl() is, unless `is_own`
  bool is_bound_given = false;  // by the user; else it is a share of own_kl()
  bool is_own = false;          // nothing better was found: `chosen` is `own`
  bool is_within_limit = true;  // of a limit that was given, on all parts of the text
  uint32_t n_refused = 0;       // were good in the search, and not on other parts of the text
  bool has_held_out = true;     // else nothing was confirmed: the text has no other parts..
  bool has_time_left = true;    // ..or there was no time for them
  double held_out_kl = 0.0;     // of `chosen`, on parts of the text that the search has not seen, if any
  double own_held_out_kl = 0.0;
  PredictedTime predicted;  // of `chosen`
  PredictedTime own_predicted;
  double measured_ms = 0.0;  // of `chosen`, median of runs that took turns with own_measured_ms
  double own_measured_ms = 0.0;
  std::string bound;             // "I/O", "compute" or "memory"
  double twice_budget_ms = 0.0;  // predicted for the best guess with twice the budget
  std::vector<RejectedNeighbour> rejected;
  std::vector<Measured> measured;  // all points of this search

  // Over all parts of the text.
  double kl() const { return (chosen.quality.kl + held_out_kl) / 2; }
  double own_kl() const { return (own.quality.kl + own_held_out_kl) / 2; }
};

struct TuneResult {
  KvConfig config;
  std::vector<TuneSolution> solutions;  // at least one
  // What was asked for and is not there, and why: settings for which a given limit could not be kept,
  // contexts that failed after others were done, checks of predictions that failed.
  std::vector<std::string> unreached;
  std::vector<std::string> left_out;  // for lack of time
  bool has_failed = false;            // one of these is a failure, and not a limit that was not reached
  StorageProfile storage;
  std::vector<StepSample> samples;  // what the time model was fitted to, the machine's drift taken out
  double model_max_error = 0.0;     // of the time model on its samples
  double model_mean_error = 0.0;
  std::vector<CheckedPoint> checks;
};

// Whether it is written as a budget is.
Status CheckBudget(const std::string& budget);

// What can be found wrong before anything long is done: budget, contexts, batches, adapter. Needs no device
// and no text.
Status CheckTune(const kvrun_model* model, const TuneOptions& options);
// Whether the text is long enough for the contexts.
Status CheckTuneText(const TuneOptions& options);

// Texts are prefilled with all of their KV in memory, up to half of options.n_pieces at a time: kOutOfMemory
// where not even one of the longest context fits. A context that fails when another one is done does not lose
// that (TuneResult::unreached); a cancellation does.
//
// options.minutes is a limit for all of it. A few steps are sampled in any case, and kvrun's own choice is
// timed: where this takes longer, options.say tells. The rest ends in time or is left out
// (TuneResult::left_out): reading texts, points of the search, the confirmation on other parts of the texts,
// turns, checks. Progress counts seconds, of the limit or of what the least takes, and reaches the end.
Result<TuneResult> Tune(kvrun_engine* engine, const TuneOptions& options, const OfflineProgress& progress);

// The file's text (docs/config.md).
std::string ConfigText(const TuneResult& result);

// Of the measured points of a solution, by time and KL.
std::vector<FrontPoint> FrontOf(const TuneSolution& solution);

}  // namespace kvrun::offline
