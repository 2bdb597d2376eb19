// Bodies that were valid, with something changed: whatever it is, only an ApiError comes out.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <random>
#include <string>
#include <string_view>

#include "apps/kvserve/openai_request.h"
#include "tests/support/seeds.h"

namespace kvrun::serve {
namespace {

constexpr std::string_view kBodies[] = {
    R"({"model":"m","messages":[{"role":"developer","content":"S"},{"role":"user","content":[{"type":)"
    R"("text","text":"\u00e9\ud83d\ude00"}]},{"role":"assistant","content":null,"reasoning_content":"r",)"
    R"("tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":[1,2]}"}}]})"
    R"(,{"role":"tool","tool_call_id":"1","content":"42"}],"stream":true,"stream_options":)"
    R"({"include_usage":true},"reasoning_effort":"none","chat_template_kwargs":{"x":[{}]},"logprobs":true,)"
    R"("top_logprobs":20,"response_format":{"type":"text"},"tools":[],"tool_choice":"auto")"
    R"(,"modalities":["text"]})",
    R"({"prompt":["a","b"],"temperature":0.5,"top_p":1,"top_k":-1,"min_p":0.05,"presence_penalty":-2,)"
    R"("frequency_penalty":2,"repeat_penalty":1.1,"seed":-9223372036854775808,"logit_bias":{"5":-100)"
    R"(,"6":1e1},"stop":["x","y"],"max_tokens":16,"max_completion_tokens":3.0,"n":2,"best_of":2,"logprobs":0)"
    R"(,"echo":null})",
    R"({"prompt":[[1,2,2147483647],[3.0]],"stop":"\n","suffix":"","seed":18446744073709551615})",
    R"({"content":"a\tb","add_special":true,"parse_special":false,"tokens":[1,2,3],"prompt":[4,5]})",
};

constexpr std::string_view kPieces[] = {"null",
                                        "true",
                                        "-1",
                                        "1e308",
                                        "1e-400",
                                        "9223372036854775808",
                                        "18446744073709551616",
                                        "\"\"",
                                        "[]",
                                        "{}",
                                        "[",
                                        "{\"a\":",
                                        "\"",
                                        "\\",
                                        "\\u0000",
                                        "\\ud800",
                                        "\xff",
                                        "\xc3",
                                        ",",
                                        ":",
                                        "]",
                                        "}",
                                        "0",
                                        ".",
                                        "-",
                                        "\"messages\":",
                                        "\"role\":\"user\"",
                                        "\"content\":",
                                        "\"type\":\"image_url\"",
                                        "\"arguments\":"};

class BodyMaker {
 public:
  explicit BodyMaker(uint64_t seed) : random_(seed) {}

  // Half of them are JSON, with another value somewhere.
  std::string Next() {
    std::string body(kBodies[Below(std::size(kBodies))]);
    const bool stays_json = Below(2) == 0;
    Json json = Json::parse(body);
    for (size_t n = 1 + Below(3); n > 0; --n) {
      if (stays_json) {
        *Somewhere(&json) = Value(json);
      } else {
        ChangeText(&body);
      }
    }
    return stays_json ? json.dump() : body;
  }

 private:
  size_t Below(size_t end) { return random_() % end; }

  Json* Somewhere(Json* json) {
    while (json->is_structured() && !json->empty() && Below(4) != 0) {
      auto child = json->begin();
      std::advance(child, Below(json->size()));
      json = &*child;
    }
    return json;
  }

  // A small one, or what the body has elsewhere.
  Json Value(Json json) {
    const Json value = Json::parse(kPieces[Below(std::size(kPieces))], nullptr, false);
    return value.is_discarded() ? *Somewhere(&json) : value;
  }

  // Where a value or a name of the JSON begins, mostly.
  size_t Place(const std::string& body) {
    const size_t place = Below(body.size() + 1);
    const size_t found = Below(4) == 0 ? body.npos : body.find_first_of(":,[{", place);
    return found == body.npos ? place : found + 1;
  }

  void ChangeText(std::string* body) {
    const size_t place = Place(*body);
    const std::string_view piece = kPieces[Below(std::size(kPieces))];
    const size_t end = std::min(body->find_first_of(",]}", place), body->size());
    switch (Below(6)) {
      case 0: body->insert(place, piece); break;
      case 1: body->replace(place, end - place, piece); break;
      case 2: body->erase(place, Below(12)); break;
      case 3:
        if (place < body->size()) (*body)[place] = static_cast<char>(Below(256));
        break;
      case 4: body->resize(place); break;
      default: body->insert(Place(*body), body->substr(place, Below(60))); break;
    }
  }

  std::mt19937_64 random_;
};

template <typename Parse>
bool IsRead(const Parse& parse, const std::string& body) {
  try {
    parse(body);
    return true;
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400U);
    const std::string text = cli::DumpJson(ErrorJson(error));
    EXPECT_LT(text.size(), 2000U);
    return false;
  }
}

TEST(OpenAiFuzz, OnlyAnApiErrorComesOut) {
  const bool is_long = testing::NumberFromEnvironment("KVRUN_LONG_TESTS", 0) == 1;
  const uint64_t seed = testing::NumberFromEnvironment("KVRUN_SEED", 1);
  BodyMaker maker(seed);
  std::array<size_t, 4> n_read = {};
  const size_t n_bodies = is_long ? 100'000 : 20'000;
  for (size_t i = 0; i < n_bodies; ++i) {
    const std::string body = maker.Next();
    SCOPED_TRACE(body);
    ASSERT_NO_THROW({
      n_read[0] += IsRead(ParseChatRequest, body) ? 1U : 0U;
      n_read[1] += IsRead(ParseCompletionRequest, body) ? 1U : 0U;
      n_read[2] += IsRead(ParseTokenizeRequest, body) ? 1U : 0U;
      n_read[3] += IsRead(ParseDetokenizeRequest, body) ? 1U : 0U;
    }) << "KVRUN_SEED="
       << seed << ", body " << i;
  }
  // Enough of them get past the JSON, and enough do not.
  for (const size_t n : n_read) {
    EXPECT_GT(n, n_bodies / 100);
    EXPECT_LT(n, n_bodies / 2);
  }
}

}  // namespace
}  // namespace kvrun::serve
