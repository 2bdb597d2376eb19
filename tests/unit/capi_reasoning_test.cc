// Not grouped (cmake/KvrunCompile.cmake): its headers have names of others, too.
// What a model thinks, through the C API.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "tests/support/capi_fixture.h"

namespace kvrun {
namespace {

using testing::LastError;

using CapiReasoning = testing::CapiFixture;

struct Parts {
  std::string text;  // "R(..)A(..)"
};

void OnPart(void* user, int is_reasoning, const char* text, size_t text_bytes) {
  std::string& all = static_cast<Parts*>(user)->text;
  all += is_reasoning != 0 ? "R(" : "A(";
  all.append(text, text_bytes) += ')';
}

class Reasoning {
 public:
  Reasoning(const kvrun_model* model, std::string_view prompt) {
    std::vector<int32_t> ids(prompt.size() + 8);  // the space before it has three bytes
    size_t count = ids.size();
    EXPECT_EQ(kvrun_tokenize(model, prompt.data(), prompt.size(), 0, ids.data(), &count), KVRUN_OK);
    EXPECT_LE(count, ids.size());
    EXPECT_EQ(kvrun_reasoning_begin(model, ids.data(), count, &reasoning_), KVRUN_OK) << LastError();
  }
  Reasoning(const Reasoning&) = delete;
  Reasoning& operator=(const Reasoning&) = delete;
  ~Reasoning() { kvrun_reasoning_close(reasoning_); }

  std::string Next(std::string_view text) const {
    Parts parts;
    EXPECT_EQ(kvrun_reasoning_next(reasoning_, -1, text.data(), text.size(), OnPart, &parts), KVRUN_OK);
    return parts.text;
  }
  std::string End() const {
    Parts parts;
    EXPECT_EQ(kvrun_reasoning_end(reasoning_, OnPart, &parts), KVRUN_OK);
    return parts.text;
  }
  kvrun_reasoning* get() const { return reasoning_; }

 private:
  kvrun_reasoning* reasoning_ = nullptr;
};

TEST_F(CapiReasoning, IsHandedOnApartFromTheAnswer) {
  const Reasoning reasoning(model_, "Hi");
  EXPECT_EQ(reasoning.Next("<think>\nOne"), "R(One)");
  EXPECT_EQ(reasoning.Next("\n</thi"), "");
  EXPECT_EQ(reasoning.Next("nk>\n\nTwo"), "A(Two)");
  EXPECT_EQ(reasoning.Next(" <think>"), "A( <think>)");
  EXPECT_EQ(reasoning.End(), "");
}

TEST_F(CapiReasoning, MayHaveBegunInThePrompt) {
  EXPECT_EQ(Reasoning(model_, "Hi<think>\n").Next("One</think>Two"), "R(One)A(Two)");
  EXPECT_EQ(Reasoning(model_, "Hi").Next("One</think>Two"), "A(One</think>Two)");
  const Reasoning endless(model_, "Hi<think>");
  EXPECT_EQ(endless.Next("One</"), "R(One)");
  EXPECT_EQ(endless.End(), "R(</)");
}

TEST_F(CapiReasoning, WhatIsMissingIsSaid) {
  kvrun_reasoning* none = nullptr;
  EXPECT_EQ(kvrun_reasoning_begin(nullptr, nullptr, 0, &none), KVRUN_INVALID_ARGUMENT);
  EXPECT_EQ(kvrun_reasoning_begin(model_, nullptr, 1, &none), KVRUN_INVALID_ARGUMENT);
  EXPECT_EQ(kvrun_reasoning_begin(model_, nullptr, 0, nullptr), KVRUN_INVALID_ARGUMENT);
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(kvrun_reasoning_next(nullptr, -1, "", 0, OnPart, nullptr), KVRUN_INVALID_ARGUMENT);
  EXPECT_EQ(kvrun_reasoning_end(nullptr, OnPart, nullptr), KVRUN_INVALID_ARGUMENT);
  const Reasoning reasoning(model_, "Hi");
  EXPECT_EQ(kvrun_reasoning_next(reasoning.get(), -1, nullptr, 1, OnPart, nullptr), KVRUN_INVALID_ARGUMENT);
  EXPECT_EQ(kvrun_reasoning_next(reasoning.get(), -1, "a", 1, nullptr, nullptr), KVRUN_INVALID_ARGUMENT);
  EXPECT_EQ(kvrun_reasoning_end(reasoning.get(), nullptr, nullptr), KVRUN_INVALID_ARGUMENT);
  kvrun_reasoning_close(nullptr);
  kvrun_model* wordless = nullptr;
  ASSERT_EQ(kvrun_model_make("SmolLM2-135M", 2, &wordless), KVRUN_OK) << LastError();
  EXPECT_EQ(kvrun_reasoning_begin(wordless, nullptr, 0, &none), KVRUN_NOT_FOUND);
  EXPECT_EQ(none, nullptr);
  kvrun_model_close(wordless);
}

}  // namespace
}  // namespace kvrun
