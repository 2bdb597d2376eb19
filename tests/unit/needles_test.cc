// Documents with needles: where they lie, and what cannot be made. A token of the vocabulary is a byte, so
// that a sentence has 30 of them: " The password is Nozilo", " 85274" and ".".
#include "runtime/engine/measure/needles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/support/capi_fixture.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/or_die.h"

namespace kvrun {
namespace {

using testing::FakeTokenizer;
using testing::LastError;
using testing::OrDie;
using Ids = std::vector<TokenId>;

constexpr uint32_t kSentence = 30;
constexpr TokenId kFirstId = 1000;  // of a text: no byte

Ids Text(size_t n) {
  Ids ids(n);
  std::iota(ids.begin(), ids.end(), kFirstId);
  return ids;
}

std::vector<NeedleDocument> Documents(const Ids& text, const NeedleOptions& options) {
  return OrDie(HideNeedles(FakeTokenizer(), text, options));
}

std::string ErrorOf(const Ids& text, const NeedleOptions& options) {
  const auto documents = HideNeedles(FakeTokenizer(), text, options);
  return documents.ok() ? "" : documents.status().message();
}

// What of a document is text.
Ids TextOf(const NeedleDocument& document) {
  Ids text;
  std::copy_if(document.ids.begin(), document.ids.end(), std::back_inserter(text),
               [](TokenId id) { return id >= kFirstId; });
  return text;
}

TEST(Needles, EachIsSaidInPartsOfItsOwnOfTheText) {
  const Ids text = Text(1000);
  const auto documents =
      Documents(text, {.n_ctx = 1000, .n_needles = 4, .n_per_document = 4, .n_copies = 2, .seed = 5});
  ASSERT_EQ(documents.size(), 1U);
  const NeedleDocument& document = documents[0];
  ASSERT_EQ(document.ids.size(), 1000U - 29);
  ASSERT_EQ(document.needles.size(), 4U);
  const size_t n_hay = 1000 - 29 - 8 * kSentence;  // 731
  EXPECT_EQ(TextOf(document), Ids(text.begin(), text.begin() + n_hay));
  std::set<std::string> keys;
  for (size_t i = 0; i < 4; ++i) {
    const Needle& needle = document.needles[i];
    ASSERT_EQ(needle.positions.size(), 2U);
    for (size_t copy = 0; copy < 2; ++copy) {
      const uint32_t position = needle.positions[copy];
      Ids said = needle.question;
      said.insert(said.end(), needle.value.begin(), needle.value.end());
      said.push_back('.');
      EXPECT_EQ(Ids(&document.ids[position], &document.ids[position] + kSentence), said);
      const size_t part = copy * 4 + i;
      const size_t at = position - part * kSentence;  // in the text
      EXPECT_GE(at, n_hay * part / 8);
      EXPECT_LT(at, n_hay * (part + 1) / 8);
    }
    const std::string question = FakeTokenizer().Decode(needle.question);
    EXPECT_TRUE(std::regex_match(question, std::regex("The password is [A-Z][a-z]{5}"))) << question;
    EXPECT_TRUE(std::regex_match(FakeTokenizer().Decode(needle.value), std::regex("[0-9]{5}")));
    keys.insert(question);
  }
  EXPECT_EQ(keys.size(), 4U);
}

TEST(Needles, TheSeedSaysWhatIsHiddenWhere) {
  const auto ids = [](uint64_t seed) {
    return Documents(Text(1000), {.n_ctx = 1000, .n_needles = 3, .seed = seed})[0].ids;
  };
  EXPECT_EQ(ids(1), ids(1));
  EXPECT_NE(ids(1), ids(2));
}

TEST(Needles, DocumentsAreSpreadOverTheText) {
  const Ids text = Text(2000);
  const auto documents = Documents(text, {.n_ctx = 500, .n_needles = 10, .n_per_document = 4, .n_copies = 1});
  ASSERT_EQ(documents.size(), 3U);
  EXPECT_EQ(documents[0].needles.size(), 3U);
  EXPECT_EQ(documents[1].needles.size(), 3U);
  EXPECT_EQ(documents[2].needles.size(), 4U);
  for (const NeedleDocument& document : documents) EXPECT_EQ(document.ids.size(), 500U - 29);
  const size_t n_hay = 500 - 29 - 3 * kSentence;  // 381
  EXPECT_EQ(TextOf(documents[0]).front(), kFirstId);
  EXPECT_EQ(TextOf(documents[1]).front(), kFirstId + static_cast<TokenId>((2000 - n_hay) / 2));
  EXPECT_EQ(TextOf(documents[2]).back(), text.back());
}

TEST(Needles, EachDocumentBeginsAsTheTextDoes) {
  Ids text = Text(2000);
  text.insert(text.begin(), FakeTokenizer::kBos);
  for (const NeedleDocument& document :
       Documents(text, {.n_ctx = 500, .n_needles = 2, .n_per_document = 1, .n_copies = 1})) {
    EXPECT_EQ(document.ids.size(), 500U - 29);
    EXPECT_EQ(document.ids[0], FakeTokenizer::kBos);
    EXPECT_EQ(std::count(document.ids.begin(), document.ids.end(), FakeTokenizer::kBos), 1);
    const uint32_t position = document.needles[0].positions[0];
    EXPECT_EQ(document.ids[position], ' ');
    EXPECT_EQ(document.ids[position + 1], 'T');
  }
}

TEST(Needles, AContextOrATextThatIsTooSmallIsSaid) {
  const NeedleOptions options = {.n_ctx = 388, .n_needles = 3, .n_copies = 2};
  EXPECT_EQ(ErrorOf(Text(1000), options),
            "cannot hide 3 needles, 2 times each, in a context of 388 tokens: they take 180, and the text "
            "between them takes no less. Ask for fewer needles, or for a context of at least 389 tokens");
  NeedleOptions enough = options;
  enough.n_ctx = 389;
  EXPECT_EQ(ErrorOf(Text(180), enough), "");
  EXPECT_EQ(ErrorOf(Text(179), enough),
            "cannot hide needles in a text of 179 tokens: a context of 389 tokens takes 180 of them beside 3 "
            "needles. Give a longer text, or ask for a context of at most 388 tokens");
  EXPECT_NE(ErrorOf({}, enough), "");
  EXPECT_NE(ErrorOf(Text(10), {}), "");
}

TEST(Needles, NumbersOutOfRangeAreRefused) {
  EXPECT_EQ(ErrorOf(Text(1000), {.n_ctx = 1000, .n_needles = 0}),
            "cannot hide 0 needles: ask for 1 to 100000");
  EXPECT_EQ(ErrorOf(Text(1000), {.n_ctx = 1000, .n_needles = 100'001}),
            "cannot hide 100001 needles: ask for 1 to 100000");
  EXPECT_EQ(ErrorOf(Text(1000), {.n_ctx = 1000, .n_needles = 3, .n_per_document = 1001}),
            "cannot hide 1001 needles in a document, 3 times each: both are from 1 to 1000");
  EXPECT_EQ(ErrorOf(Text(1000), {.n_ctx = 1000, .n_needles = 3, .n_copies = 0}),
            "cannot hide 20 needles in a document, 0 times each: both are from 1 to 1000");
}

class DoublingTokenizer : public FakeTokenizer {
 public:
  Result<std::vector<TokenId>> Encode(std::string_view text, const EncodeOptions& options) const override {
    return FakeTokenizer::Encode(std::string(text) + std::string(text), options);
  }
};

TEST(Needles, AQuestionThatIsLongerThanAWindowIsRefused) {
  const Status status =
      HideNeedles(DoublingTokenizer(), Text(1000), {.n_ctx = 1000, .n_needles = 1}).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("has 58 tokens, and a question needs from 2 to 48"), std::string::npos)
      << status.message();
}

class CapiNeedles : public testing::CapiFixture {};

TEST_F(CapiNeedles, ArgumentsAreChecked) {
  kvrun_needle_options options;
  kvrun_needle_options_init(&options);
  const int32_t id = 1;
  char* json = nullptr;
  EXPECT_EQ(kvrun_needles_json(engine_, &options, &id, 1, nullptr), KVRUN_INVALID_ARGUMENT);
  EXPECT_EQ(kvrun_needles_json(nullptr, &options, &id, 1, &json), KVRUN_INVALID_ARGUMENT);
  EXPECT_EQ(kvrun_needles_json(engine_, nullptr, &id, 1, &json), KVRUN_INVALID_ARGUMENT);
  EXPECT_EQ(kvrun_needles_json(engine_, &options, nullptr, 1, &json), KVRUN_INVALID_ARGUMENT);
  options.n_configs = 1;
  EXPECT_EQ(kvrun_needles_json(engine_, &options, &id, 1, &json), KVRUN_INVALID_ARGUMENT);
  EXPECT_NE(LastError().find("'configs' is NULL"), std::string::npos) << LastError();
  const char* config = nullptr;
  options.configs = &config;
  EXPECT_EQ(kvrun_needles_json(engine_, &options, &id, 1, &json), KVRUN_INVALID_ARGUMENT);
  EXPECT_NE(LastError().find("'configs[]' is NULL"), std::string::npos) << LastError();
  options.n_configs = 0;
  EXPECT_EQ(kvrun_needles_json(engine_, &options, &id, 1, &json), KVRUN_UNSUPPORTED);  // the engine is a fake
  options.struct_size = 0;
  EXPECT_EQ(kvrun_needles_json(engine_, &options, &id, 1, &json), KVRUN_INVALID_ARGUMENT);
  EXPECT_NE(LastError().find("kvrun_needle_options.struct_size"), std::string::npos) << LastError();
  EXPECT_EQ(json, nullptr);
}

}  // namespace
}  // namespace kvrun
