#include "runtime/engine/text/text_stream.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/support/allocation_counter.h"

namespace kvrun {
namespace {

constexpr const char* kReplaced = "\xEF\xBF\xBD";

std::vector<std::string> Pieces(TextStream* stream, const std::vector<std::string>& tokens) {
  std::vector<std::string> pieces;
  for (const std::string& token : tokens) pieces.emplace_back(stream->Append(token));
  pieces.emplace_back(stream->Finish());
  return pieces;
}

TEST(TextStream, HoldsBackAnIncompleteCharacter) {
  TextStream stream({});
  EXPECT_EQ(Pieces(&stream, {"a\xE2", "\x82",
                             "\xAC"
                             "b",
                             "\xF0\x9F", "\x98\x80"}),
            (std::vector<std::string>{"a", "",
                                      "\xE2\x82\xAC"
                                      "b",
                                      "", "\xF0\x9F\x98\x80", ""}));
}

TEST(TextStream, ReplacesWhatIsNotUtf8) {
  TextStream stream({});
  const std::string r = kReplaced;
  // A lone continuation, a broken sequence before a letter, an overlong form, a surrogate, a cut end.
  EXPECT_EQ(Pieces(&stream, {"\x80",
                             "\xE2\x82"
                             "x",
                             "\xC0\xAF", "\xED\xA0\x80", "\xF5", "end\xE2\x82"}),
            (std::vector<std::string>{r, r + "x", r + r, r + r + r, r, "end", r}));
}

TEST(TextStream, NeverShowsThePartsOfAStopString) {
  const std::vector<std::string> stops = {"<|end|>"};
  TextStream stream(stops);
  EXPECT_EQ(stream.Append("Hi <"), "Hi ");
  EXPECT_EQ(stream.Append("|e"), "");
  EXPECT_EQ(stream.Append("x<|"), "<|ex");  // it was none
  EXPECT_EQ(stream.Append("end|> more"), "");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.Append("after"), "");
  EXPECT_EQ(stream.Finish(), "");
}

TEST(TextStream, LongTokensAllocateNothing) {
  const std::vector<std::string> stops = {"a stop string that never comes"};
  const std::string token(100, 'a');  // its end may begin the stop string
  TextStream stream(stops);
  const uint64_t before = testing::AllocationsOfThisThread();
  size_t n_bytes = 0;
  for (int i = 0; i < 20; ++i) n_bytes += stream.Append(token).size();
  EXPECT_EQ(testing::AllocationsOfThisThread() - before, 0U);
  EXPECT_EQ(n_bytes + stream.Finish().size(), 2000U);
}

TEST(TextStream, TextBeforeAStopStringInTheSameTokenIsHandedOut) {
  const std::vector<std::string> stops = {"\n\n"};
  TextStream stream(stops);
  EXPECT_EQ(stream.Append("a\nb\n\nc"), "a\nb");
  EXPECT_TRUE(stream.stopped());
}

TEST(TextStream, HeldTextIsHandedOutAtTheEnd) {
  const std::vector<std::string> stops = {"STOP"};
  TextStream stream(stops);
  EXPECT_EQ(Pieces(&stream, {"x S", "TO"}), (std::vector<std::string>{"x ", "", "STO"}));
  EXPECT_FALSE(stream.stopped());
}

TEST(TextStream, OverlappingBeginningsOfAStopString) {
  const std::vector<std::string> stops = {"aab"};
  TextStream stream(stops);
  EXPECT_EQ(Pieces(&stream, {"a", "a", "a", "b"}), (std::vector<std::string>{"", "", "a", "", ""}));
  EXPECT_TRUE(stream.stopped());
}

TEST(TextStream, StopStringOfSeveralByteCharacters) {
  const std::vector<std::string> stops = {"\xE2\x82\xAC\xE2\x82\xAC"};  // two euro signs
  TextStream stream(stops);
  EXPECT_EQ(Pieces(&stream, {"1\xE2\x82", "\xAC", "\xE2\x82",
                             "\xAC"
                             "2"}),
            (std::vector<std::string>{"1", "", "", "", ""}));
}

TEST(TextStream, FirstCompleteStopWinsAndTheLongestOfSeveral) {
  const std::vector<std::string> stops = {"b", "ab", "abc"};
  TextStream stream(stops);
  EXPECT_EQ(stream.Append("xabc"), "x");
  EXPECT_TRUE(stream.stopped());
}

// The text is the same however it is cut, and equal to a search in the whole.
TEST(TextStream, TextDoesNotDependOnHowItIsCut) {
  const std::vector<std::string> stops = {"aba", "bb",
                                          "\xC3\xA4"
                                          "a"};
  std::mt19937 random(5);
  const std::vector<std::string> letters = {"a", "b", "c", "\xC3\xA4", "\xFF"};
  for (int round = 0; round < 500; ++round) {
    std::string bytes;
    for (int i = 0; i < 12; ++i) bytes += letters[random() % letters.size()];
    TextStream whole(stops);
    std::string expected(whole.Append(bytes));
    expected += whole.Finish();
    TextStream cut(stops);
    std::string text;
    for (size_t i = 0; i < bytes.size();) {
      const size_t n = 1 + random() % 3;
      text += cut.Append(std::string_view(bytes).substr(i, n));
      ASSERT_TRUE(IsValidUtf8(text));
      i += n;
    }
    text += cut.Finish();
    ASSERT_EQ(text, expected);
    ASSERT_EQ(cut.stopped(), whole.stopped());
    for (const std::string& stop : stops) ASSERT_EQ(text.find(stop), std::string::npos);
  }
}

TEST(Utf8, IsRepaired) {
  EXPECT_EQ(RepairedUtf8("a\xC3\xA4"), "a\xC3\xA4");
  EXPECT_EQ(RepairedUtf8("a\xFF"
                         "b\xE2\x82"),
            "a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD");
}

TEST(Utf8, AMessageIsOneLineThatATerminalOnlyShows) {
  EXPECT_EQ(MessageText("a \xC3\xA4 \\ \"b\" ~"), "a \xC3\xA4 \\ \"b\" ~");
  EXPECT_EQ(MessageText(std::string_view("\x1B[31m\n\r\t\0\x1F\x7F\xFF", 12)),
            "\\x1b[31m\\n\\r\\t\\x00\\x1f\\x7f\xEF\xBF\xBD");
  EXPECT_EQ(MessageText(MessageText("\x1B\n")), "\\x1b\\n");
}

TEST(Utf8, AMessageHasAnEndWhateverItQuotes) {
  std::string text = "key is \"";
  for (int i = 0; i < 50000; ++i) text += "\xC3\xA4";
  for (const std::string& quoted : {text, text + "a"}) {
    const std::string shown = MessageText(quoted + "\": convert it again");
    EXPECT_LE(shown.size(), 1200U);
    EXPECT_TRUE(shown.starts_with("key is \"\xC3\xA4\xC3\xA4")) << shown;
    EXPECT_TRUE(shown.ends_with("\": convert it again")) << shown;
    EXPECT_NE(shown.find("\xA4... (99"), std::string::npos) << shown;
    EXPECT_TRUE(IsValidUtf8(shown));
    EXPECT_EQ(MessageText(shown), shown);
  }
}

TEST(Utf8, KnowsWhatIsValid) {
  EXPECT_TRUE(IsValidUtf8(""));
  EXPECT_TRUE(IsValidUtf8("a\xC3\xA4\xE2\x82\xAC\xF4\x8F\xBF\xBF"));
  for (const char* bad : {"\x80", "\xC3", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
                          "\xF4\x90\x80\x80", "\xE2\x82"}) {
    EXPECT_FALSE(IsValidUtf8(bad));
  }
}

}  // namespace
}  // namespace kvrun
