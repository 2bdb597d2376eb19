// kvrun render.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/cli_fixture.h"

namespace kvrun::cli_render_test {
namespace {

using kvrun::testing::Cli;
using kvrun::testing::Contains;

TEST(CliRender, PrintsTheTextAndNothingElse) {
  const TemporaryFolder folder;
  const std::string jinja = folder.Write("chat.jinja", "{{ x }}\n");
  const std::string variables = folder.Write("v.json", "{\"x\": 1}");
  const ProgramResult result = Cli({"render", "--chat-template", jinja, "--variables", variables});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "{{ x }}\n|{\"x\": 1}|0");
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(Cli({"render", "--chat-template", jinja, "--variables", "-"}, {{}, "{}", ""}).out,
            "{{ x }}\n|{}|0");
  EXPECT_EQ(Cli({"render", "--chat-template", "-", "--variables", variables}, {{}, "t", ""}).out,
            "t|{\"x\": 1}|0");
}

TEST(CliRender, ADayIsNoonOfIt) {
  const TemporaryFolder folder;
  const std::string jinja = folder.Write("chat.jinja", "t");
  const std::string variables = folder.Write("v.json", "{}");
  EXPECT_EQ(Cli({"render", "--chat-template", jinja, "--variables", variables, "--date", "2026-03-07"},
                {{"TZ=UTC"}, "", ""})
                .out,
            "t|{}|1772884800");
  for (const char* wrong : {"", "today", "2026-13-01", "2026-02-30", "2026-03-07x", "1969-01-01"}) {
    const ProgramResult refused =
        Cli({"render", "--chat-template", jinja, "--variables", variables, "--date", wrong});
    EXPECT_EQ(refused.exit_code, 2) << wrong;
    EXPECT_TRUE(Contains(refused.err, "--date")) << refused.err;
  }
}

TEST(CliRender, SaysWhatIsWrong) {
  const TemporaryFolder folder;
  const std::string good = folder.Write("good.jinja", "t");
  const std::string bad = folder.Write("bad.jinja", "{% fail %}");
  const std::string variables = folder.Write("v.json", "{}");
  const std::string list = folder.Write("list.json", "[1]");
  const std::string cut = folder.Write("cut.json", "{\"a\": ");
  const auto refused = [](const std::vector<std::string>& arguments, int exit_code, const std::string& what) {
    const ProgramResult result = Cli(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << what;
    EXPECT_EQ(result.out, "");
    EXPECT_TRUE(Contains(result.err, what)) << result.err;
  };
  refused({"render", "--variables", variables}, 2, "give --chat-template FILE");
  refused({"render", "--chat-template", good}, 2, "give --variables FILE.json");
  refused({"render", "--chat-template", "-", "--variables", "-"}, 2, "name a file");
  refused({"render", "--chat-template", bad, "--variables", variables}, 1,
          "the chat template, line 1: it failed");
  refused({"render", "--chat-template", good, "--variables", list}, 1, "list.json: not a JSON object");
  refused({"render", "--chat-template", good, "--variables", cut}, 1, "cut.json: ");
  std::string many = "{\"a\": 1";
  for (int i = 0; i < 200'000; ++i) many += ", \"m" + std::to_string(i) + "\": 1";
  refused({"render", "--chat-template", good, "--variables", folder.Write("many.json", many + "}")}, 1,
          "many.json: it has an object of more than 10000 members");
  const std::string deep = "{\"a\": " + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  refused({"render", "--chat-template", good, "--variables", folder.Write("deep.json", deep)}, 1,
          "deep.json: it is nested more than 500 deep");
  refused({"render", "--chat-template", folder.Path("none"), "--variables", variables}, 1, "none");
}

TEST(CliTemplateVariables, AreJsonTextsOrFiles) {
  const TemporaryFolder folder;
  const std::string tools = folder.Write("tools.json", "[{\"name\": \"clock\"}]");
  const auto prompt = [](const std::vector<std::string>& variables) {
    std::vector<std::string> arguments = {"run", "-m", "transcript", "--chat", "-p", "x", "-q"};
    for (const std::string& variable : variables)
      arguments.insert(arguments.end(), {"--template-var", variable});
    return Cli(arguments);
  };
  EXPECT_TRUE(Contains(prompt({"reasoning_effort=high"}).out, R"({"reasoning_effort":"high"})"));
  EXPECT_TRUE(Contains(prompt({"a=1", "b=false", "c=\"1\""}).out, R"({"a":1,"b":false,"c":"1"})"));
  EXPECT_TRUE(Contains(prompt({"tools=@" + tools}).out, R"({"tools":[{"name":"clock"}]})"));
  EXPECT_TRUE(Contains(prompt({"a=x=y"}).out, R"({"a":"x=y"})"));
  for (const char* wrong : {"a", "=x", "a b=x", "messages=[]"}) {
    const ProgramResult refused = prompt({wrong});
    EXPECT_EQ(refused.exit_code, 2) << wrong;
    EXPECT_TRUE(Contains(refused.err, "--template-var: ")) << refused.err;
  }
  EXPECT_EQ(prompt({"a=@" + folder.Path("none")}).exit_code, 1);
  const ProgramResult cut = prompt({"tools=[1,"});
  EXPECT_EQ(cut.exit_code, 1);
  EXPECT_TRUE(Contains(cut.err, "the value of tools begins as JSON does, but is none")) << cut.err;
  EXPECT_TRUE(Contains(prompt({"tools=@"}).err, "--template-var: tools=@ names no file"));
  EXPECT_TRUE(Contains(Cli({"run", "-m", "toy", "-p", "x", "--template-var", "a=1"}).err,
                       "--template-var needs --chat"));
}

}  // namespace
}  // namespace kvrun::cli_render_test
