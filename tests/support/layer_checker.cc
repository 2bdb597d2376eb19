#include "tests/support/layer_checker.h"

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "runtime/kv/plan/kv_method.h"
#include "tests/support/reference_files.h"

namespace kvrun::testing {
namespace {

namespace fs = std::filesystem;

struct Layer {
  std::string folder;
  std::vector<std::string> may_include;  // besides itself
};

using Names = std::vector<std::string>;

// A folder of runtime/kv, and those of its folders that it builds on.
Layer KvLayer(const std::string& name, const Names& below) {
  Layer layer = {
      "runtime/kv/" + name,
      {"platform/base", "platform/io", "runtime/model", "runtime/store", "runtime/device", "shaders/shared"}};
  for (const std::string& one : below) layer.may_include.push_back("runtime/kv/" + one);
  return layer;
}

// One of runtime/engine, with the folders of runtime/kv that it sees. Which class an index, a selector or a
// ledger is, it does not know: runtime/kv/serve makes them.
Layer EngineLayer(const std::string& name, const Names& below, const Names& of_kv) {
  Layer layer = {
      "runtime/engine" + (name.empty() ? "" : "/" + name),
      {"platform/base", "platform/io", "runtime/model", "runtime/store", "runtime/device", "shaders/shared"}};
  for (const std::string& one : below) layer.may_include.push_back("runtime/engine/" + one);
  for (const std::string& one : of_kv) layer.may_include.push_back("runtime/kv/" + one);
  return layer;
}

// A file belongs to the layer with the longest matching folder.
const std::vector<Layer>& Layers() {
  static const std::vector<Layer> layers = {
      {"platform/base", {}},
      {"platform/io", {"platform/base"}},
      {"platform/vulkan", {"platform/base", "platform/io"}},
      {"shaders/shared", {}},
      {"runtime/include", {}},
      {"runtime/jinja", {"platform/base"}},
      {"runtime/model", {"platform/base", "platform/io"}},
      {"runtime/chat", {"platform/base", "runtime/jinja", "runtime/model"}},
      {"runtime/store", {"platform/base", "platform/io"}},
      {"runtime/device", {"platform/base", "platform/io", "runtime/model", "shaders/shared"}},
      {"runtime/device/host",
       {"platform/base", "platform/io", "runtime/model", "runtime/device", "shaders/shared"}},
      {"runtime/device/vulkan",
       {"platform/base", "platform/io", "platform/vulkan", "runtime/model", "runtime/device",
        "shaders/shared"}},
      {"runtime/device/pair", {"platform/base", "runtime/model", "runtime/device", "runtime/device/host"}},
      {"runtime/device/select",
       {"platform/base", "platform/io", "platform/vulkan", "runtime/model", "runtime/device",
        "runtime/device/host", "runtime/device/vulkan", "runtime/device/pair"}},
      KvLayer("math", {}),
      KvLayer("plan", {"math"}),
      KvLayer("contracts", {"math", "plan"}),
      KvLayer("memory", {"math", "plan"}),
      KvLayer("index", {"math", "plan", "contracts", "memory"}),
      KvLayer("select", {"math", "plan", "contracts", "memory"}),
      // Three families of methods, which do not know each other.
      KvLayer("groups", {"math", "plan", "contracts", "memory"}),
      KvLayer("clusters", {"math", "plan", "contracts", "memory"}),
      KvLayer("evict", {"math", "plan", "contracts", "memory"}),
      KvLayer("planner", {"math", "plan", "memory", "groups", "clusters", "evict"}),
      KvLayer("replay", {"math", "plan", "contracts"}),
      KvLayer("serve", {"math", "plan", "contracts", "memory", "index", "select", "groups", "clusters",
                        "evict", "planner", "replay"}),
      EngineLayer("text", {}, {}),
      EngineLayer("pass", {}, {"math", "plan", "memory"}),
      EngineLayer("resident", {"pass"}, {"math", "plan", "memory"}),
      EngineLayer("offloaded", {"pass", "resident"},
                  {"math", "plan", "contracts", "memory", "planner", "serve"}),
      EngineLayer("forward", {"pass", "resident", "offloaded"}, {"serve"}),
      EngineLayer("machine", {"text", "pass", "forward"}, {"plan", "serve"}),
      EngineLayer("device", {"pass", "resident", "machine"}, {}),
      EngineLayer("session", {"text", "pass", "offloaded", "forward", "machine"},
                  {"math", "plan", "planner", "serve"}),
      EngineLayer("config", {"text", "session"}, {"plan", "planner"}),
      EngineLayer("measure", {"text", "pass", "resident", "machine", "session"},
                  {"math", "plan", "memory", "planner", "replay", "serve"}),
      EngineLayer("", {"text", "pass", "forward", "machine", "device", "session", "measure"},
                  {"plan", "planner"}),
      {"runtime/schedule",
       {"platform/base", "platform/io", "runtime/model", "runtime/kv/plan", "runtime/kv/planner",
        "runtime/engine", "runtime/engine/session"}},
      {"runtime/capi",
       {"platform/base",          "platform/io",           "runtime/include",        "runtime/jinja",
        "runtime/model",          "runtime/chat",          "runtime/store",          "runtime/device",
        "runtime/device/vulkan",  "runtime/kv/math",       "runtime/kv/plan",        "runtime/kv/planner",
        "runtime/kv/serve",       "runtime/engine",        "runtime/engine/text",    "runtime/engine/machine",
        "runtime/engine/session", "runtime/engine/config", "runtime/engine/measure", "runtime/schedule"}},
      {"offline",
       {"platform/base", "platform/io", "runtime/include", "runtime/model", "runtime/store", "runtime/device",
        "runtime/kv/math", "runtime/kv/plan", "runtime/kv/planner", "runtime/kv/serve", "runtime/engine",
        "runtime/engine/text", "runtime/engine/machine", "runtime/engine/session", "runtime/engine/config",
        "runtime/engine/measure", "runtime/capi"}},
      {"apps", {"runtime/include", "offline"}},
  };
  return layers;
}

// Layers that see devices through runtime/device alone, so that a device without Vulkan can take its place.
bool IsFreeOfVulkan(const std::string& path) {
  return path.starts_with("runtime/engine/") || path.starts_with("runtime/kv/") ||
         path.starts_with("runtime/model/");
}
const std::set<std::string> kVulkanLayers = {"platform/vulkan", "runtime/device/vulkan"};

const Layer* LayerOf(const std::string& path) {
  const Layer* best = nullptr;
  for (const Layer& layer : Layers()) {
    if (!path.starts_with(layer.folder + "/")) continue;
    if (best == nullptr || layer.folder.size() > best->folder.size()) best = &layer;
  }
  return best;
}

struct Include {
  std::string path;
  bool quoted = false;
};

struct SourceFile {
  std::string path;  // from the root
  std::vector<Include> includes;
  std::vector<std::string> lines;
};

SourceFile ReadSource(const fs::path& root, const fs::path& file) {
  static const std::regex include(R"re(^\s*#\s*include\s*([<"])([^>"]+)[>"])re");
  SourceFile source;
  source.path = fs::relative(file, root).generic_string();
  std::istringstream in(ReadFileOrDie(file.string()));
  for (std::string line; std::getline(in, line);) {
    std::smatch match;
    if (std::regex_search(line, match, include)) source.includes.push_back({match[2], match[1] == "\""});
    source.lines.push_back(line);
  }
  return source;
}

std::map<std::string, SourceFile> ReadTree(const fs::path& root) {
  std::map<std::string, SourceFile> files;
  for (const char* top : {"platform", "runtime", "offline", "apps"}) {
    if (!fs::exists(root / top)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".h" && extension != ".cc") continue;
      SourceFile source = ReadSource(root, entry.path());
      const std::string path = source.path;
      files.emplace(path, std::move(source));
    }
  }
  return files;
}

