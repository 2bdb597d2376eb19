// The files of the page are in the program, and load nothing but each other.
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <set>
#include <string>

#include "apps/kvserve/page.h"
#include "tests/support/reference_files.h"

namespace kvrun::serve {
namespace {

using testing::ReadFileOrDie;

const std::filesystem::path kFolder = std::filesystem::path(KVRUN_SOURCE_DIR) / "apps/kvserve/page";

std::string PathOf(const std::string& name) { return name == "index.html" ? "/" : "/" + name; }

std::set<std::string> Found(const std::string& text, const std::string& pattern) {
  std::set<std::string> found;
  const std::regex expression(pattern);
  for (std::sregex_iterator i(text.begin(), text.end(), expression); i != std::sregex_iterator(); ++i) {
    found.insert((*i)[1]);
  }
  return found;
}

TEST(PageFiles, AreThoseOfTheFolder) {
  int n_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    const PageFile* file = FindPageFile(PathOf(entry.path().filename()));
    ASSERT_NE(file, nullptr) << entry.path();
    EXPECT_EQ(file->bytes, ReadFileOrDie(entry.path())) << entry.path();
    ++n_files;
  }
  EXPECT_GE(n_files, 3);
  EXPECT_EQ(FindPageFile("/")->content_type, "text/html; charset=utf-8");
  EXPECT_EQ(FindPageFile("/page.css")->content_type, "text/css; charset=utf-8");
  EXPECT_EQ(FindPageFile("/page.js")->content_type, "text/javascript; charset=utf-8");
}

TEST(PageFiles, AreFoundByTheirWholePathAlone) {
  for (const char* path : {"", "/index.html", "page.js", "/page", "/page.js/", "/../page.js", "/PAGE.JS"}) {
    EXPECT_EQ(FindPageFile(path), nullptr) << path;
  }
}

TEST(PageFiles, LoadEachOtherAndNothingElse) {
  int n_loaded = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    const std::string text = ReadFileOrDie(entry.path());
    for (const std::string& name : Found(text, R"((?: src| href|from|import) ?=?["']\.?/?([^"'#]+)["'])")) {
      EXPECT_NE(FindPageFile(PathOf(name)), nullptr) << entry.path() << " loads " << name;
      ++n_loaded;
    }
    for (const std::string& address : Found(text, R"((https?://[^"' ]+))")) {
      EXPECT_EQ(address, "http://www.w3.org/2000/svg") << entry.path();
    }
  }
  EXPECT_GE(n_loaded, 6);
}

// The policy refuses what is inline, and a browser says so only in its console.
TEST(PageFiles, HaveNoInlineScriptsAndStyles) {
  const std::string html(FindPageFile("/")->bytes);
  EXPECT_EQ(Found(html, R"((<script[^>]*>[^<]))").size(), 0U);
  EXPECT_EQ(Found(html, R"((<style|\sstyle=|\son[a-z]+=))").size(), 0U);
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    EXPECT_EQ(
        Found(ReadFileOrDie(entry.path()), R"((innerHTML|outerHTML|insertAdjacentHTML|document\.write))")
            .size(),
        0U)
        << entry.path();
  }
}

}  // namespace
}  // namespace kvrun::serve
