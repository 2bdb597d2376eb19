#include "tests/support/page_checker.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <sstream>
#include <string_view>

#include "tests/support/reference_files.h"

namespace kvrun::testing {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostPageLines = 300;
constexpr size_t kMostReadmeLines = 150;
constexpr size_t kMostProseColumns = 120;
constexpr std::string_view kPageEnding = ".md";

struct PageLine {
  size_t number = 0;
  std::string text;
  bool is_code = false;  // in a block of code, or the line that begins or ends one
};

struct TextPage {
  std::string path;  // from the root
  std::vector<PageLine> lines;
};

TextPage ReadPage(const fs::path& root, const std::string& path) {
  TextPage page;
  page.path = path;
  std::istringstream in(ReadFileOrDie((root / path).string()));
  bool is_code = false;
  for (std::string line; std::getline(in, line);) {
    const bool is_fence = line.starts_with("```");
    page.lines.push_back({page.lines.size() + 1, line, is_code || is_fence});
    if (is_fence) is_code = !is_code;
  }
  return page;
}

std::string LineOfPage(const TextPage& page, const PageLine& line) {
  return page.path + ":" + std::to_string(line.number) + ": ";
}

bool IsWordByte(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || (c & 0x80) != 0; }

// What a heading is called in links: "## KL at 1/13" is "kl-at-113".
std::string AnchorOf(std::string_view heading) {
  std::string anchor;
  for (const char c : heading) {
    if (c == ' ') anchor += '-';
    if (c == '-' || c == '_') anchor += c;
    if (IsWordByte(c)) anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return anchor;
}

std::set<std::string> AnchorsOf(const TextPage& page) {
  std::set<std::string> anchors;
  for (const PageLine& line : page.lines) {
    const size_t level = line.text.find_first_not_of('#');
    if (line.is_code || level == 0 || level == std::string::npos || line.text[level] != ' ') continue;
    anchors.insert(AnchorOf(std::string_view(line.text).substr(level + 1)));
  }
  return anchors;
}

// Targets of links: what stands between "](" and ")".
std::vector<std::string> LinkTargets(const std::string& line) {
  std::vector<std::string> targets;
  for (size_t at = line.find("]("); at != std::string::npos; at = line.find("](", at + 2)) {
    const size_t end = line.find(')', at);
    if (end != std::string::npos) targets.push_back(line.substr(at + 2, end - at - 2));
  }
  return targets;
}

void CheckLink(const fs::path& root, const TextPage& page, const PageLine& line, const std::string& target,
               std::vector<std::string>& violations) {
  if (target.find("://") != std::string::npos) return;
  const size_t hash = target.find('#');
  const std::string file = target.substr(0, hash);
  const fs::path path =
      file.empty() ? fs::path(page.path) : (fs::path(page.path).parent_path() / file).lexically_normal();
  if (!fs::exists(root / path)) {
    violations.push_back(LineOfPage(page, line) + "links to " + target + ", which is not there");
    return;
  }
  if (hash == std::string::npos || path.extension().string() != kPageEnding) return;
  if (AnchorsOf(ReadPage(root, path.generic_string())).contains(target.substr(hash + 1))) return;
  violations.push_back(LineOfPage(page, line) + "links to " + target + ", a heading that is not there");
}

void CheckLinksOfPage(const fs::path& root, const TextPage& page, std::vector<std::string>& violations) {
  for (const PageLine& line : page.lines) {
    if (line.is_code) continue;
    for (const std::string& target : LinkTargets(line.text)) CheckLink(root, page, line, target, violations);
  }
}

size_t PageColumns(const std::string& text) {  // a character of UTF-8 has one byte that does not continue it
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

void CheckSizeOfPage(const TextPage& page, size_t most_lines, std::vector<std::string>& violations) {
  if (page.lines.size() > most_lines) {
    violations.push_back(page.path + ": has " + std::to_string(page.lines.size()) + " lines, more than " +
                         std::to_string(most_lines));
  }
  for (const PageLine& line : page.lines) {
    const bool is_prose = !line.is_code && !line.text.starts_with("|") && !line.text.starts_with("![");
    if (!is_prose || PageColumns(line.text) <= kMostProseColumns) continue;
    violations.push_back(LineOfPage(page, line) + "is wider than " + std::to_string(kMostProseColumns) +
                         " columns");
  }
}

// Names of pages in a line, without what stands before them: "(docs/run.md)" has docs/run.md.
std::vector<std::string> PagesNamedIn(const std::string& line) {
  std::vector<std::string> names;
  for (size_t at = line.find(kPageEnding); at != std::string::npos; at = line.find(kPageEnding, at + 1)) {
    const size_t end = at + kPageEnding.size();
    if (end < line.size() && (IsWordByte(line[end]) || line[end] == '_')) continue;
    size_t begin = at;
    while (begin > 0 && (IsWordByte(line[begin - 1]) ||
                         std::string_view("_-./").find(line[begin - 1]) != std::string_view::npos)) {
      --begin;
    }
    if (begin < at) names.push_back(line.substr(begin, end - begin));
  }
  return names;
}

bool MayNameOptionalData(const std::string& path) {
  constexpr std::array folders = {"apps/",     "cmake/",   "examples/", "offline/",
                                  "platform/", "runtime/", "shaders/"};
  return std::none_of(folders.begin(), folders.end(),
                      [&](const char* folder) { return path.starts_with(folder); });
}

void CheckNamesInFile(const fs::path& root, const TextPage& file, std::vector<std::string>& violations) {
  for (const PageLine& line : file.lines) {
    for (std::string name : PagesNamedIn(line.text)) {
      const size_t docs = name.starts_with("/docs/") ? 1 : 0;  // behind another folder, as tests write it
      name.erase(0, docs);
      if (MayNameOptionalData(file.path) && !name.starts_with("docs/")) continue;
      if (fs::exists(root / name)) continue;
      violations.push_back(LineOfPage(file, line) + "names " + name + ", which is not there");
    }
  }
}

bool IsText(const fs::path& file) {
  constexpr std::array endings = {"",     ".c",  ".cc", ".cmake", ".comp", ".glsl", ".h",
                                  ".h2m", ".in", ".md", ".py",    ".sh",   ".toml", ".txt"};
  const std::string ending = file.extension().string();
  return std::any_of(endings.begin(), endings.end(), [&](const char* one) { return ending == one; });
}

// From the root, in order. Data of tests is no text of ours.
std::vector<std::string> TextFiles(const fs::path& root) {
  std::vector<std::string> files;
  for (const char* name : {"CHANGELOG.md", "CMakeLists.txt", "CONTRIBUTING.md", "README.md"}) {
    if (fs::exists(root / name)) files.emplace_back(name);
  }
  for (const char* top : {".ci", "apps", "cmake", "docs", "examples", "offline", "platform", "runtime",
                          "scripts", "shaders", "tests"}) {
    if (!fs::exists(root / top)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      const std::string path = fs::relative(entry.path(), root).generic_string();
      if (path.starts_with("tests/data/") || path.starts_with("tests/fuzz/corpus/")) continue;
      if (entry.is_regular_file() && IsText(entry.path())) files.push_back(path);
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::vector<std::string> PageViolations(const fs::path& root) {
  std::vector<std::string> violations;
  for (const std::string& path : TextFiles(root)) {
    const TextPage file = ReadPage(root, path);
    CheckNamesInFile(root, file, violations);
    if (!path.ends_with(kPageEnding)) continue;
    const bool is_page = path.starts_with("docs/");
    if (is_page || path.find('/') == std::string::npos) CheckLinksOfPage(root, file, violations);
    if (is_page) CheckSizeOfPage(file, kMostPageLines, violations);
    if (path == "README.md") CheckSizeOfPage(file, kMostReadmeLines, violations);
  }
  return violations;
}

}  // namespace kvrun::testing
