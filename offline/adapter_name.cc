#include "offline/adapter_name.h"

#include <fmt/format.h>
#include <system_error>

#include <filesystem>

#include "runtime/engine/text/utf8.h"

namespace kvrun::offline {

Result<std::string> AdapterName(const std::string& adapter_path, const std::string& config_path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path file = fs::weakly_canonical(adapter_path, error);
  const fs::path folder = fs::weakly_canonical(fs::path(config_path).parent_path() / ".", error);
  const fs::path relative = file.lexically_relative(folder);
  const bool is_below = !relative.empty() && *relative.begin() != "..";
  std::string name = (is_below ? relative : file).string();
  if (IsValidUtf8(name)) return name;
  return Status(StatusCode::kInvalidArgument,
                fmt::format("{}: a config cannot name an adapter whose path is not UTF-8: rename it, or "
                            "write the config (-o) beside it",
                            RepairedUtf8(name)));
}

}  // namespace kvrun::offline
