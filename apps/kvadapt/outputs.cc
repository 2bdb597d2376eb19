#include "apps/kvadapt/outputs.h"

#include <fmt/format.h>
#include <system_error>

#include <filesystem>

#include "apps/common/failure.h"
#include "apps/common/files.h"

namespace kvrun::cli {
namespace {

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

}  // namespace

void CheckOutputs(const std::vector<std::string>& outputs, const std::vector<std::string>& inputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (const std::string& input : inputs) {
      if (!IsSameFile(outputs[i], input)) continue;
      throw UsageError(
          fmt::format("{} would replace {}, which is read: name another file", outputs[i], input));
    }
    for (size_t k = 0; k < i; ++k) {
      if (!IsSameFile(outputs[i], outputs[k])) continue;
      throw UsageError(fmt::format("{} would hold two results: name two files", outputs[i]));
    }
  }
  for (const std::string& output : outputs) const ResultFile beside(output);
}

void WriteResult(const std::string& path, const std::string& text) {
  ResultFile file(path);
  file.Write(text.data(), text.size());
  file.Commit();
}

}  // namespace kvrun::cli
