#include "apps/common/outputs.h"

#include <fmt/format.h>
#include <system_error>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "apps/common/failure.h"
#include "apps/common/files.h"

namespace kvrun::cli {
namespace {

namespace fs = std::filesystem;

// Of a GGUF file that kvrun wrote, whose first key is its architecture: "kvrun-adapter", "kvrun-sums".
constexpr std::string_view kArchitectureKey = "general.architecture";
constexpr std::string_view kArchitecture = "kvrun-";
constexpr size_t kKeyAt = 4 + 4 + 8 + 8 + 8;  // after magic, version, two counts, the key's length
constexpr size_t kValueAt = kKeyAt + kArchitectureKey.size() + 4 + 8;  // and the value's type and length

constexpr std::string_view kConfigBeginning = "# Options of the KV cache for one model";
constexpr std::string_view kPlotBeginning = "<svg";
constexpr std::string_view kPlotMark = "<desc>drawn by kvrun</desc>";
constexpr std::string_view kProfileMark = "\"format\": \"kvrun device profile\"";
constexpr size_t kBeginningBytes = 512;  // all marks lie in them

// docs/formats, docs/config.md.
bool BeginsAsOurs(std::string_view begin) {
  const auto has = [begin](std::string_view mark) { return begin.find(mark) != begin.npos; };
  if (begin.starts_with("GGUF") && begin.size() > kValueAt) {
    return begin.substr(kKeyAt).starts_with(kArchitectureKey) &&
           begin.substr(kValueAt).starts_with(kArchitecture);
  }
  return begin.starts_with(kConfigBeginning) || (begin.starts_with(kPlotBeginning) && has(kPlotMark)) ||
         (begin.starts_with("{") && has(kProfileMark));
}

// What kvrun itself has written: an adapter, sums, a plot, a config, a profile. Raw numbers say nothing.
bool IsEarlierResult(const std::string& path) {
  std::string begin(kBeginningBytes, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(static_cast<size_t>(file.gcount()));
  return BeginsAsOurs(begin);
}

// Standard input may come from a file.
std::string FileOf(const std::string& input) { return input == "-" ? "/dev/stdin" : input; }

bool IsSameFile(const std::string& a, const std::string& b) {
  std::error_code error;
  // What is written to a device takes nobody's place: /dev/null, a terminal.
  if (fs::is_character_file(a, error)) return false;
  if (fs::equivalent(a, b, error)) return true;
  const fs::path path = fs::weakly_canonical(a, error);
  return !error && path == fs::weakly_canonical(b, error);
}

// A text that is read because it lies in a folder that was named.
bool IsTextIn(const std::string& output, const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error) || !fs::is_regular_file(output, error)) return false;
  const fs::path below =
      fs::weakly_canonical(output, error).lexically_relative(fs::weakly_canonical(folder, error));
  return !below.empty() && *below.begin() != ".." && !IsEarlierResult(output);
}

void CheckName(const std::string& output) {
  if (output != "-") return;
  throw UsageError(
      "an output is a file, and - is no file's name here: name one (./- for a file of that name)");
}

void CheckAgainstInput(const std::string& output, const std::string& input) {
  const std::string file = FileOf(input);
  if (IsSameFile(output, file)) {
    const std::string name = input == "-" ? "standard input" : input;
    throw UsageError(fmt::format("{} would replace {}, which is read: name another file", output, name));
  }
  if (IsTextIn(output, file)) {
    throw UsageError(
        fmt::format("{} would be replaced, and lies in {}, which is read: name another file", output, input));
  }
}

void CheckOwner(const std::string& result) {
  std::error_code error;
  if (!fs::is_regular_file(result, error) || fs::file_size(result, error) == 0 || IsEarlierResult(result))
    return;
  throw UsageError(
      fmt::format("{} is there, and nothing in it says that kvrun wrote it: name another file, or "
                  "give --force to replace it",
                  result));
}

}  // namespace

void AddForceOption(OptionSet* set, bool* force) {
  set->Flag("--force", force, "replace an output that exists, even if kvrun did not write it");
}

std::vector<std::string> InputFiles(const Model& model, const SharedOptions& shared) {
  std::vector<std::string> inputs = {shared.model};
  char* text = nullptr;
  Check(kvrun_model_info_json(model.get(), 0, &text));
  for (const Json& file : TakeJson(text).value("files", Json::array())) inputs.push_back(TextOf(file));
  if (!shared.config.empty()) inputs.push_back(shared.config);
  if (const std::string* adapter = shared.kv.Find("adapter")) inputs.push_back(*adapter);
  return inputs;
}

void CheckOutputs(const OutputFiles& files) {
  std::vector<std::string> outputs = files.results;
  outputs.insert(outputs.end(), files.working.begin(), files.working.end());
  std::for_each(outputs.begin(), outputs.end(), CheckName);
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (const std::string& input : files.inputs) CheckAgainstInput(outputs[i], input);
    for (size_t k = 0; k < i; ++k) {
      if (!IsSameFile(outputs[i], outputs[k])) continue;
      throw UsageError(fmt::format("{} would hold two results: name two files", outputs[i]));
    }
  }
  if (!files.force) std::for_each(files.results.begin(), files.results.end(), CheckOwner);
  std::for_each(outputs.begin(), outputs.end(), CheckWritable);
}

void WriteResult(const std::string& path, const std::string& text) {
  ResultFile file(path);
  file.Write(text.data(), text.size());
  file.Commit();
}

}  // namespace kvrun::cli
