// No file of over 500 lines; in what is shipped no function of over 60, and no class of over 25 public
// functions. But for those that are in a list, with the reason.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/class_functions.h"

namespace kvrun {
namespace {

constexpr size_t kMostFileLines = 500;
constexpr size_t kMostFunctionLines = 60;
constexpr size_t kMostFunctions = 25;

struct Long {
  std::string_view path;
  std::string_view function;  // empty: the file
  std::string_view reason;
};
constexpr Long kLong[] = {
    {"offline/tune.cc", "", "the steps of one search, in their order"},
    {"platform/vulkan/device_facts_fields.h", "VisitDeviceFacts", "a list of fields, visited once"},
    {"runtime/device/host/attend_few_rounded-inl.h", "AccumulateWords",
     "a kernel: sums that stay in registers"},
    {"runtime/device/host/attend_few_rounded-inl.h", "ScoreNibbles", "a kernel: sums that stay in registers"},
    {"runtime/device/vulkan/score_plan.cc", "PlanScore", "sizes that depend on those before them"},
    {"runtime/include/kvrun/kvrun.h", "", "the contract of the library, read from top to bottom"},
};

struct Wide {
  std::string_view path;
  std::string_view name;
  size_t n_functions;
  std::string_view reason;
};
constexpr Wide kWide[] = {
    {"runtime/device/device.h", "CommandList", 36, "a function for each operation of a model"},
    {"runtime/device/vulkan/compute_device.h", "VulkanComputeDevice", 34,
     "what a device offers, and what its command lists ask for of it"},
    {"runtime/engine/pass/step_commands.h", "StepCommands", 39,
     "the parts of a step of which both forward passes compose theirs"},
    {"runtime/jinja/value.h", "Value", 33, "one type for all that a template computes with"},
    {"runtime/kv/plan/kv_plan.h", "KvPlan", 53, "plain data, and what follows from it by one line each"},
    {"runtime/model/gguf.h", "GgufFile", 30, "a reader for each type of value that a file may hold"},
};

bool IsListed(const std::string& path, const std::string& function, std::map<std::string, int>* found) {
  for (const Long& one : kLong) {
    if (one.path != path || one.function != function) continue;
    ++(*found)[std::string(one.path) + " " + std::string(one.function)];
    return true;
  }
  return false;
}

std::vector<std::string> LinesOf(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// Not a declaration, nor one that fits on its line.
bool HasBody(const std::vector<std::string>& lines, size_t i) {
  for (; i < lines.size() && !lines[i].empty(); ++i) {
    const char last = lines[i].back();
    if (last == '{') return true;
    if (last == ';' || last == '}') return false;
  }
  return false;
}

// As clang-format lays it: a body begins at the end of a line that is not indented, or of one of a class, and
// ends with the next brace alone at the same column.
std::map<std::string, size_t> FunctionsOf(const std::vector<std::string>& lines) {
  static const std::regex kBegin("^(  )?([A-Za-z~][^=]*[ :*&]|)(~?[A-Za-z_]+|operator[^ (]+)\\(.*");
  static const std::regex kNoFunction(
      "^ "
      "*(if|for|while|switch|do|else|namespace|class|struct|enum|union|extern|constexpr|static|const|return|"
      "using|"
      "inline constexpr|KVRUN_[A-Z_]+)\\b.*");
  std::map<std::string, size_t> functions;
  for (const std::string indent : {"", "  "}) {
    std::string name;
    size_t begin = 0;
    for (size_t i = 0; i < lines.size(); ++i) {
      std::smatch match;
      const bool is_here = lines[i].size() > indent.size() &&
                           lines[i].compare(0, indent.size(), indent) == 0 && lines[i][indent.size()] != ' ';
      if (is_here && lines[i] == indent + "}" && !name.empty()) {
        functions[name] = std::max(functions[name], i + 1 - begin);
        name.clear();
      } else if (is_here && HasBody(lines, i) && std::regex_match(lines[i], match, kBegin) &&
                 !std::regex_match(lines[i], kNoFunction)) {
        name = match[3];
        begin = i;
      }
    }
  }
  return functions;
}

TEST(SourceSizes, FilesAndFunctionsAreShort) {
  const std::filesystem::path root = KVRUN_SOURCE_DIR;
  std::map<std::string, int> listed;
  for (const std::string folder : {"apps", "offline", "platform", "runtime", "tests"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension();
      if (extension != ".cc" && extension != ".h") continue;
      const std::string path = std::filesystem::relative(entry.path(), root);
      const std::vector<std::string> lines = LinesOf(entry.path());
      if (lines.size() > kMostFileLines && !IsListed(path, "", &listed)) {
        ADD_FAILURE() << path << " has " << lines.size() << " lines: what two things is it?";
      }
      if (folder == "tests") continue;
      for (const auto& [name, n_lines] : FunctionsOf(lines)) {
        if (n_lines > kMostFunctionLines && !IsListed(path, name, &listed)) {
          ADD_FAILURE() << path << ": " << name << " has " << n_lines << " lines";
        }
      }
    }
  }
  for (const Long& one : kLong) {
    EXPECT_EQ(listed[std::string(one.path) + " " + std::string(one.function)], 1)
        << one.path << " " << one.function << " is short: it goes from the list";
  }
}

TEST(SourceSizes, ClassesAreNarrow) {
  const std::filesystem::path root = KVRUN_SOURCE_DIR;
  std::map<std::string, size_t> wide;
  size_t n_classes = 0;
  for (const char* folder : {"apps", "offline", "platform", "runtime"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      if (entry.path().extension() != ".h") continue;
      std::stringstream header;
      header << std::ifstream(entry.path()).rdbuf();
      for (const auto& [name, n_functions] : testing::PublicFunctions(header.str())) {
        ++n_classes;
        if (n_functions <= kMostFunctions) continue;
        const std::string path = std::filesystem::relative(entry.path(), root);
        wide[path + " " + name] = n_functions;
      }
    }
  }
  EXPECT_GT(n_classes, 700U) << "classes are overlooked";
  for (const Wide& one : kWide) {
    const auto found = wide.extract(std::string(one.path) + " " + std::string(one.name));
    if (found.empty()) {
      ADD_FAILURE() << one.name << " has " << kMostFunctions << " functions at most: it goes from the list";
    } else {
      EXPECT_EQ(found.mapped(), one.n_functions) << one.name << ": the list says how many functions it has";
    }
    EXPECT_FALSE(one.reason.empty()) << one.name;
  }
  for (const auto& [name, n_functions] : wide) {
    ADD_FAILURE() << name << " has " << n_functions
                  << " public functions: which of them does which caller use?";
  }
}

TEST(SourceSizes, PublicFunctionsAreCounted) {
  const std::map<std::string, size_t> functions = testing::PublicFunctions(R"(
namespace kvrun {
class Wide final : public Base<int> {
 public:
  explicit Wide(int a) : a_{a}, b_(a) {}
  ~Wide() override;
  Wide(const Wide&) = delete;
  bool operator==(const Wide&) const = default;
  static Result<std::unique_ptr<Wide>> Create(int a = 3);  // Not(this)
  template <typename Fn>
  void Visit(const Fn& fn) { if (a_) { fn(";"); } }
  [[nodiscard]] virtual auto pure() const -> std::vector<int> = 0;
  using Fn = std::function<void(int)>;
  struct Inner {
    int size() const { return n; }
    int n{1};
    std::function<int(int)> call = Make(2);
    bool (*pointer)(int);
  };
  friend bool Of(const Wide&);

 private:
  void Hidden();
  struct Secret { void Told(); };
  int a_ = F(1);
};
enum class Kind { kOne, kTwo };
inline int Free(int a) { return a; }
struct Plain { int a = 0; int first() const; };
}  // namespace kvrun)");
  EXPECT_EQ(functions, (std::map<std::string, size_t>{
                           {"Wide", 4}, {"Wide::Inner", 1}, {"Wide::Secret", 0}, {"Plain", 1}}));
}

TEST(SourceSizes, LongFunctionsAreFound) {
  std::vector<std::string> lines = {"Status Long::Function(int a,", "                      int b) {"};
  lines.insert(lines.end(), 70, "  ++a;");
  lines.emplace_back("}");
  lines.emplace_back("class Other {");
  lines.emplace_back("  bool Inside() const {");
  lines.insert(lines.end(), 65, "    ++a;");
  lines.emplace_back("  }");
  lines.emplace_back("};");
  const std::map<std::string, size_t> functions = FunctionsOf(lines);
  EXPECT_EQ(functions.at("Function"), 73U);
  EXPECT_EQ(functions.at("Inside"), 67U);
}

}  // namespace
}  // namespace kvrun
