#include "apps/common/session_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/printable.h"
#include "apps/common/report.h"

namespace kvrun::cli {
namespace {

// Without progress. Points to the plan and to `kv`, the plan's.
kvrun_session_options SessionOptions(const SessionPlan& plan, const std::vector<kvrun_option>& kv) {
  kvrun_session_options options;
  kvrun_session_options_init(&options);
  options.n_sequences = plan.n_sequences;
  options.n_ctx = plan.n_ctx;
  options.kv_options = kv.data();
  options.n_kv_options = kv.size();
  options.session = plan.session.c_str();
  options.session_key_path = plan.session_key.c_str();
  return options;
}

// kvrun_config_json for the plan's session. `engine` may be null.
Json ReadConfig(const SharedOptions& shared, const SessionPlan& plan, const kvrun_engine* engine) {
  kvrun_config_options options;
  kvrun_config_options_init(&options);
  options.n_sequences = plan.n_sequences;
  options.n_ctx = plan.n_ctx;
  options.force = shared.force_config ? 1 : 0;
  const std::string* folder = shared.kv.Find("dir");
  options.kv_dir = folder == nullptr ? nullptr : folder->c_str();
  char* json = nullptr;
  Check(kvrun_config_json(shared.config.c_str(), plan.model->get(), engine, &options, &json));
  return TakeJson(json);
}

// Whether it was not said before; from now on it was.
bool IsNew(const std::string& note, SessionPlan* plan) {
  if (std::find(plan->notes.begin(), plan->notes.end(), note) != plan->notes.end()) return false;
  plan->notes.push_back(note);
  return true;
}

void SayNotes(const SharedOptions& shared, const Json& config, SessionPlan* plan) {
  for (const Json& note : config.value("notes", Json::array())) {
    const std::string text = TextOf(note);
    if (IsNew(text, plan) && !shared.quiet) PrintMessage(fmt::format("note: {}: {}", shared.config, text));
  }
}

// Whatever is to be quiet: what was asked for is not done.
void TellNotKept(const Session& session) {
  const Json notes = SessionStats(session).value("notes", Json::array());
  PrintMessage("note: " + (notes.empty() ? std::string("the session is not kept") : TextOf(notes.front())));
}

void TellSession(const Session& session, const SharedOptions& shared, SessionPlan* plan) {
  const bool is_to_be_kept = !shared.session.empty() && !shared.session_read_only && !shared.is_document;
  if (is_to_be_kept && kvrun_session_is_kept(session.get()) == 0) TellNotKept(session);
  TellSessionNotes(SessionStats(session), shared, plan);
}

// Options of one method are mostly none of another's.
void LeaveOutForOtherMethod(const SharedOptions& shared, SessionPlan* plan) {
  const std::string* given = shared.kv.Find("method");
  const std::string* tuned = plan->kv.Find("method");
  if (given == nullptr || tuned == nullptr || *given == *tuned) return;
  if (!shared.quiet) {
    PrintMessage(
        fmt::format("note: {}: it was tuned for the method {}, and {} is asked for: none of its options "
                    "is taken",
                    shared.config, *tuned, *given));
  }
  plan->kv = KvOptionList();
  plan->origin.clear();
}

std::string OriginOf(const std::string& path, const Json& config, const SessionPlan& plan) {
  const Json solution = config.value("solution", Json());
  if (!solution.is_object()) return "";
  std::string text = fmt::format("the options are of {}, its solution for {} x {} tokens", path,
                                 solution.value("batch", 0U), solution.value("ctx", 0U));
  if (!config.value("exact", true)) {
    const std::string session =
        plan.n_ctx == 0 ? "this session" : fmt::format("{} x {}", plan.n_sequences, plan.n_ctx);
    text += fmt::format(", the nearest that it has to {}: run kvadapt tune for that, or", session);
  } else {
    text += ":";
  }
  return text + " give --kv-... options in the place of single ones";
}

// A file that lacks, is damaged or of another version has a status of its own.
bool NamesAdapter(const SessionPlan& plan, const std::string& message) {
  return !plan.adapter.empty() && message.find(Printable(plan.adapter)) != std::string::npos;
}

std::string WithOrigin(const SessionPlan& plan, const std::string& message) {
  return fmt::format("{}; {}", message, plan.origin);
}

// What refuses a session, with where its options come from.
std::string ExplainRefusal(const SessionPlan& plan, const Failure& failure) {
  const bool is_of_options =
      failure.status() == KVRUN_OUT_OF_MEMORY || failure.status() == KVRUN_INVALID_ARGUMENT;
  const std::string message = ExplainAdapter(plan, failure.what());
  return plan.origin.empty() || !is_of_options ? message : WithOrigin(plan, message);
}

}  // namespace

SessionPlan TakeConfig(const Model& model, const SharedOptions& shared, uint32_t n_sequences,
                       uint32_t n_ctx) {
  SessionPlan plan;
  plan.model = &model;
  plan.n_sequences = n_sequences;
  plan.n_ctx = n_ctx;
  plan.session = shared.session;
  plan.session_key = shared.session_key;
  if (!shared.config.empty()) {
    plan.config = shared.config;
    const Json config = ReadConfig(shared, plan, nullptr);
    for (const Json& option : config.value("kv_options", Json::array())) {
      plan.kv.Set(shared.config, TextOf(option.value("name", Json())), TextOf(option.value("value", Json())));
    }
    SayNotes(shared, config, &plan);
    plan.origin = OriginOf(shared.config, config, plan);
    LeaveOutForOtherMethod(shared, &plan);
    const std::string* adapter = plan.kv.Find("adapter");
    if (adapter != nullptr && shared.kv.Find("adapter") == nullptr) plan.adapter = *adapter;
  }
  plan.kv.Override(shared.kv);
  return plan;
}

Json AskPlan(const SessionPlan& plan) {
  const std::vector<kvrun_option> kv_options = plan.kv.values();
  const kvrun_session_options options = SessionOptions(plan, kv_options);
  return Explained([&] { return KvPlan(*plan.model, options); },
                   [&](const Failure& failure) { return ExplainRefusal(plan, failure); });
}

namespace {

// There is such a session.
bool IsKept(const std::string& session) {
  char* json = nullptr;  // also of one whose key is another
  const bool is_kept = !session.empty() && kvrun_sessions_info_json(session.c_str(), &json) == KVRUN_OK;
  kvrun_string_free(json);
  return is_kept;
}

// What to expect of a context that is longer than what the model was trained with.
void SayContextNotes(const SharedOptions& shared, SessionPlan* plan) {
  if (shared.quiet || plan->n_ctx <= kvrun_model_context_train(plan->model->get())) return;
  SessionPlan resident;  // it has no other notes
  resident.model = plan->model;
  resident.n_ctx = plan->n_ctx;
  for (const Json& note : AskPlan(resident).value("notes", Json::array())) {
    const std::string text = TextOf(note);
    if (IsNew(text, plan)) PrintMessage("note: " + text);
  }
}

}  // namespace

SessionPlan PlanSession(const Model& model, const SharedOptions& shared, uint32_t n_sequences, uint32_t n_ctx,
                        std::optional<uint64_t> seed) {
  SessionPlan plan = TakeConfig(model, shared, n_sequences, n_ctx);
  if (seed && plan.kv.Find("sample") != nullptr && plan.kv.Find("seed") == nullptr)
    plan.kv.Set("--seed", "seed", std::to_string(static_cast<uint32_t>(*seed)));
  // What is kept says what is not given; a document was kept with what is given.
  if (!plan.kv.asks_for_plan() || (!shared.is_document && IsKept(shared.session))) {
    SayContextNotes(shared, &plan);
    return plan;
  }
  const Json kv_plan = AskPlan(plan);
  if (plan.kv.Find("budget") == nullptr && !kv_plan.value("on_flash", false)) {
    SayContextNotes(shared, &plan);
    return plan;
  }
  plan.kv_plan = kv_plan;
  if (shared.quiet) return plan;
  PrintMessage(KvSummary(kv_plan));
  for (const Json& note : kv_plan.value("notes", Json::array())) {
    const std::string text = TextOf(note);
    plan.notes.push_back(text);
    PrintMessage("note: " + text + plan.kv.VariablesIn(text));
  }
  return plan;
}

void SayContextNotes(const Model& model, const SharedOptions& shared, uint32_t n_ctx) {
  SessionPlan plan;
  plan.model = &model;
  plan.n_ctx = n_ctx;
  SayContextNotes(shared, &plan);
}

std::string ShortPath(const std::string& path) {
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home != '/' || !path.starts_with(home)) return path;
  const std::string rest = path.substr(std::strlen(home));
  return rest.starts_with('/') ? "~" + rest : path;
}

