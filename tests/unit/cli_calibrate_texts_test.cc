// kvadapt calibrate: which texts are read, in which order, and how much of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <string>

#include "tests/support/cli_calibrate_fixture.h"
#include "tests/support/cli_fixture.h"

namespace kvrun {
namespace {

using testing::CliCalibrate;
using testing::Contains;

TEST_F(CliCalibrate, FoldersAreReadInTheirOrder) {
  namespace fs = std::filesystem;
  const std::string texts = folder_.Path("texts");
  fs::create_directories(texts + "/b/.git");
  fs::create_directories(texts + "/empty");
  folder_.Write("texts/c", "33");
  folder_.Write("texts/b/2", "2\xc3\xa9");
  folder_.Write("texts/a", "1");
  folder_.Write("texts/b/.git/x", "no");
  folder_.Write("texts/.hidden", "no");
  folder_.Write("texts/none", "");
  folder_.Write("texts/zero", std::string("a\0b", 3));
  folder_.Write("texts/latin", "\xe9\xe8\xe9");
  folder_.Write("texts/z-copy", "33");
  fs::create_symlink(texts, texts + "/b/round");
  fs::create_symlink(texts + "/a", texts + "/link");
  const ProgramResult result = Run({"-f", texts, "-f", c_});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(Written().ends_with(" | 49 50 195 169 51 51 | 99")) << Written();
  EXPECT_PRED2(
      Contains, result.err,
      "kvadapt: note: 4 texts, 7 tokens; skipped: 2 copies, 1 empty, 2 hidden, 1 link to a folder, 2 "
      "not text\n");
  EXPECT_EQ(Run({"-f", texts, "-q"}).err, "");
  const ProgramResult nothing = Run({"-f", texts + "/empty"});
  EXPECT_EQ(nothing.exit_code, 1);
  EXPECT_PRED2(Contains, nothing.err, "kvadapt: there is no text in what was named: 0 texts, 0 tokens\n");
  const ProgramResult named = Run({"-f", texts + "/zero"});
  EXPECT_EQ(named.exit_code, 1);
  EXPECT_EQ(
      named.err,
      "kvadapt: " + texts +
          "/zero is not text: it has zero bytes, or is mostly not UTF-8; convert text of another encoding "
          "to UTF-8 (iconv -f UTF-16 -t UTF-8), or name another file\n");
  const ProgramResult empty = Run({"-f", ab_, "-f", texts + "/none", "-q"});
  EXPECT_EQ(empty.exit_code, 1);
  EXPECT_EQ(empty.err, "kvadapt: " + texts + "/none is empty: give a text\n");
  EXPECT_EQ(Run({"-f", "-", "-q"}).err, "kvadapt: standard input is empty: give a text\n");
}

// A "coarse" model's tokens have 64 KiB.
TEST_F(CliCalibrate, ATextThatIsTooLargeIsSaidToBe) {
  const std::string most(size_t{64} << 20, 'x');
  const std::string whole = folder_.Write("whole", most);
  EXPECT_FALSE(Contains(Run({"-f", whole}, {}, "coarse nobos").err, "alone are read"));
  const std::string large = folder_.Write("large", most + "x");
  const ProgramResult result = Run({"-f", large, "-f", c_}, {}, "coarse nobos");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_PRED2(Contains, result.err,
               "kvadapt: note: 2 texts, 1025 tokens; of " + large +
                   " the first 64 MiB alone are read: split larger texts, and name the parts\n");
}

TEST_F(CliCalibrate, NoMoreThanSoManyTokensAreRead) {
  const ProgramResult result = Run({"-f", ab_, "-f", ab_, "-f", c_, "--tokens", "3"});
  EXPECT_TRUE(Written().ends_with(" | 97 98 | 97")) << Written();
  EXPECT_PRED2(Contains, result.err,
               "kvadapt: note: 2 texts, 3 tokens; the rest is not read: --tokens N takes more\n");
  EXPECT_EQ(Run({"-f", ab_, "--tokens", "2"}).err.find("texts"), std::string::npos) << "nothing is left out";
  // The toy's tokens are bytes.
  Run({"-f", folder_.Write("large", std::string(400000, 'x')), "--json"});
  const std::string written = Written();
  EXPECT_EQ(std::count(written.begin() + static_cast<std::ptrdiff_t>(written.find('|')), written.end(), ' '),
            131072);
  Run({"-f", "-", "--tokens", "90000"}, {{}, std::string(200000, 'y'), ""});
  const std::string piped = Written();
  EXPECT_EQ(std::count(piped.begin() + static_cast<std::ptrdiff_t>(piped.find('|')), piped.end(), ' '),
            90000);
}

TEST_F(CliCalibrate, DebiansTextsAreTheDefault) {
  const std::string first = "/usr/share/common-licenses/Apache-2.0";
  if (!std::filesystem::exists(first)) GTEST_SKIP() << "no " << first;
  const ProgramResult result = Run({"--tokens", "400"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_PRED2(Contains, result.err,
               "kvadapt: note: no texts are named; of Debian's own: 1 text, 400 tokens");
  std::string expected = " |";
  for (const char byte : ReadWholeFile(first).substr(0, 400)) expected += " " + std::to_string(int{byte});
  EXPECT_TRUE(Written().ends_with(expected)) << Written();
}

}  // namespace
}  // namespace kvrun
