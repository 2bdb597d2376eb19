#include "apps/kvrun/kept_documents.h"

#include <fmt/format.h>
#include <system_error>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "apps/common/files.h"
#include "apps/common/kv_options.h"
#include "apps/common/report.h"
#include "apps/kvrun/session_files.h"

namespace kvrun::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDocumentPrefix = "document-";
// Fewer are read again sooner than a person would notice.
constexpr size_t kFewestTokens = 1024;
// That say which document it is.
constexpr size_t kNamingTokens = 256;
// What a disk is left with at least.
constexpr uint64_t kSpareBytes = uint64_t{1} << 30;

// Where files lie and how they are read there: not what is in them.
constexpr std::array<std::string_view, 4> kPlaceOptions = {"dir", "io", "direct", "tmpfs"};
// Which session it is does not depend on their values: what is stored does not.
constexpr std::array<std::string_view, 9> kReadingOptions = {
    "budget", "select", "hide", "reads", "adapt", "sample", "seed", "reuse", "later-prompts"};

template <size_t n>
bool IsAmong(std::string_view name, const std::array<std::string_view, n>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// FNV-1a, 64 bits: of names, not of secrets.
class NameHash {
 public:
  void Add(std::string_view bytes) {
    for (const char byte : bytes) AddByte(static_cast<uint8_t>(byte));
    AddByte(0);
  }
  void Add(int32_t id) {
    for (int shift = 0; shift < 32; shift += 8)
      AddByte(static_cast<uint8_t>(static_cast<uint32_t>(id) >> shift));
  }
  // What is another file than it was is another one here, too.
  void AddFile(const std::string& path) {
    std::error_code error;
    Add(fs::canonical(path, error).string());
    Add(std::to_string(fs::file_size(path, error)));
    Add(std::to_string(static_cast<int64_t>(fs::last_write_time(path, error).time_since_epoch().count())));
  }
  uint64_t value() const { return value_; }

 private:
  void AddByte(uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001b3U; }

  uint64_t value_ = 0xcbf29ce484222325U;
};

// Prompts of another model, or with options that may store something else, have others.
std::string DocumentName(const SharedOptions& shared, std::span<const int32_t> ids) {
  NameHash hash;
  hash.AddFile(shared.model);
  if (!shared.config.empty()) hash.AddFile(shared.config);
  hash.Add(shared.exact_activations ? "exact" : "");
  for (const kvrun_option& option : shared.kv.values()) {
    const std::string_view name = option.name;
    if (IsAmong(name, kPlaceOptions)) continue;
    hash.Add(name);
    if (name == "adapter") hash.AddFile(option.value);
    if (!IsAmong(name, kReadingOptions)) hash.Add(option.value);
  }
  for (const int32_t id : ids.first(kNamingTokens)) hash.Add(id);
  return fmt::format("{}{:016x}", kDocumentPrefix, hash.value());
}

Failure NotPossible(const std::string& why) { return {KVRUN_UNSUPPORTED, why}; }

// What ends the program, whatever is kept.
bool EndsProgram(const Failure& failure) {
  return dynamic_cast<const Interruption*>(&failure) != nullptr ||
         dynamic_cast<const OutputClosed*>(&failure) != nullptr;
}

// Twice what it may take: it is encrypted, padded to pages, and written beside what it replaces.
void CheckSpace(uint64_t kv_bytes) {
  if (StateFolder().empty()) throw NotPossible("there is no folder of the user's own");
  fs::path folder = fs::path(StateFolder()) / "sessions";
  std::error_code error;
  while (!fs::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  if (access(folder.c_str(), W_OK) != 0) throw NotPossible("the folder cannot be written");
  const fs::space_info space = fs::space(folder, error);
  if (!error && space.available < 2 * kv_bytes + kSpareBytes) throw NotPossible("the disk is too full");
}

// The context of a document that is kept; 0: not known, as of one under another key; nothing: there is none.
std::optional<uint32_t> ContextOf(const std::string& name, const std::string& key) {
  char* json = nullptr;
  const kvrun_status status = kvrun_sessions_info_with_key_json(name.c_str(), key.c_str(), &json);
  if (status == KVRUN_NOT_FOUND) return std::nullopt;
  Check(status);
  const Json context = TakeJson(json).value("context", Json());
  return context.is_null() ? 0 : context.get<uint32_t>();
}

// Without that of this name, which stays, and which others make room for unless it takes more than all may:
// answers how many others there were, and its own place and size.
struct PrunedDocuments {
  size_t n_others = 0;
  std::string path;
  uint64_t own_bytes = 0;
};
PrunedDocuments PruneDocuments(uint64_t most_bytes, const std::string& name) {
  PrunedDocuments pruned;
  Json others = Json::array();
  for (const Json& session : AllSessions()) {
    const std::string of = TextOf(session.value("name", Json("")));
    if (of == name) {
      pruned.own_bytes = session.value("bytes", uint64_t{0});
      pruned.path = TextOf(session.value("path", Json("")));
    } else if (of.starts_with(kDocumentPrefix)) {
      others.push_back(session);
    }
  }
  pruned.n_others = others.size();
  const uint64_t for_own = pruned.own_bytes <= most_bytes ? pruned.own_bytes : 0;
  PruneSessions(others, most_bytes - for_own, /*quiet=*/true);
  return pruned;
}

}  // namespace

void AddKeepOptions(OptionSet* set, Keeping* keeping, const KeepHelp& help) {
  set->Group(HelpGroup::kKv);
  set->Checked("--keep", "BYTES", help.keep, [keeping](const std::string& source, const std::string& value) {
    keeping->most_bytes = ParseBytes(source, value);
    keeping->is_asked = keeping->most_bytes > 0;
  });
  set->CheckedFlag("--no-keep", help.no_keep,
                   [keeping](const std::string&, bool given) { keeping->is_off = given; });
  set->Exclude("--keep", "--no-keep");
}

// Of a start: a session, or why there is none.
struct KeptDocument::Trial {
  Session session;
  std::string why;
  bool is_of_no_use = false;  // what lies there
};

KeptDocument::KeptDocument(const DocumentUse& use, std::span<const int32_t> ids)
    : use_(use), shared_(use.shared), n_ctx_(use.n_ctx) {
  if (use.keeping.is_on() && shared_.session.empty() && ids.size() >= kFewestTokens) {
    try {
      Choose(ids);
    } catch (const Failure& failure) {
      if (EndsProgram(failure)) throw;
      GiveUp(failure.what());
    }
  }
  plan_ = PlanSession(use.model, shared_, 1, n_ctx_, use.seed);
}

KeptDocument::~KeptDocument() {
  if (!name_.empty() && (is_too_large_ || (is_new_ && !is_saved_)))
    (void)kvrun_sessions_remove(name_.c_str());
}

// Throws why it is not kept.
void KeptDocument::Choose(std::span<const int32_t> ids) {
  SharedOptions kept = shared_;
  kept.is_document = true;
  kept.session = DocumentName(shared_, ids);
  kept.session_key = "auto";
  kept.quiet = true;
  CheckPlan();
  const std::optional<uint32_t> held = ContextOf(kept.session, kept.session_key);
  const uint32_t n_ctx = std::max(n_ctx_, held.value_or(0));
  const Json kv_plan = AskPlan(TakeConfig(use_.model, kept, 1, n_ctx));  // the budget suffices
  if (!use_.keeping.is_asked && !held) CheckSpace(kv_plan.value("full_bytes", uint64_t{0}));
  is_new_ = !held;
  n_ctx_ = n_ctx;
  name_ = kept.session;
  kept.quiet = shared_.quiet;
  shared_ = std::move(kept);
}

// Makes nothing. What is asked for is kept wherever it can be; otherwise only where that costs little.
void KeptDocument::CheckPlan() const {
  SharedOptions quiet = shared_;
  quiet.quiet = true;
  const SessionPlan plan = TakeConfig(use_.model, quiet, 1, n_ctx_);
  const std::string* encrypts = plan.kv.Find("encrypt");
  if (encrypts != nullptr && *encrypts == "on")
    throw NotPossible("what --kv-encrypt encrypts ends with its process");
  if (use_.keeping.is_asked) return;
  if (plan.kv.Find("dir") != nullptr) throw NotPossible("its place is named");
  if (kvrun_session_encryption() != KVRUN_ENCRYPTION_FAST) throw NotPossible("it takes long");
  const Json kv_plan = AskPlan(plan);
  if (kv_plan.value("kept", Json()).is_object()) throw NotPossible("the method forgets what it has read");
  if (kv_plan.value("full_bytes", uint64_t{0}) > use_.keeping.most_bytes)
    throw NotPossible("it takes more than there may be");
}

void KeptDocument::GiveUp(const std::string& why) {
  if (!name_.empty() && is_new_) (void)kvrun_sessions_remove(name_.c_str());
  name_.clear();
  shared_ = use_.shared;
  n_ctx_ = use_.n_ctx;
  if (use_.keeping.is_asked && !shared_.quiet)
    PrintMessage(fmt::format("note: the document is not kept: {}", why));
}

KeptDocument::Trial KeptDocument::TryToStart(const LoadedEngine& loaded, Progress* progress) {
  Trial trial;
  try {
    trial.session = StartSession(loaded, shared_, &plan_, progress);
    if (kvrun_session_is_kept(trial.session.get()) != 0) return trial;
    const Json notes = SessionStats(trial.session).value("notes", Json::array());
    trial.why = notes.empty() ? std::string("it is of another version of kvrun") : TextOf(notes.front());
    trial.session.reset();
    trial.is_of_no_use = true;
  } catch (const Failure& failure) {
    if (EndsProgram(failure)) throw;
    trial.why = failure.what();
    trial.is_of_no_use = failure.status() == KVRUN_INVALID_ARGUMENT;
  }
  return trial;
}

Session KeptDocument::Start(const LoadedEngine& loaded, Progress* progress) {
  if (name_.empty()) return StartSession(loaded, shared_, &plan_, progress);
  Trial trial = TryToStart(loaded, progress);
  // It is under a key that is gone, or made with other options: it is only there to save time, and one that
  // can be gone on with takes its place. Not where another process has it.
  if (trial.is_of_no_use && !is_new_ && kvrun_sessions_remove(name_.c_str()) == KVRUN_OK) {
    is_new_ = true;
    trial = TryToStart(loaded, progress);
  }
  return trial.session != nullptr ? std::move(trial.session) : StartWithout(loaded, progress, trial.why);
}

bool KeptDocument::MayBeTheReason(const Failure& failure) const {
  if (name_.empty() || is_saved_ || EndsProgram(failure)) return false;
  switch (failure.status()) {
    case KVRUN_IO_ERROR:
    case KVRUN_CORRUPT:
    case KVRUN_OUT_OF_MEMORY: return true;
    // What is kept is written, which a limit may refuse.
    case KVRUN_INVALID_ARGUMENT: return plan_.kv.Find("write-limit") != nullptr;
    default: return false;
  }
}

Session KeptDocument::StartWithout(const LoadedEngine& loaded, Progress* progress, const std::string& why) {
  GiveUp(why);
  plan_ = PlanSession(use_.model, shared_, 1, n_ctx_, use_.seed);
  return StartSession(loaded, shared_, &plan_, progress);
}

// Whatever becomes of it, the answer was given.
void KeptDocument::Keep(const Session& session) {
  // Of one whose reading was interrupted there may be too little.
  if (name_.empty() || is_saved_ || kvrun_session_length(session.get(), 0) < kFewestTokens) return;
  if (kvrun_session_save(session.get()) != KVRUN_OK) {
    if (use_.keeping.is_asked && !shared_.quiet)
      PrintMessage(fmt::format("note: the document is not kept: {}", kvrun_last_error()));
    return;
  }
  is_saved_ = true;
  try {
    const PrunedDocuments pruned = PruneDocuments(use_.keeping.most_bytes, name_);
    is_too_large_ = pruned.own_bytes > use_.keeping.most_bytes;
    if (is_too_large_ && !shared_.quiet) {
      PrintMessage(fmt::format("note: the document is not kept: it takes {}, more than --keep allows",
                               FormatBytes(pruned.own_bytes)));
    }
    if (is_new_ && !is_too_large_ && pruned.n_others == 0 && !shared_.quiet) SayFirstTime(pruned.path);
  } catch (const Failure& failure) {
    if (EndsProgram(failure)) throw;
  }
}

void KeptDocument::SayFirstTime(const std::string& path) const {
  PrintMessage(fmt::format(
      "note: what was read is kept for the next question about it, in {}, encrypted with a key of your own; "
      "kvrun sessions lists what is kept, and with --no-keep (KVRUN_NO_KEEP=1) nothing is",
      ShortPath(fs::path(path).parent_path())));
}

}  // namespace kvrun::cli
