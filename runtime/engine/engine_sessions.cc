// Engine: sessions, and those that are kept.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "platform/io/seal.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/session/context_length.h"
#include "runtime/engine/session/session_files.h"
#include "runtime/engine/session/session_kv.h"
#include "runtime/engine/session/session_writes.h"
#include "runtime/store/write_meter.h"

namespace kvrun {
namespace {

Result<SessionIdentity> IdentityOf(const Model& model, const KvSettings& settings, const KvPlan& plan,
                                   uint32_t room_tokens) {
  SessionIdentity identity;
  KVRUN_ASSIGN_OR_RETURN(identity.model, model.Fingerprint());
  identity.model_name = model.config.name;
  identity.n_sequences = plan.n_sequences;
  identity.n_ctx = plan.n_ctx;
  identity.room_tokens = room_tokens;
  // Where KV lies, and how it is read there, is the machine's.
  for (const auto& [name, value] : settings.given) {
    if (name != "dir" && name != "io" && name != "direct" && name != "tmpfs" && name != "encrypt" &&
        name != "write-limit")
      identity.given.emplace_back(name, value);
  }
  identity.settled = SettledOptions(plan);
  identity.form = StoredForm(plan);
  identity.flash_times = plan.flash_times;
  return identity;
}

}  // namespace

void SettleKept(SessionOptions* options) {
  if (options->path.empty()) return;
  options->kv.storage.encrypts = options->key != nullptr;
  options->kv.storage.least_alignment_bytes = SavePointFile::kAlignmentBytes;
}

Result<KvPlan> Engine::PlanSession(const KvSettings& kv, uint32_t n_ctx, uint32_t n_sequences) {
  const std::lock_guard lock(device_mutex_);
  return PlanSessionKv(model_, kv, n_ctx, n_sequences, layer_time());
}

Result<std::unique_ptr<Session>> Engine::CreateSession(const SessionOptions& options) {
  KVRUN_RETURN_IF_ERROR(CheckSequenceCount(options.n_sequences));
  return options.path.empty() ? MakeSession(options, nullptr, {}) : KeepSession(options);
}

Result<std::unique_ptr<Session>> Engine::MakeSession(const SessionOptions& options,
                                                     std::unique_ptr<SessionFiles> files,
                                                     std::vector<std::string> notes) {
  Session::Parts parts;
  parts.n_sequences = options.n_sequences;
  parts.n_ctx = ChooseContext(options.n_ctx, model_.config);
  parts.notes = ContextNotes(parts.n_ctx, model_.config);
  parts.notes.insert(parts.notes.begin(), notes.begin(), notes.end());
  parts.tokenizer = model_.tokenizer.get();
  parts.device_mutex = &device_mutex_;
  parts.progress = options.progress;
  ForwardPassOptions pass_options{
      .n_sequences = options.n_sequences, .n_ctx = parts.n_ctx, .offloaded = nullptr};
  if (files != nullptr) {
    files->SetRoom(files->identity() ? files->identity()->room_tokens
                                     : std::max(parts.n_ctx, model_.config.n_ctx_train));
  }
  KvSettings kv = options.kv;
  kv.storage.meter = std::make_shared<WriteMeter>(kv.storage.written_path);
  if (files != nullptr) {
    files->SetMeter(kv.storage.meter);
    files->SetProgress(options.load_progress, options.save_progress);
  }
  const auto prepare = [&] {
    const std::lock_guard lock(device_mutex_);
    return PrepareOffloadedPass(model_, kv, parts.n_ctx, options.n_sequences, layer_time(), files.get());
  };
  KVRUN_ASSIGN_OR_RETURN(OffloadedPassOptions offloaded, prepare());
  if (files != nullptr) {
    KVRUN_ASSIGN_OR_RETURN(SessionIdentity identity,
                           IdentityOf(model_, options.kv, offloaded.plan, files->room_tokens()));
    files->SetIdentity(std::move(identity), model_.tokenizer.get());
  }
  const std::vector<std::string>& of_plan = offloaded.plan.notes.for_people;
  parts.notes.insert(parts.notes.end(), of_plan.begin(), of_plan.end());
  parts.details = offloaded.plan.notes.for_experts;
  parts.writes =
      std::make_unique<SessionWrites>(SessionWrites::Options{.meter = kv.storage.meter,
                                                             .limit_bytes = kv.storage.write_limit_bytes,
                                                             .answer_tokens = options.answer_tokens,
                                                             .is_kept = files != nullptr && files->saves()},
                                      model_.config, offloaded.plan);
  pass_options.kv_type = offloaded.plan.record.k_type;
  pass_options.n_state_copies = offloaded.plan.states.n_copies;
  if (!IsPlainResident(offloaded.plan)) {
    pass_options.offloaded = std::make_shared<OffloadedPassOptions>(std::move(offloaded));
  }
  {
    const std::lock_guard lock(device_mutex_);
    KVRUN_ASSIGN_OR_RETURN(parts.forward_pass, create_forward_pass_(pass_options));
  }
  SessionFiles* const kept = files.get();
  parts.kept = std::move(files);
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, Session::Create(std::move(parts)));
  if (kept != nullptr && kept->identity()) KVRUN_RETURN_IF_ERROR(kept->Load(*session));
  return session;
}

