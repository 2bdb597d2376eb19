#include "apps/common/shared_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/report.h"

namespace kvrun::cli {
namespace {

constexpr uint32_t kMaxU32 = std::numeric_limits<uint32_t>::max();
// With no limit on the answer's length: this much context, or kOpenEndedRoom more than the prompt.
constexpr uint64_t kOpenEndedContext = 8192;

std::string BeyondTraining(uint64_t n_ctx, uint32_t trained) {
  if (n_ctx <= trained) return "";
  return fmt::format(" (its answers get worse beyond {} tokens)", trained);
}

void CheckModelIsNamed(const SharedOptions& shared) {
  if (shared.model.empty()) throw UsageError("no model is named: give -m FILE, or set KVRUN_MODEL");
}

}  // namespace

void AddModelOption(OptionSet* set, SharedOptions* shared) {
  set->Text("-m,--model", &shared->model, "FILE",
            "the model: a GGUF file, or any part of a model that is split into several files (required)");
}

void AddDeviceOption(OptionSet* set, SharedOptions* shared) {
  set->Group(HelpGroup::kDevice);
  set->Text(
      "--device", &shared->device, "DEVICE",
      "auto (default: the fastest for this model), gpu, cpu or host (the CPU itself), vulkan (a GPU, or a "
      "Vulkan driver for the CPU), a part of a device's name, or its index in `kvrun devices`; gpu+cpu: the "
      "GPU computes prompts, and the CPU decodes");
  set->Offer({"auto", "gpu", "cpu", "gpu+cpu", "vulkan", "host"});
}

void AddDeviceOptions(OptionSet* set, SharedOptions* shared) {
  AddDeviceOption(set, shared);
  set->Number("--threads", &shared->threads, 0, KVRUN_MAX_THREADS,
              "on the CPU itself: how many threads compute (default 0: one for each performance core, but "
              "no more than the container's quota)");
  set->Flag("--exact-activations", &shared->exact_activations,
            "on the CPU itself: do not round activations to 8 bits in products, nor to 16 in a prompt's "
            "attention; slower");
  set->Flag("--remeasure", &shared->remeasure,
            "with --device auto: measure again how fast the devices compute the model");
}

void AddSessionOptions(OptionSet* set, SharedOptions* shared, KvComparisons comparisons) {
  AddKvOptions(set, &shared->kv, comparisons);
  set->Group(HelpGroup::kKv);
  set->NonEmptyText(
      "--config", &shared->config, "FILE",
      "a config from kvadapt tune for this model and machine; --kv-... options replace single ones of it");
  // Resolved after --config. The variable says what is to be done with any config, where there is one.
  set->CheckedFlag(
      "--force-config", "take --config's options even if it is for another model or another device",
      [shared](const std::string& source, bool given) {
        if (given && source == "--force-config" && shared->config.empty()) {
          throw UsageError("--force-config: there is no config to take: name it with --config FILE");
        }
        shared->force_config = given;
      });
}

void AddSessionKeyOption(OptionSet* set, std::string* key, const std::string& help) {
  set->NonEmptyText("--session-key", key, "FILE|auto", help);
}

void AddKeptSessionOption(OptionSet* set, SharedOptions* shared) {
  set->Group(HelpGroup::kKv);
  set->NonEmptyText(
      "--session", &shared->session, "NAME|FILE",
      "keep what is read under this name, or in this file (with a '/'), and go on with what is there: tokens "
      "that begin alike are not read again, and --kv-... options are as they were where none are given");
  AddSessionKeyOption(
      set, &shared->session_key,
      "encrypt what is kept with the key in this file (32 random bytes, mode 600), or with one "
      "of your own that is made at first use (auto); without it nobody reads the session");
  set->Flag(
      "--session-read-only", &shared->session_read_only,
      "only read the session that is there, and keep nothing of what follows: several processes may do so "
      "at once");
}

void CheckKeptSession(const OptionSet& set, const SharedOptions& shared) {
  if (shared.session.empty() && set.OnCommandLine("--session-read-only"))
    throw UsageError("--session-read-only reads a session that is kept: name it with --session");
}

void AddEngineOptions(OptionSet* set, SharedOptions* shared, const std::string& default_context,
                      KvComparisons comparisons) {
  AddDeviceOptions(set, shared);
  set->Flag("--profile", &shared->profile, "time each operation on the device");
  set->Flag("--validation", &shared->validation, "enable the Vulkan validation layer");
  set->Group(HelpGroup::kKv);
  set->Number("-c,--ctx", &shared->ctx, 0, kMaxU32,
              fmt::format("tokens of context per sequence (default 0: {})", default_context));
  AddSessionOptions(set, shared, comparisons);
}

void AddReportOptions(OptionSet* set, SharedOptions* shared) {
  set->Group(HelpGroup::kOutput);
  set->Flag("--json", &shared->json,
            "print JSON on standard output, also for errors: {\"error\": {status, message}}");
  AddQuietOptions(set, shared);
}

void AddVerboseOption(OptionSet* set, SharedOptions* shared, const std::string& help) {
  set->Group(HelpGroup::kOutput);
  set->Flag("-v,--verbose", &shared->verbose, help);
}

void AddQuietOptions(OptionSet* set, SharedOptions* shared) {
  set->Group(HelpGroup::kOutput);
  set->Flag("-q,--quiet", &shared->quiet, "show no progress, notes or statistics");
  set->Choice(
      "--progress", &shared->progress, {"auto", "always", "never"},
      "show progress on standard error (default auto: as it goes if it is a terminal, else a line every 10 "
      "seconds)");
}

Model OpenNamedModel(const SharedOptions& shared) {
  CheckModelIsNamed(shared);
  return OpenModel(shared.model);
}

Model OpenAnyNamedModel(const SharedOptions& shared) {
  CheckModelIsNamed(shared);
  return OpenAnyModel(shared.model);
}

ProgressMode ProgressModeOf(const SharedOptions& shared) {
  if (shared.quiet || shared.progress == "never") return ProgressMode::kNever;
  return shared.progress == "always" ? ProgressMode::kAlways : ProgressMode::kAuto;
}

LoadedEngine LoadEngine(const Model& model, const SharedOptions& shared, Progress* progress) {
  kvrun_engine_options options;
  kvrun_engine_options_init(&options);
  options.device = shared.device.c_str();
  options.validation = shared.validation ? 1 : 0;
  options.profile = shared.profile ? 1 : 0;
  options.exact_activations = shared.exact_activations ? 1 : 0;
  options.n_threads = shared.threads;
  options.instruction_set = shared.isa.c_str();
  options.remeasure = shared.remeasure ? 1 : 0;
  options.progress = Progress::Callback;
  options.progress_user = progress;
  LoadedEngine loaded{CreateEngine(model, options), Json()};
  progress->Clear();
  loaded.info = EngineInfo(loaded.engine);
  if (!shared.quiet) PrintNotes(loaded.info, shared.device, shared.verbose);
  return loaded;
}

uint32_t ChooseContext(const Model& model, const SharedOptions& shared, size_t prompt_tokens,
                       uint32_t max_tokens, const std::string& what, const std::string& hint) {
  const uint32_t trained = kvrun_model_context_train(model.get());
  // With room for an answer.
  const uint64_t enough = prompt_tokens + (max_tokens == 0 ? kOpenEndedRoom : max_tokens);
  if (shared.ctx != 0 && prompt_tokens > shared.ctx) {
    throw Failure(
        KVRUN_CONTEXT_FULL,
        fmt::format("{} has {} tokens, more than the context of {}: give --ctx {}, or shorten the "
                    "text{}{}",
                    what, prompt_tokens, shared.ctx, enough, BeyondTraining(enough, trained), hint));
  }
  if (shared.ctx != 0) return shared.ctx;
  if (prompt_tokens > trained) {
    throw Failure(
        KVRUN_CONTEXT_FULL,
        fmt::format("{} has {} tokens, more than the {} that the model was trained with: shorten the "
                    "text, or give --ctx {}{}{}",
                    what, prompt_tokens, trained, enough, BeyondTraining(enough, trained), hint));
  }
  const uint64_t needed = max_tokens != 0
                              ? uint64_t{prompt_tokens} + max_tokens
                              : std::max<uint64_t>(kOpenEndedContext, prompt_tokens + kOpenEndedRoom);
  return static_cast<uint32_t>(std::min<uint64_t>(needed, trained));
}

}  // namespace kvrun::cli
