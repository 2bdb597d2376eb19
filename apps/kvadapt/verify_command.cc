// kvadapt verify: whether an adapter is what it has to be, and of this model.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/printable.h"
#include "apps/common/shared_options.h"
#include "apps/kvadapt/commands.h"
#include "apps/kvadapt/offline_calls.h"
#include "offline/verify_adapter.h"

namespace kvrun::cli {
namespace {

struct VerifyOptions {
  SharedOptions shared;
  std::vector<std::string> files;
};

std::string Text(const std::vector<offline::AdapterCheck>& checks) {
  std::string text;
  for (const offline::AdapterCheck& check : checks)
    text += fmt::format("{:<6}  {}: {}\n", check.ok ? "ok" : "FAILED", check.name, Printable(check.detail));
  return text;
}

Json Object(const std::string& path, const std::vector<offline::AdapterCheck>& checks, bool ok) {
  Json list = Json::array();
  for (const offline::AdapterCheck& check : checks)
    list.push_back({{"name", check.name}, {"ok", check.ok}, {"detail", check.detail}});
  return {{"path", path}, {"ok", ok}, {"checks", list}};
}

int Verify(const VerifyOptions& options) {
  if (options.files.size() != 1) throw UsageError("name one file: kvadapt verify ADAPTER -m MODEL");
  if (options.shared.model.empty()) throw UsageError("no model is named: give -m FILE, or set KVRUN_MODEL");
  const std::string& path = options.files.front();
  const auto checks = Value(offline::VerifyAdapterFile(path, options.shared.model));
  const bool ok =
      std::all_of(checks.begin(), checks.end(), [](const offline::AdapterCheck& check) { return check.ok; });
  WriteStdout(options.shared.json ? JsonLine(Object(path, checks, ok)) : Text(checks));
  return ok ? 0 : kExitFailure;
}

}  // namespace

Command AddVerifyCommand(CLI::App* program) {
  auto options = std::make_shared<VerifyOptions>();
  auto set = std::make_shared<OptionSet>(program, "verify",
                                         "Check an adapter's numbers, and that it is for this model");
  set->TextList("ADAPTER,--adapter", &options->files, "FILE", "the adapter to check");
  set->AddExample("kvadapt verify adapter.gguf -m model.gguf", "check an adapter");
  set->AddExample("kvadapt verify adapter.gguf -m model.gguf --json", "the same for programs");
  AddModelOption(set.get(), &options->shared);
  AddReportOptions(set.get(), &options->shared);
  return {set, {options, &options->shared.json}, [options] { return Verify(*options); }};
}

}  // namespace kvrun::cli