// What is there says how it was made; what the caller says besides has to go with it.
Result<std::unique_ptr<Session>> Engine::OpenSession(const SessionOptions& options,
                                                     std::unique_ptr<SessionFiles>* files) {
  const SessionIdentity identity = *(*files)->identity();
  const std::string path = (*files)->path();
  const auto refuse = [&](const std::string& why) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("the session {} cannot go on like this: {}: give the options that it was made with, or "
                    "none, or name another session",
                    path, why));
  };
  if (options.n_sequences != identity.n_sequences) {
    return refuse(fmt::format("it has {} sequences, and not {}", identity.n_sequences, options.n_sequences));
  }
  SessionOptions completed = options;
  completed.n_ctx = std::max(ChooseContext(options.n_ctx, model_.config), identity.n_ctx);
  if (options.n_ctx == 0) completed.n_ctx = identity.n_ctx;
  if (completed.n_ctx > identity.room_tokens) {
    return refuse(fmt::format("its files have room for {} tokens, and not for {}", identity.room_tokens,
                              completed.n_ctx));
  }
  completed.kv.flash_times = identity.flash_times;
  std::string difference;
  Status as_given = Status::Ok();
  for (const bool with_settled : {false, true}) {
    completed.kv.given = options.kv.given;
    completed.kv.kv = options.kv.kv;
    KVRUN_RETURN_IF_ERROR(identity.Complete(&completed.kv, with_settled));
    Result<KvPlan> plan = PlanSession(completed.kv, completed.n_ctx, completed.n_sequences);
    if (!with_settled) as_given = plan.status();
    if (!plan.ok() && (!with_settled || !difference.empty())) continue;
    if (!plan.ok()) return as_given;  // not of options that nobody gave now
    difference = DifferenceOf(identity.form, *plan);
    if (difference.empty()) break;
  }
  if (!difference.empty()) return refuse(difference);
  std::vector<std::string> notes;
  if (!(*files)->saves())
    notes.push_back(fmt::format("the session {} is only read: what follows is kept nowhere", path));
  return MakeSession(completed, std::move(*files), notes);
}

Result<std::unique_ptr<Session>> Engine::ReadSession(const SessionOptions& given,
                                                     const std::string& fingerprint) {
  SessionOptions options = given;
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<SessionFiles> files,
                         SessionFiles::OpenToRead(options.path, options.key));
  const SessionIdentity& identity = *files->identity();
  if (identity.model != fingerprint) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("the session {} is of another model{}: name that one, or another session",
                              options.path, identity.model_name.empty() ? "" : ", " + identity.model_name));
  }
  options.kv.storage.overlaid_tokens = identity.room_tokens;
  return OpenSession(options, &files);
}

Result<std::unique_ptr<Session>> Engine::KeepSession(const SessionOptions& given) {
  SessionOptions options = given;
  if (options.key == nullptr && options.kv.storage.encrypts) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("--kv-encrypt is for what ends with its process, and the session {} is to be "
                              "kept: give a key that stays (--session-key)",
                              options.path));
  }
  if (options.key != nullptr) KVRUN_RETURN_IF_ERROR(CheckEncryption());
  SettleKept(&options);
  KVRUN_ASSIGN_OR_RETURN(const std::string fingerprint, model_.Fingerprint());
  if (options.read_only) return ReadSession(options, fingerprint);
  Result<std::unique_ptr<SessionFiles>> opened = SessionFiles::Open(options.path, options.key);
  if (opened.status().code() == StatusCode::kUnsupported) {
    return MakeSession(
        options, nullptr,
        {fmt::format("{}; it is left as it is, and this session is not kept", opened.status().message())});
  }
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<SessionFiles> files, std::move(opened));
  if (files->identity() && files->identity()->model != fingerprint) {
    const std::string& name = files->identity()->model_name;
    return MakeSession(options, nullptr,
                       {fmt::format("the session {} is of another model{}: it is left as it is, and this one "
                                    "is computed anew and not kept",
                                    options.path, name.empty() ? "" : ", " + name)});
  }
  std::string note;
  if (files->identity()) {
    note = files->ReadNote();
    const SessionIdentity identity = *files->identity();
    const auto is_damaged = std::make_shared<bool>(false);
    files->TellDamage(is_damaged);
    Result<std::unique_ptr<Session>> session = OpenSession(options, &files);
    if (session.ok() || !*is_damaged) return session;
    // What else is known of it is kept: how it was made, and the caller's note.
    KVRUN_RETURN_IF_ERROR(identity.Complete(&options.kv, /*with_settled=*/true));
    options.n_ctx = std::max(ChooseContext(options.n_ctx, model_.config), identity.n_ctx);
    KVRUN_ASSIGN_OR_RETURN(files, SessionFiles::Open(options.path, options.key));
    KVRUN_RETURN_IF_ERROR(files->BeginAnew(session.status().message()));
  }
  return BeginSession(options, std::move(files), std::move(note));
}

Result<std::unique_ptr<Session>> Engine::BeginSession(const SessionOptions& options,
                                                      std::unique_ptr<SessionFiles> files, std::string note) {
  std::vector<std::string> notes;
  if (!files->why_anew().empty()) {
    notes.push_back(
        fmt::format("the session {} has to be computed again: {}", options.path, files->why_anew()));
  }
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, MakeSession(options, std::move(files), notes));
  KVRUN_RETURN_IF_ERROR(session->SetNote(std::move(note)));
  KVRUN_RETURN_IF_ERROR(session->SavePoint());
  return session;
}

}  // namespace kvrun