std::string KvSummary(const Json& kv_plan) {
  const auto bytes_of = [&kv_plan](const char* key) { return kv_plan.value(key, uint64_t{0}); };
  const uint64_t used = std::max(bytes_of("decode_bytes"), bytes_of("prefill_bytes"));
  const std::string full = FormatBytes(bytes_of("full_bytes"));
  const Json folder = kv_plan.value("folder", Json());
  if (folder.is_string()) {
    return fmt::format("KV cache: {} of {} in memory, the rest on flash in {}", FormatBytes(used), full,
                       Printable(ShortPath(TextOf(folder))));
  }
  if (kv_plan.value("kept", Json()).is_object()) {
    return fmt::format("KV cache: {} of {} in memory; what gets little attention is forgotten",
                       FormatBytes(used), full);
  }
  return fmt::format("KV cache: {}, all in memory", FormatBytes(used));
}

std::string ExplainAdapter(const SessionPlan& plan, const std::string& message) {
  if (!NamesAdapter(plan, message)) return message;
  return fmt::format(
      "{}; {} names this adapter (a relative path begins at the config's folder): put one there, or give "
      "one with --kv-adapter",
      message, plan.config);
}

void CheckConfig(const LoadedEngine& loaded, const SharedOptions& shared, SessionPlan* plan) {
  if (shared.config.empty()) return;
  SayNotes(shared, ReadConfig(shared, *plan, loaded.engine.get()), plan);
}

