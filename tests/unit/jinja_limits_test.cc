// Templates that mean harm end soon, with a message, in little memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <string>

#include "runtime/jinja/jinja_template.h"
#include "tests/support/sanitized.h"

namespace kvrun {
namespace {

using nlohmann::ordered_json;

// Of the processor, as others may share it.
constexpr double kMostSeconds = testing::kIsSanitized ? 20 : 2;
// Sanitizers look for other things than time: a small part of what may be does for them.
constexpr JinjaLimits kLimits =
    testing::kIsSanitized ? JinjaLimits{.max_steps = 50'000, .max_bytes = size_t{4} << 20} : JinjaLimits{};

double slowest = 0;

double SecondsUsed() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

void ExpectEndsSoon(const std::string& source, const ordered_json& content = ordered_json::object()) {
  const double begin = SecondsUsed();
  const Result<JinjaTemplate> read = JinjaTemplate::Parse(source);
  if (read.ok()) {
    const Result<JinjaText> text = read->Render({content, {}, 0}, kLimits);
    EXPECT_FALSE(text.ok()) << source.substr(0, 200);
    EXPECT_LT(text.status().message().size(), 1000U);
  } else {
    EXPECT_LT(read.status().message().size(), 1000U);
  }
  EXPECT_LT(SecondsUsed() - begin, kMostSeconds) << source.substr(0, 200);
  slowest = std::max(slowest, SecondsUsed() - begin);
}

std::string Repeated(const std::string& text, size_t n) {
  std::string all;
  for (size_t i = 0; i < n; ++i) all += text;
  return all;
}

class JinjaBounds : public ::testing::Test {
 protected:
  static void TearDownTestSuite() { std::printf("the slowest takes %.2f s\n", slowest); }
};

TEST_F(JinjaBounds, LoopsEnd) {
  for (const char* source : {
           "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
           "{% for a in range(99999) %}{% for b in range(99999) %}{{ a * b }}{% endfor %}{% endfor %}",
           "{% for a in range(99999) if a < 0 %}{% endfor %}{% for b in range(9999) %}{{ "
           "range(99999)|list|length }}{% endfor %}",
           "{% for a in range(99999) %}{% set x = range(99999)|sum %}{% endfor %}",
           "{% for a in range(99999) %}{{ range(99999)|map('string')|list|length }}{% endfor %}",
           "{% for a in range(99999) %}{{ -1 in range(99999) }}{% endfor %}",
           "{% for a in range(99999) %}{{ range(99999)|sort(reverse=true)|first }}{% endfor %}",
           "{% for a in range(99999) %}{{ range(99999)|select('in', range(99999))|last }}{% endfor %}",
           "{% for a in range(99999) %}{{ range(99999)|batch(1)|list|length }}{% endfor %}",
           "{% for a in range(99999) %}{{ [1]|slice(99999999)|list|length }}{% endfor %}",
           "{% for a in range(99999) %}{% set l = namespace(x=a) %}{% endfor %}{% for b in range(99999) %}{% "
           "for c in "
           "range(99999) %}{% set l = namespace(x=b) %}{% endfor %}{% endfor %}",
           "{% for a in range(99999) %}{% for c in range(99999) %}{% macro m() %}{% endmacro %}{% endfor "
           "%}{% endfor %}",
           "{% for a in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
           "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
           "{% macro m() %}{{ caller() }}{% endmacro %}{% macro n() %}{% call m() %}{{ n() }}{% endcall %}{% "
           "endmacro %}{{ n() }}",
           "{% macro m(n) %}{{ m(n - 1) ~ m(n - 1) if n > 0 }}{% endmacro %}{{ m(60) }}",
       }) {
    ExpectEndsSoon(source);
  }
}

TEST_F(JinjaBounds, TextsStaySmall) {
  for (const char* source : {
           "{{ 'x' * 10**9 }}",
           "{{ 'x' * 10**18 }}",
           "{{ [0] * 10**9 }}",
           "{{ range(10**9) }}",
           "{{ ((1,) * 10**6) * 10**6 }}",
           "{{ 'x'.ljust(10**9) }}",
           "{{ 'x'.center(10**15) }}",
           "{{ 'x'.zfill(10**9) }}",
           "{{ 'a\nb'|indent(10**9) }}",
           "{{ '%1000000000d' % 1 }}",
           "{{ '%*d' % (10**9, 1) }}",
           "{{ '%.1000000000f' % 1.5 }}",
           "{{ '{:>1000000000}'.format(1) }}",
           "{{ '{:.1000000000f}'.format(1.5) }}",
           "{{ [1]|batch(10**9, 'x')|list }}",
           "{{ 'x'|center(10**9) }}",
           "{% set x = namespace(s='x') %}{% for i in range(99) %}{% set x.s = x.s ~ x.s %}{% endfor %}",
           "{% set x = namespace(s='x') %}{% for i in range(99) %}{% set x.s = x.s|replace('x', 'xx') %}{% "
           "endfor %}",
           "{% set x = namespace(s='x' * 1000) %}{% for i in range(99) %}{% set x.s = x.s|replace('', x.s) "
           "%}{% endfor %}",
           "{% set x = namespace(s='x' * 1000) %}{% for i in range(99) %}{% set x.s = x.s.join(x.s|list) "
           "%}{% endfor %}",
           "{% set x = namespace(s=['x']) %}{% for i in range(99) %}{% set x.s = x.s + x.s %}{% endfor %}",
           "{% set x = namespace(s=['x']) %}{% for i in range(99) %}{% set x.s = [x.s, x.s] %}{% endfor %}{{ "
           "x.s }}",
           "{% set x = namespace(s=['x']) %}{% for i in range(99) %}{% set x.s = [x.s, x.s] %}{% endfor %}{{ "
           "x.s|tojson }}",
           "{% set x = namespace(s=['x'], t=['x']) %}{% for i in range(99) %}{% set x.s = [x.s, x.s] %}{% "
           "set x.t = [x.t, x.t] %}"
           "{% endfor %}{{ x.s == x.t }}",
           "{% set x = namespace(s=('x',)) %}{% for i in range(99) %}{% set x.s = (x.s, x.s) %}{% endfor "
           "%}{{ {x.s: 1} }}",
           "{% set x = namespace(s=['x']) %}{% for i in range(99999) %}{% set x.s = [x.s] %}{% endfor %}",
           "{% set x = namespace(s=[1]) %}{% for i in range(99999) %}{% set x.s = x.s|map('string') %}{% "
           "endfor %}{{ x.s|list }}",

           "{% set x = namespace() %}{% set x.x = x %}{{ x }}",
           "{% set x = namespace() %}{% set x.x = [x] %}{{ x.x|tojson }}",
           "{% for i in range(99999) %}{{ 'x' * 10000 }}{% endfor %}",
           "{% set x = 'x' * 10**7 %}{% for i in range(99) %}{{ x|list|length }}{% endfor %}",
           "{% set x = 'x' * 10**7 %}{% for i in range(9999) %}{{ x.split('x')|length }}{% endfor %}",
           "{{ 2 ** 10 ** 10 }}",
           "{{ 9 ** 9 ** 9 ** 9 }}",
           "{{ '{:{}}'.format(1, 10**9) }}",

       }) {
    ExpectEndsSoon(source);
  }
}

// Each of these looks at large texts again and again.
TEST_F(JinjaBounds, SearchesEnd) {
  const std::string text =
      "{% set s = 'a' * 10**6 %}{% set t = 'a' * (5 * 10**5) ~ 'b' %}{% for i in range(99999) %}";
  for (const char* look : {"t in s",
                           "s.find(t)",
                           "s.rfind('b' ~ t)",
                           "s.count(t)",
                           "s|length",
                           "s == s[1:] ~ 'b'",
                           "s.strip(t)|length",
                           "s[i]",
                           "s[:i]|length",
                           "s.isalpha()",
                           "s|wordcount",
                           "s < s[1:] ~ 'a'",
                           "s|upper|length",
                           "s|title|length",
                           "s.startswith(t)",
                           "s.split(t)|length",
                           "s|urlencode|length",
                           "(s ~ ' ').split()|length",
                           "s.splitlines()|length",
                           "s|truncate(10)",
                           "s.center(10)|length",
                           "s|replace(t, '')|length",
                           "{s: 1}[s]",
                           "[s, s ~ 'x']|sort|length"}) {
    ExpectEndsSoon(text + "{% set x = " + look + " %}{% endfor %}");
  }
}

TEST_F(JinjaBounds, DeepTemplatesAreRefused) {
  constexpr size_t kDeep = 100000;
  for (const char* open : {"(", "[", "{1:", "not ", "-", "a(", "a[", "a if ", "a|d(", "a is eq ("}) {
    ExpectEndsSoon("{{ " + Repeated(open, kDeep) + " }}");
  }
  ExpectEndsSoon("{{ a" + Repeated(".a", kDeep) + " }}");
  ExpectEndsSoon("{{ a" + Repeated("|d", kDeep) + " }}");
  ExpectEndsSoon("{{ a" + Repeated("[0]", kDeep) + " }}");
  ExpectEndsSoon("{{ 1" + Repeated(" if a else 1", kDeep) + " }}");
  ExpectEndsSoon(Repeated("{% if a %}", kDeep));
  ExpectEndsSoon(Repeated("{% for a in b %}", kDeep));
  ExpectEndsSoon("{% set " + Repeated("(", kDeep) + "a = 1 %}");
  ExpectEndsSoon(std::string(size_t{2} << 20, 'x') + "{{ x.y.z }}");
  ExpectEndsSoon(Repeated("{{ a", kDeep));
  ExpectEndsSoon(Repeated("{{ '", kDeep) + "{{ x.y }}");
  ExpectEndsSoon(Repeated("{# ", kDeep));
  ExpectEndsSoon("{% raw %}" + Repeated("{% endraw", kDeep));
  // Long, but not deep.
  const Result<JinjaTemplate> chain = JinjaTemplate::Parse("{{ 1" + Repeated(" + 1", 20000) + " }}");
  ASSERT_TRUE(chain.ok()) << chain.status().message();
  EXPECT_EQ(JoinPieces(*chain->Render({})), "20001");
}

TEST_F(JinjaBounds, DeepVariablesAreRefused) {
  ordered_json deep = 1;
  for (int i = 0; i < 1000; ++i) deep = ordered_json::array({std::move(deep)});
  ExpectEndsSoon("{{ deep }}", {{"deep", deep}});
}

TEST_F(JinjaBounds, MacrosMayCallThemselvesSomeFiftyTimes) {
  const char* const source =
      "{% macro m(n) %}{% if n > 0 %}{% for i in [1] %}{{ n ~ m(n - 1) }}{% endfor %}{% endif %}{% endmacro "
      "%}{{ m(40) }}";
  const Result<JinjaTemplate> read = JinjaTemplate::Parse(source);
  ASSERT_TRUE(read.ok());
  const Result<JinjaText> text = read->Render({});
  EXPECT_TRUE(text.ok()) << text.status().message();
}

TEST_F(JinjaBounds, TheCallerSetsThem) {
  const Result<JinjaTemplate> read = JinjaTemplate::Parse("{% for i in range(1000) %}{{ i }}{% endfor %}");
  ASSERT_TRUE(read.ok());
  EXPECT_TRUE(read->Render({}).ok());
  EXPECT_FALSE(read->Render({}, {.max_steps = 1000}).ok());
  EXPECT_FALSE(read->Render({}, {.max_bytes = 1000}).ok());
  EXPECT_FALSE(read->Render({}, {.max_depth = 1}).ok());
}

}  // namespace
}  // namespace kvrun
