#include "apps/kvadapt/outputs.h"

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

constexpr std::string_view kBeginnings[] = {"GGUF", "<svg", "# Options of the KV cache for one model"};

bool IsSameFile(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(a, error);
  // What is no regular file is written to, not replaced: /dev/null, /dev/stdout.
  if (fs::exists(status) && !fs::is_regular_file(status)) return false;
  if (fs::equivalent(a, b, error)) return true;
  const fs::path path = fs::weakly_canonical(a, error);
  return !error && path == fs::weakly_canonical(b, error);
}

// What kvadapt itself has written: an adapter, sums, a plot, a config.
bool IsEarlierResult(const std::string& path) {
  std::string begin(64, '\0');
  std::ifstream(path, std::ios::binary).read(begin.data(), static_cast<std::streamsize>(begin.size()));
  return std::ranges::any_of(kBeginnings, [&](std::string_view one) { return begin.starts_with(one); });
}

// A text that is read because it lies in a folder that was named.
bool IsTextIn(const std::string& output, const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_directory(folder, error) || !fs::is_regular_file(output, error)) return false;
  const fs::path below =
      fs::weakly_canonical(output, error).lexically_relative(fs::weakly_canonical(folder, error));
  return !below.empty() && *below.begin() != ".." && !IsEarlierResult(output);
}

// As an input, - is standard input.
void CheckNames(const std::vector<std::string>& outputs) {
  for (const std::string& output : outputs) {
    if (output != "-") continue;
    throw UsageError(
        "an output is a file, and - is no file's name here: name one (./- for a file of that name)");
  }
}

}  // namespace

void CheckOutputs(const std::vector<std::string>& outputs, const std::vector<std::string>& inputs) {
  CheckNames(outputs);
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (const std::string& input : inputs) {
      if (IsSameFile(outputs[i], input)) {
        throw UsageError(
            fmt::format("{} would replace {}, which is read: name another file", outputs[i], input));
      }
      if (IsTextIn(outputs[i], input)) {
        throw UsageError(fmt::format("{} would be replaced, and lies in {}, which is read: name another file",
                                     outputs[i], input));
      }
    }
    for (size_t k = 0; k < i; ++k) {
      if (!IsSameFile(outputs[i], outputs[k])) continue;
      throw UsageError(fmt::format("{} would hold two results: name two files", outputs[i]));
    }
  }
  for (const std::string& output : outputs) CheckWritable(output);
}

void WriteResult(const std::string& path, const std::string& text) {
  ResultFile file(path);
  file.Write(text.data(), text.size());
  file.Commit();
}

}  // namespace kvrun::cli
