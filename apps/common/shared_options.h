// Options that several subcommands have, and what follows from them.
#pragma once

#include <cstdint>
#include <string>

#include "apps/common/api.h"
#include "apps/common/kv_options.h"
#include "apps/common/options.h"
#include "apps/common/progress.h"

namespace kvrun::cli {

struct SharedOptions {
  std::string model;
  std::string device = "auto";
  std::string progress = "auto";
  uint32_t ctx = 0;      // 0: chosen by the command
  uint32_t threads = 0;  // 0: chosen by the library
  bool exact_activations = false;
  std::string isa;  // empty: the best
  bool remeasure = false;
  bool validation = false;
  bool profile = false;
  bool quiet = false;
  bool verbose = false;
  bool json = false;
  KvOptionList kv;     // as given; what a session takes is in its SessionPlan
  std::string config;  // a file; empty: none
  bool force_config = false;
  std::string session;      // where it is kept; empty: nowhere
  std::string session_key;  // what it is encrypted with; empty: it is not
  bool session_read_only = false;
  uint32_t max_answer = 0;   // tokens of an answer, for --kv-write-limit; 0: as many as there is room for
  bool is_document = false;  // nobody named the session: where it is not kept, nothing is said
};

inline constexpr const char* kContextAsNeeded = "what the job needs, at most what the model was trained with";

// Each of these leaves its options in the group of `--help` where they belong (OptionSet::Group), and that
// group set; AddModelOption adds to the group that is set.
void AddModelOption(OptionSet* set, SharedOptions* shared);
void AddDeviceOption(OptionSet* set, SharedOptions* shared);
// --device, --threads, --exact-activations.
void AddDeviceOptions(OptionSet* set, SharedOptions* shared);
// --kv-method and the others of its kind, --config, --force-config.
void AddSessionOptions(OptionSet* set, SharedOptions* shared,
                       KvComparisons comparisons = KvComparisons::kHidden);
// --session-key: of sessions that are kept.
void AddSessionKeyOption(OptionSet* set, std::string* key, const std::string& help);
// --session, its key, and --session-read-only.
void AddKeptSessionOption(OptionSet* set, SharedOptions* shared);
// Throws UsageError where what of these is on the command line does not go together.
void CheckKeptSession(const OptionSet& set, const SharedOptions& shared);
// The same as AddSessionOptions, --ctx, --profile, --validation, and what belongs to the device.
// `default_context` says what a --ctx of 0 means.
void AddEngineOptions(OptionSet* set, SharedOptions* shared,
                      const std::string& default_context = kContextAsNeeded,
                      KvComparisons comparisons = KvComparisons::kHidden);
// --quiet, --progress.
void AddQuietOptions(OptionSet* set, SharedOptions* shared);
// --verbose, of commands that have more to say than they do by themselves.
void AddVerboseOption(
    OptionSet* set, SharedOptions* shared,
    const std::string& help =
        "say more: how the KV cache is kept, and statistics of device, memory and reads from flash");
// --quiet, --progress, --json.
void AddReportOptions(OptionSet* set, SharedOptions* shared);

// Throws UsageError if no model is named.
Model OpenNamedModel(const SharedOptions& shared);
Model OpenAnyNamedModel(const SharedOptions& shared);  // also one that cannot be run

ProgressMode ProgressModeOf(const SharedOptions& shared);

struct LoadedEngine {
  Engine engine;
  Json info;
};
// Loads the weights and says which device took them if that may surprise.
LoadedEngine LoadEngine(const Model& model, const SharedOptions& shared, Progress* progress);

// The room for an answer whose length has no limit.
inline constexpr uint32_t kOpenEndedRoom = 1024;

// Tokens of context for a prompt and up to `max_tokens` (0: unknown) after it: --ctx, else what is needed, at
// most what the model was trained with. A Failure if the prompt does not fit; `what` names it, and `hint`
// ends the message.
uint32_t ChooseContext(const Model& model, const SharedOptions& shared, size_t prompt_tokens,
                       uint32_t max_tokens, const std::string& what, const std::string& hint = "");

}  // namespace kvrun::cli
