#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/page_checker.h"

namespace kvrun {
namespace {

using testing::PageViolations;

TEST(Pages, AreThereShortAndLinkToWhatIsThere) {
  std::string text;
  for (const std::string& violation : PageViolations(KVRUN_SOURCE_DIR)) text += violation + "\n";
  EXPECT_TRUE(text.empty()) << text;
}

// The path of a page of docs/. (Written out, the names of pages that are not there would be found here, too.)
std::string PageOfDocs(const std::string& name) { return "docs/" + name + ".md"; }

// A made-up tree, to see that the check can fail.
class PageChecker : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::path(::testing::TempDir()) / ("kvrun_pages_" + std::to_string(::getpid()));
    std::filesystem::remove_all(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  void ExpectNone() {
    const std::vector<std::string> violations = PageViolations(root_);
    EXPECT_TRUE(violations.empty()) << violations[0];
  }
  // The one violation that is expected.
  void ExpectOne(const std::string& text) {
    const std::vector<std::string> violations = PageViolations(root_);
    ASSERT_EQ(violations.size(), 1U) << (violations.empty() ? "none" : violations.back());
    EXPECT_EQ(violations[0], text);
  }

  std::filesystem::path root_;
};

TEST_F(PageChecker, FindsLinksToFilesThatAreNotThere) {
  Write("README.md",
        "[a page](" + PageOfDocs("deep/here") + "), [code](apps/a.cc), [all](https://a.b/c.md)\n");
  Write("apps/a.cc", "\n");
  Write(PageOfDocs("deep/here"), "[back](../../README.md)\n```\n[not a link](nowhere.md)\n```\n");
  ExpectNone();
  Write(PageOfDocs("deep/here"), "Text.\n\n[back](../README.md) and [itself](here.md)\n");
  ExpectOne(PageOfDocs("deep/here") + ":3: links to ../README.md, which is not there");
}

TEST_F(PageChecker, FindsLinksToHeadingsThatAreNotThere) {
  Write("README.md", "# A title\n\n## KL at 1/13, `--kv-hide 0`\n\n[above](#kl-at-113---kv-hide-0)\n");
  ExpectNone();
  Write(PageOfDocs("page"), "[up](../README.md#a-title), [none](../README.md#no-title)\n");
  ExpectOne(PageOfDocs("page") + ":1: links to ../README.md#no-title, a heading that is not there");
}

TEST_F(PageChecker, FindsPathsOfPagesThatAreNotThere) {
  Write(PageOfDocs("page"), "Text.\n");
  Write("scripts/a", "# as " + PageOfDocs("page") + " says; ../shared/notes.md is optional\n");
  ExpectNone();
  Write("tests/a.cc", "// \"/" + PageOfDocs("page") + "\"\n// (" + PageOfDocs("pages") + ")\n");
  ExpectOne("tests/a.cc:2: names " + PageOfDocs("pages") + ", which is not there");
}

TEST_F(PageChecker, FindsCommentsThatCiteAnotherRepository) {
  Write("runtime/a.h", "// See README.md.\n// Source: design/notes.md, section 1.\n");
  Write("README.md", "Text.\n");
  ExpectOne("runtime/a.h:2: names design/notes.md, which is not there");
}

TEST_F(PageChecker, FindsPagesThatAreTooLong) {
  std::string lines;
  for (int i = 0; i < 150; ++i) lines += "Text.\n";
  Write("README.md", lines);
  Write(PageOfDocs("page"), lines + lines);
  Write("CHANGELOG.md", lines + lines + lines);
  ExpectNone();
  Write("README.md", lines + "Text.\n");
  ExpectOne("README.md: has 151 lines, more than 150");
  Write("README.md", "");
  Write(PageOfDocs("page"), lines + lines + "Text.\n");
  ExpectOne(PageOfDocs("page") + ": has 301 lines, more than 300");
}

TEST_F(PageChecker, FindsProseThatIsTooWide) {
  const std::string wide(121, 'x');
  std::string umlauts;
  for (int i = 0; i < 120; ++i) umlauts += "\xC3\xA4";
  Write(PageOfDocs("page"),
        "| " + wide + " |\n\n```\n" + wide + "\n```\n\n![" + wide + "](page.md)\n" + umlauts + "\n");
  ExpectNone();
  Write("README.md", "Text.\n" + wide + "\n");
  ExpectOne("README.md:2: is wider than 120 columns");
}

}  // namespace
}  // namespace kvrun
