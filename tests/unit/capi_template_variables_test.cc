// The limits of what templates are given.
#include <gtest/gtest.h>
#include <kvrun/kvrun.h>

#include <chrono>
#include <string>

namespace kvrun {
namespace {

// The text, or why there is none.
std::string Rendered(const std::string& variables) {
  char* text = nullptr;
  if (kvrun_template_render("{{ x | length }}", variables.c_str(), 0, &text) != KVRUN_OK)
    return kvrun_last_error();
  const std::string rendered = text;
  kvrun_string_free(text);
  return rendered;
}

std::string Members(int n) {
  std::string members = "{\"m\": 0";
  for (int i = 1; i < n; ++i) members += ", \"" + std::to_string(i) + "\": 0";
  return "{\"x\": " + members + "}}";
}

std::string Lists(size_t depth) {
  return "{\"x\": " + std::string(depth - 1, '[') + std::string(depth - 1, ']') + "}";
}

TEST(CapiTemplateVariables, HaveLimits) {
  const std::string refusal = "nested more than 500 deep, or has more than 10000 members";
  EXPECT_EQ(Rendered(Members(10'000)), "10000");
  EXPECT_NE(Rendered(Members(10'001)).find(refusal), std::string::npos);
  EXPECT_EQ(Rendered(Lists(300)), "1");
  EXPECT_EQ(Rendered(Lists(500)).find(refusal), std::string::npos);  // what templates take is less
  EXPECT_NE(Rendered(Lists(501)).find(refusal), std::string::npos);
  EXPECT_NE(Rendered(Lists(1'000'000)).find(refusal), std::string::npos);
  EXPECT_EQ(Rendered("{\"x\": \"\\\"" + std::string(1000, '[') + "\"}"), "1001");
  for (const char* text : {"", "{", "{\"x\": \"", "{\"x\": \"\\", "]", "}}", "{\"x\": 1}]"})
    EXPECT_NE(Rendered(text).find("is not JSON"), std::string::npos) << text;
}

// Not in the square of how many they are, which would be a minute.
TEST(CapiTemplateVariables, ManyObjectsInAListAreReadAtOnce) {
  std::string objects = "{}";
  for (int i = 1; i < 300'000; ++i) objects += ",{}";
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(Rendered("{\"x\": [" + objects + "]}"), "300000");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

}  // namespace
}  // namespace kvrun
