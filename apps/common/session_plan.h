// What a session is given: the options of its KV cache, from a config and from the command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/common/api.h"
#include "apps/common/failure.h"
#include "apps/common/kv_options.h"
#include "apps/common/progress.h"
#include "apps/common/shared_options.h"

namespace kvrun::cli {

// The model must outlive it.
struct SessionPlan {
  const Model* model = nullptr;
  uint32_t n_sequences = 1;
  uint32_t n_ctx = 0;
  KvOptionList kv;
  // Where the options are a config's: which of its solutions they are, as a message goes on; else empty.
  std::string origin;
  std::string adapter;  // the file that the config names, where none was given in its place; else empty
  std::string config;   // its path, where one is named
  std::string session;  // where it is kept; empty: nowhere
  std::string session_key;
  Json kv_plan;  // what the budget buys (kvrun_kv_plan_json), where one or a method is asked for; else null
  std::vector<std::string> notes;  // of the config and of what the budget buys, that were said
};

// The options of --config, where one is named, for a session of this size, and in their place those that were
// given. Throws where the config cannot be read or is of another model; says its notes.
SessionPlan TakeConfig(const Model& model, const SharedOptions& shared, uint32_t n_sequences, uint32_t n_ctx);

// The same, and says what the budget of the KV cache buys, where one (or a method other than full) is asked
// for; throws where it cannot be had. To be called before LoadEngine: loading takes long. `seed`: of what is
// generated; --kv-sample draws by it, too, unless --kv-seed says otherwise.
SessionPlan PlanSession(const Model& model, const SharedOptions& shared, uint32_t n_sequences, uint32_t n_ctx,
                        std::optional<uint64_t> seed = std::nullopt);
// Says what to expect of a context that is longer than what the model was trained with, before it is loaded.
void SayContextNotes(const Model& model, const SharedOptions& shared, uint32_t n_ctx);

// What the options buy; throws where they cannot be had, and says which solution of a config they are.
Json AskPlan(const SessionPlan& plan);

// `message`, and where it names the adapter of a config, that it is that one's and what to do.
std::string ExplainAdapter(const SessionPlan& plan, const std::string& message);
// ask(), with what fails there explained so.
template <typename Ask>
auto ExplainingAdapter(const SessionPlan& plan, const Ask& ask) {
  return Explained(ask, [&](const Failure& failure) { return ExplainAdapter(plan, failure.what()); });
}

// Throws where the config is of another device than the one that was loaded; says its notes that are new.
void CheckConfig(const LoadedEngine& loaded, const SharedOptions& shared, SessionPlan* plan);

// A path as a person writes it: "~/.cache".
std::string ShortPath(const std::string& path);

// "KV cache: 13.8 of 180.0 MiB in memory, the rest on flash in ~/.cache/kvrun/kv".
std::string KvSummary(const Json& kv_plan);

// Says what only a session knows (its statistics' notes, of which some were said, and with --verbose
// details).
void TellSessionNotes(const Json& stats, const SharedOptions& shared, SessionPlan* plan);

// Checks the config, too. With --verbose it says in detail what the budget buys now that it is known how fast
// the device is.
Session StartSession(const LoadedEngine& loaded, const SharedOptions& shared, SessionPlan* plan,
                     Progress* progress);

}  // namespace kvrun::cli