bool IsVulkanHeader(const std::string& path) {
  return path.starts_with("vulkan/") || path.ends_with("volk.h") || path.ends_with("vulkan.h");
}

void CheckIncludes(const SourceFile& file, const Layer& layer, std::vector<std::string>& violations) {
  for (const Include& include : file.includes) {
    if (!include.quoted) {
      if (IsVulkanHeader(include.path) && !kVulkanLayers.contains(layer.folder)) {
        violations.push_back(file.path + ": <" + include.path + "> is for the Vulkan folders only");
      }
      continue;
    }
    const Layer* target = LayerOf(include.path);
    if (target == nullptr) {
      violations.push_back(file.path + ": \"" + include.path + "\" is not a path from the root to a layer");
    } else if (target->folder != layer.folder && std::find(layer.may_include.begin(), layer.may_include.end(),
                                                           target->folder) == layer.may_include.end()) {
      violations.push_back(file.path + ": " + layer.folder + " may not include \"" + include.path + "\"");
    }
  }
}

void CheckMentions(const SourceFile& file, std::vector<std::string>& violations) {
  static const std::regex mention(R"(vulkan\.h|volk\.h|platform/vulkan|runtime/device/vulkan|\bVk[A-Z])");
  for (size_t i = 0; i < file.lines.size(); ++i) {
    if (!std::regex_search(file.lines[i], mention)) continue;
    violations.push_back(file.path + ":" + std::to_string(i + 1) + ": mentions Vulkan: " + file.lines[i]);
  }
}