// How fast the device is may decide how much is selected.
void TellSessionNotes(const Json& stats, const SharedOptions& shared, SessionPlan* plan) {
  if ((plan->kv_plan.is_null() && shared.session.empty()) || shared.quiet) return;
  for (const Json& note : stats.value("notes", Json::array())) {
    const std::string text = TextOf(note);
    if (IsNew(text, plan)) PrintMessage("note: " + text);
  }
  if (!shared.verbose) return;
  const Json& kv = stats.contains("kv") ? stats["kv"] : plan->kv_plan;
  if (kv.is_object()) PrintMessage("KV cache: " + TextOf(kv.value("line", Json())));
  for (const Json& detail : stats.value("details", Json::array())) PrintMessage("note: " + TextOf(detail));
}

Session StartSession(const LoadedEngine& loaded, const SharedOptions& shared, SessionPlan* plan,
                     Progress* progress) {
  CheckConfig(loaded, shared, plan);
  const std::vector<kvrun_option> kv_options = plan->kv.values();
  kvrun_session_options options = SessionOptions(*plan, kv_options);
  options.progress = Progress::Callback;
  options.progress_user = progress;
  options.session_read_only = shared.session_read_only && !shared.session.empty() ? 1 : 0;
  options.answer_tokens = shared.max_answer == 0 ? std::numeric_limits<uint32_t>::max() : shared.max_answer;
  Session session = ExplainingAdapter(*plan, [&] { return CreateSession(loaded.engine, options); });
  TellSession(session, shared, plan);
  return session;
}

}  // namespace kvrun::cli
