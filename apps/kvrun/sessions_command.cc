// kvrun sessions: what is kept, and what is done with it.
#include <fmt/format.h>

#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "apps/common/api.h"
#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/options.h"
#include "apps/common/outputs.h"
#include "apps/common/plural.h"
#include "apps/common/printable.h"
#include "apps/common/report.h"
#include "apps/common/shared_options.h"
#include "apps/kvrun/commands.h"
#include "apps/kvrun/report.h"
#include "apps/kvrun/session_files.h"

namespace kvrun::cli {
namespace {

struct SessionsOptions {
  SharedOptions shared;
  std::vector<std::string> show;
  std::vector<std::string> remove;
  std::string copy;
  std::string to;
  std::string prune;
  std::string key;
  bool wipe = false;
};

std::string FieldOf(const Json& session, const char* key) {
  const Json value = session.value(key, Json());
  return value.is_null() ? "" : Printable(TextOf(value));
}

uint64_t TokensIn(const Json& session) {
  uint64_t n_tokens = 0;
  for (const Json& of_sequence : session.value("tokens", Json::array()))
    n_tokens += of_sequence.get<uint64_t>();
  return n_tokens;
}

std::string DateOf(const Json& session) {
  const auto used_s = static_cast<std::time_t>(session.value("used", int64_t{0}));
  std::tm local{};
  char text[32] = "";
  if (localtime_r(&used_s, &local) != nullptr) std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M", &local);
  return text;
}

// Its key was not given.
bool IsLocked(const Json& session) {
  return session.value("encrypted", false) && session.value("tokens", Json()).is_null();
}

// ", 790.1 MiB were written for it".
std::string WrittenFor(const Json& session) {
  const Json bytes = session.value("written", Json());
  return bytes.is_null() || bytes == 0
             ? ""
             : fmt::format(", {} were written for it", FormatBytes(bytes.get<uint64_t>()));
}

// "thesis   7,639 tokens   178.2 MiB   kvswap   SmolLM2 135M Instruct   2026-11-30 01:12", and the first
// words.
std::string LineOf(const Json& session) {
  std::string line =
      fmt::format("{}\n  {}, {}, {}, last used {}{}\n", FieldOf(session, "name"),
                  Counted(TokensIn(session), "token"), FormatBytes(session.value("bytes", uint64_t{0})),
                  FieldOf(session, "method"), DateOf(session), WrittenFor(session));
  if (const std::string trouble = FieldOf(session, "trouble"); !trouble.empty()) {
    return line + "  cannot be opened: " + trouble + "\n";
  }
  if (IsLocked(session)) {
    return fmt::format("{}\n  encrypted, {}, last used {}\n", FieldOf(session, "name"),
                       FormatBytes(session.value("bytes", uint64_t{0})), DateOf(session));
  }
  const std::string words = FieldOf(session, "words");
  return line + fmt::format("  {}: {}\n", FieldOf(session, "model"), words.substr(0, 70));
}

Json SessionInfoOf(const SessionsOptions& options, const std::string& name) {
  char* text = nullptr;
  Check(kvrun_sessions_info_with_key_json(name.c_str(), options.key.c_str(), &text));
  const Json session = TakeJson(text);
  if (IsLocked(session) && !options.shared.quiet) {
    PrintMessage(fmt::format("note: the session {} is encrypted: --session-key shows what is in it", name));
  }
  return session;
}

// By all processes of this user, as flash wears: "written to flash today: 1.2 GiB; on 12 days: 20.4 GiB".
std::string WrittenText() {
  char* text = nullptr;
  Check(kvrun_written_json(&text));
  const Json written = TakeJson(text);
  const Json days = written.value("days", Json::array());
  if (days.empty()) return "";
  uint64_t bytes = 0;
  for (const Json& day : days) bytes += day.value("bytes", uint64_t{0});
  return fmt::format("written to flash by kvrun today: {}; on the last {} it was used: {}\n",
                     FormatBytes(written.value("written_today", uint64_t{0})), Counted(days.size(), "day"),
                     FormatBytes(bytes));
}

// Nothing is asked: who says so means it.
void Wipe(const SessionsOptions& options) {
  Check(kvrun_session_key_destroy(options.key.c_str()));
  if (options.shared.quiet) return;
  PrintMessage(fmt::format(
      "destroyed {}: no session that was encrypted with it can be read any more, and nothing brings it back; "
      "--remove and --prune remove the files",
      options.key.empty() || options.key == "auto" ? "your key for sessions" : "the key " + options.key));
}

void Remove(const SessionsOptions& options, const std::string& name) {
  Check(kvrun_sessions_remove(name.c_str()));
  if (!options.shared.quiet) PrintMessage("removed the session " + name);
}

int Sessions(const SessionsOptions& options, uint64_t most_bytes) {
  if (!options.copy.empty() || !options.to.empty()) {
    if (options.copy.empty() || options.to.empty()) throw UsageError("--copy NAME goes with --to NAME");
    Check(kvrun_sessions_copy(options.copy.c_str(), options.to.c_str()));
  }
  for (const std::string& name : options.remove) Remove(options, name);
  if (!options.prune.empty()) PruneSessions(AllSessions(), most_bytes, options.shared.quiet);
  if (options.wipe) Wipe(options);
  Json sessions = Json::array();
  for (const std::string& name : options.show) sessions.push_back(SessionInfoOf(options, name));
  if (options.show.empty()) sessions = AllSessions();
  if (options.shared.json) {
    WriteStdout(JsonLine(sessions));
    return 0;
  }
  std::string text;
  for (const Json& session : sessions) {
    text += LineOf(session);
    if (!options.show.empty()) text += Outline(session, 2);
  }
  const bool changed =
      !options.copy.empty() || !options.remove.empty() || !options.prune.empty() || options.wipe;
  if (!changed && options.show.empty()) text += WrittenText();
  if (!changed || !options.show.empty()) WriteStdout(text);
  if (sessions.empty() && !changed && !options.shared.quiet) PrintMessage("no sessions are kept");
  return 0;
}

}  // namespace

Command AddSessionsCommand(CLI::App* program) {
  auto options = std::make_shared<SessionsOptions>();
  auto most_bytes = std::make_shared<uint64_t>(0);
  auto set = std::make_shared<OptionSet>(program, "sessions", "List the sessions that --session keeps");
  set->AddExample("kvrun sessions", "list them, the last used first");
  set->AddExample("kvrun sessions --prune 20G",
                  "remove those that were not used for longest, but for 20 GiB");
  set->Group(HelpGroup::kWork);
  set->TextList("--show", &options->show, "NAME|FILE", "say all that is known of a session");
  set->TextList("--remove", &options->remove, "NAME|FILE", "remove a session's files");
  set->NonEmptyText("--copy", &options->copy, "NAME|FILE",
                    "copy a session; --to says how the copy is called");
  set->NonEmptyText("--to", &options->to, "NAME|FILE", "with --copy: the copy's name");
  set->Checked("--prune", "BYTES",
               "remove sessions, the least recently used first, until so many bytes are left: 20G, 500M",
               [options = options.get(), most_bytes](const std::string& source, const std::string& value) {
                 options->prune = value;
                 *most_bytes = ParseBytes(source, value);
               });
  AddSessionKeyOption(set.get(), &options->key,
                      "with --show and --wipe: the key of sessions that are encrypted, as with kvrun run");
  set->Flag(
      "--wipe", &options->wipe,
      "destroy the key of your own (--session-key auto), or the one that --session-key names: all that was "
      "encrypted with it is lost at once; asks nothing");
  AddReportOptions(set.get(), &options->shared);
  return {set, {options, &options->shared.json}, [options, most_bytes] {
            return Sessions(*options, *most_bytes);
          }};
}

}  // namespace kvrun::cli