void CheckMethodNames(const SourceFile& file, std::vector<std::string>& violations) {
  static const std::regex comparison = [] {
    std::string names = "(";
    for (const KvMethod& method : KvMethods()) {
      if (names.size() > 1) names += '|';
      names += std::regex_replace(std::string(method.name), std::regex(R"(\*)"), R"(\*)");
    }
    names += ')';
    std::ostringstream pattern;
    pattern << R"([=!]=\s*")" << names << R"("|")" << names << R"("\s*[=!]=)";
    return std::regex(pattern.str());
  }();
  for (size_t i = 0; i < file.lines.size(); ++i) {
    if (!std::regex_search(file.lines[i], comparison)) continue;
    violations.push_back(file.path + ":" + std::to_string(i + 1) +
                         ": compares a KV method's name, ask for its traits: " + file.lines[i]);
  }
}

// The headers that `file` reaches, whatever their layer, must not lead to Vulkan either.
void CheckReach(const std::map<std::string, SourceFile>& files, const SourceFile& file,
                std::vector<std::string>& violations) {
  std::set<std::string> seen = {file.path};
  std::vector<const SourceFile*> open = {&file};
  while (!open.empty()) {
    const SourceFile* from = open.back();
    open.pop_back();
    for (const Include& include : from->includes) {
      const Layer* target = include.quoted ? LayerOf(include.path) : nullptr;
      if (IsVulkanHeader(include.path) || (target != nullptr && kVulkanLayers.contains(target->folder))) {
        violations.push_back(file.path + ": reaches " + include.path + " through " + from->path);
      }
      const auto next = files.find(include.path);
      if (next != files.end() && seen.insert(include.path).second) open.push_back(&next->second);
    }
  }
}

}  // namespace

std::vector<std::string> LayerViolations(const fs::path& root) {
  const std::map<std::string, SourceFile> files = ReadTree(root);
  std::vector<std::string> violations;
  for (const auto& [path, file] : files) {
    const Layer* layer = LayerOf(path);
    if (layer == nullptr) {
      violations.push_back(path + ": lies in no layer");
      continue;
    }
    CheckIncludes(file, *layer, violations);
    if (layer->folder != "offline") CheckMethodNames(file, violations);
    if (!IsFreeOfVulkan(path)) continue;
    CheckMentions(file, violations);
    CheckReach(files, file, violations);
  }
  return violations;
}

}  // namespace kvrun::testing
