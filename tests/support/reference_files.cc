#include "tests/support/reference_files.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "platform/base/check.h"

namespace kvrun::testing {
namespace {

std::optional<std::string> IfExists(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  return path.string();
}

}  // namespace

std::optional<std::string> SharedPath(std::string_view relative) {
  const char* root = std::getenv("KVRUN_SHARED_DIR");
  const std::filesystem::path base = root != nullptr
                                         ? std::filesystem::path(root)
                                         : std::filesystem::path(KVRUN_SOURCE_DIR) / ".." / "shared";
  return IfExists(base / relative);
}

std::optional<std::string> TestModelPath() {
  if (const char* path = std::getenv("KVRUN_MODEL"); path != nullptr && *path != '\0') return IfExists(path);
  return IfExists(std::filesystem::path(KVRUN_SOURCE_DIR) / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf");
}

std::string ReadFileOrDie(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  KVRUN_CHECK(in.good());
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::vector<float> ReadFloats(const std::string& path) {
  const std::string bytes = ReadFileOrDie(path);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

std::vector<int> ReadIds(const std::string& path) {
  std::istringstream in(ReadFileOrDie(path));
  return {std::istream_iterator<int>(in), std::istream_iterator<int>()};
}

}  // namespace kvrun::testing
