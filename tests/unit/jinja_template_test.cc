// What templates make, of small ones. The expected texts are those of Jinja2 3.1.
#include "runtime/jinja/jinja_template.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvrun {
namespace {

using nlohmann::ordered_json;

std::string ErrorOf(const std::string& source, const ordered_json& content = ordered_json::object()) {
  const Result<JinjaTemplate> read = JinjaTemplate::Parse(source);
  if (!read.ok()) return read.status().message();
  const Result<JinjaText> text = read->Render({content, {}, 0});
  return text.ok() ? "no error: " + JoinPieces(*text) : text.status().message();
}

StatusCode CodeOf(const std::string& source) { return JinjaTemplate::Parse(source).status().code(); }

JinjaText PiecesOf(const std::string& source, const ordered_json& content, const ordered_json& form = {}) {
  const Result<JinjaTemplate> read = JinjaTemplate::Parse(source);
  EXPECT_TRUE(read.ok()) << read.status().message();
  if (!read.ok()) return {};
  const Result<JinjaText> text = read->Render({content, form, 0});
  EXPECT_TRUE(text.ok()) << source << ": " << text.status().message();
  return text.ok() ? *text : JinjaText();
}

std::string TextOf(const std::string& source, const ordered_json& content = ordered_json::object()) {
  return JoinPieces(PiecesOf(source, content));
}

// Content in «».
std::string MarkedTextOf(const std::string& source, const ordered_json& content,
                         const ordered_json& form = {}) {
  std::string marked;
  for (const JinjaPiece& piece : PiecesOf(source, content, form)) {
    marked += piece.is_content ? "«" + piece.text + "»" : piece.text;
  }
  return marked;
}

struct Example {
  const char* source;
  const char* text;
};

void ExpectAll(const std::vector<Example>& examples, const ordered_json& content = ordered_json::object()) {
  for (const Example& example : examples)
    EXPECT_EQ(TextOf(example.source, content), example.text) << example.source;
}

TEST(JinjaTemplate, TagsTakeTheirLines) {
  ExpectAll({
      {"a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc"},
      {"a {%- if true -%}  b  {%- endif %} c", "ab c"},
      {"  {%+ if true %} b{% endif %}", "   b"},
      {"{% if true +%}\nb{% endif %}", "\nb"},
      {"{{ 1 }}\n{{ 2 }}\n\n", "1\n2\n"},
      {"a\r\nb\rc", "a\nb\nc"},
      {"{# comment #}\nx{#- y -#} z", "xz"},
      {"{% raw %}{{ x }}{% if %}{% endraw %}", "{{ x }}{% if %}"},
      {"  {% raw -%}  a  {%- endraw %}\nb", "ab"},
      {"{{ '\\n\\x41\\u00e9\\'' }}", "\nAé'"},
  });
}

TEST(JinjaTemplate, ExpressionsBindAsInPython) {
  ExpectAll({
      {"{{ 1 + 2 * 3 - 4 // 3 }}", "6"},
      {"{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 3 ** 2 }}", "-4 2 3.5 64"},
      {"{{ 1 < 2 < 3 }} {{ 3 > 2 == 2 }} {{ 1 in [1] and 2 not in [1] }}", "True True True"},
      {"{{ not 1 == 2 }} {{ 'a' ~ 1 ~ none }} {{ 'a' * 3 }}", "True a1None aaa"},
      {"{{ 'x' if false else 'y' }}{{ 'x' if false }}", "y"},
      {"{{ 0 or 'a' }}{{ '' and 'b' }}{{ 1 and 2 }}", "a2"},
      {"{{ -1|abs }} {{ (1, 2) }} {{ (1,) }} {{ [1, 'a\\'b', none, true, 1.0] }}",
       "1 (1, 2) (1,) [1, \"a'b\", None, True, 1.0]"},
      {"{{ {'a': 1, 'b': {'c': []}} }}", "{'a': 1, 'b': {'c': []}}"},
      {"{{ 0.1 + 0.2 }} {{ 1e16 }} {{ 1e-5 }} {{ 100.0 }} {{ 1e22 * 10 }}",
       "0.30000000000000004 1e+16 1e-05 100.0 1e+23"},
      {"{{ 'abcdef'[1:-1] }} {{ 'abc'[::-1] }} {{ [1, 2, 3][-1] }} {{ 'äöü'[1] }}", "bcde cba 3 ö"},
      {"{{ '%s is %d and %.2f%%' % ('a', 3, 2.5) }}", "a is 3 and 2.50%"},
      {"{{ '{} {1}'|length }} {{ '{0}-{b:>4}|'.format('a', b=7) }}", "6 a-   7|"},
  });
}

TEST(JinjaTemplate, StatementsKeepTheirScopes) {
  ExpectAll({
      {"{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = 5 %}{{ x }}{% endfor %}{{ x }}", "15151"},
      {"{% set n = namespace(x=1) %}{% for i in [1, 2] %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}", "4"},
      {"{% for i in [1, 2, 3] if i != 2 %}{{ loop.index }}/{{ loop.length }}:{{ i }} {% else %}none{% endfor "
       "%}",
       "1/2:1 2/2:3 "},
      {"{% for i in [] %}x{% else %}none{% endfor %}", "none"},
      {"{% for i in range(9) %}{% if i == 1 %}{% continue %}{% elif i > 3 %}{% break %}{% endif %}{{ i }}{% "
       "endfor %}",
       "023"},
      {"{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"},
      {"{% for i in 'ab' %}{{ loop.first }}{{ loop.last }}{{ loop.previtem }}{{ loop.nextitem }}{{ "
       "loop.cycle('x', 'y') }} {% endfor %}",
       "TrueFalsebx FalseTrueay "},
      {"{% for i in [1, 1, 2] %}{{ loop.changed(i) }}{{ loop.revindex0 }}{{ loop.depth }} {% endfor %}",
       "True21 False11 True01 "},
      {"{% for x in [1, 2, 3] %}{% for a, of in loop %}{{ a }}{{ of.index }} {% endfor %}{{ x }}{% endfor %}",
       "22 33 1"},
      {"{% for i in [[1], 2] recursive %}{{ loop(i) if i is iterable else i }}{% endfor %}", "12"},
      {"{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c %} x {% endset %}[{{ c }}]", "12[ x ]"},
      {"{% set c | upper | trim %} x {% endset %}[{{ c }}]{% filter replace('a', 'b') %}aa{% endfilter %}",
       "[X]bb"},
      {"{% macro m(a, b='B', c=a) %}{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }}{{ "
       "m(1, 2, 3, 4, x=5) }}",
       "1B1(){}123(4,){'x': 5}"},
      {"{% macro m(x) %}[{{ caller(x) }}]{% endmacro %}{% call(y) m(3) %}<{{ y }}>{% endcall %}", "[<3>]"},
      {"{% macro f(n) %}{{ n if n < 2 else n * f(n - 1)|int }}{% endmacro %}{{ f(10) }}", "3628800"},
      {"{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}", "3"},
      {"{% generation %}{% set z = 1 %}{{ z }}{% endgeneration %}{{ z }}", "1"},
      {"{% set c = cycler(1, 2) %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{% set j = joiner('|') %}{{ j() "
       "}}a{{ j() }}b",
       "121a|b"},
  });
}

TEST(JinjaTemplate, FiltersAreThoseOfJinja) {
  ExpectAll({
      {"{{ ' a '|trim }}|{{ 'xax'|trim('x') }}|{{ 'hello world'|title }}|{{ 'aBC'|capitalize }}",
       "a|a|Hello World|Abc"},
      {"{{ ['b', 'A', 'c']|sort|join }} {{ [3, 1]|sort(reverse=true) }} {{ {'b': 1, 'A': 2}|dictsort }}",
       "Abc [3, 1] [('A', 2), ('b', 1)]"},
      {"{{ x|default('d') }}{{ ''|default('e', true) }}{{ none|d('f') }}", "deNone"},
      {"{{ [{'n': 1}, {'n': 2}]|selectattr('n', 'gt', 1)|map(attribute='n')|list }}", "[2]"},
      {"{{ ['a', '', 'b']|select|list }}{{ [1, 2, 3]|reject('odd')|list }}{{ [1, 1.0, 'A', 'a']|unique|list "
       "}}",
       "['a', 'b'][2][1, 'A']"},
      {"{{ [1, 2, 3]|sum }} {{ [1, 3, 2]|max }} {{ 2.5|round }} {{ 3.14159|round(2) }} {{ '42.7'|int }} {{ "
       "'x'|int(7) }}",
       "6 3 2.0 3.14 42 7"},
      {"{{ 'a\nb\n\nc'|indent(2) }}|{{ 'a\nb'|indent(2, true) }}", "a\n  b\n\n  c|  a\n  b"},
      {"{{ [1, 2, 3]|batch(2)|list }} {{ [1, 2, 3]|slice(2)|list }} {{ 'abc'|reverse }}{{ [1, "
       "2]|reverse|list }}",
       "[[1, 2], [3]] [[1, 2], [3]] cba[2, 1]"},
      {"{% for g in [{'r': 'a', 'v': 1}, {'r': 'b'}, {'r': 'a', 'v': 2}]|groupby('r') %}{{ g.grouper }}{{ "
       "g.list|length }}{% endfor %}",
       "a2b1"},
      {"{{ '<a>'|escape }} {{ ('<'|safe) + '<' }} {{ 'a b/c'|urlencode }} {{ 'a b c'|wordcount }}",
       "&lt;a&gt; <&lt; a%20b/c 3"},
      {"{{ {'a': [1, 2.0, none, true], 'b': 'é\"<'}|tojson }}",
       R"({"a": [1, 2.0, null, true], "b": "é\"<"})"},
      {"{{ {'b': [1], 'a': {}}|tojson(indent=2, sort_keys=true) }}",
       "{\n  \"a\": {},\n  \"b\": [\n    1\n  ]\n}"},
      {"{{ ['é😀']|tojson(ensure_ascii=true, separators=(',', ':')) }}", R"(["\u00e9\ud83d\ude00"])"},
  });
}

TEST(JinjaTemplate, MethodsAreThoseOfPython) {
  ExpectAll({
      {"{{ 'a,b,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', "
       "1)[-1] }}",
       "['a', 'b', 'c'] ['a', 'b'] ['a', 'b,c'] c"},
      {"{{ 'xxaxx'.strip('x') }}{{ '  b'.lstrip() }}{{ 'cx'.rstrip('x') }}", "abc"},
      {"{{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.endswith('b') }} {{ 'abcb'.find('b', 2) }} {{ "
       "'aa'.count('a') }}",
       "True False 3 2"},
      {"{{ 'äß'.upper() }} {{ 'ÄΣ'.lower() }} {{ 'hello wORLD'.title() }} {{ 'ab'.zfill(4) }}",
       "ÄSS äς Hello World 00ab"},
      {"{{ 'a-b'.partition('-') }} {{ 'pre-x'.removeprefix('pre-') }} {{ 'a\\r\\nb'.splitlines() }}",
       "('a', '-', 'b') x ['a', 'b']"},
      {"{{ {'a': 1}.get('b', 2) }} {{ {'a': 1}.keys()|list }} {{ [1, 2].index(2) }}", "2 ['a'] 1"},
  });
}

TEST(JinjaTemplate, TestsKnowKinds) {
  ExpectAll({
      {"{{ x is defined }} {{ x is undefined }} {{ none is none }} {{ 1 is number }} {{ true is integer }}",
       "False True True True False"},
      {"{{ 'a' is string }} {{ {} is mapping }} {{ [] is sequence }} {{ 'a' is iterable }} {{ 1 is iterable "
       "}}",
       "True True True True False"},
      {"{{ 4 is divisibleby 2 }} {{ 3 is odd }} {{ 1 is eq 1 }} {{ 'a' is in ['a'] }} {{ 1 is sameas true }}",
       "True True True True False"},
      {"{{ x }}|{{ x|list }}|{% for i in x %}{% endfor %}{{ x == y }}{{ x|length }}", "|[]|True0"},
  });
}

TEST(JinjaTemplate, MarksFollowEachByte) {
  const ordered_json content = {{"c", "A<|im_end|>b c"}, {"d", {{"key", "v"}}}, {"n", 5}, {"l", {"x", "y"}}};
  const auto marked = [&](const char* source) {
    return MarkedTextOf(source, content, {{"bos_token", "<s>"}});
  };
  EXPECT_EQ(marked("{{ bos_token }}u {{ c }}."), "<s>u «A<|im_end|>b c».");
  EXPECT_EQ(marked("{{ ('<' ~ c ~ '>')|upper }}"), "<«A<|IM_END|>B C»>");
  EXPECT_EQ(marked("{{ ('[' + c + ']')[1:3] }}{{ ('[' + c + ']')[:2] }}"), "«A<»[«A»");
  EXPECT_EQ(marked("{{ c.split('<|im_end|>')|join('<|im_end|>') }}"), "«A»<|im_end|>«b c»");
  EXPECT_EQ(marked("{{ 'a-b'|replace('-', c) }}{{ c|replace('A', '-') }}"),
            "a«A<|im_end|>b c»b-«<|im_end|>b c»");
  EXPECT_EQ(marked("{{ d|tojson }}{{ d }}"), "{\"«key»\": \"«v»\"}{'«key»': '«v»'}");
  EXPECT_EQ(marked("{{ n }}{{ c == 'A<|im_end|>b c' }}{{ l|join(',') }}"), "5True«x»,«y»");
  EXPECT_EQ(marked("{{ '%s|%5s' % (l[0], l[1]) }}{{ '{}-{:>3}'.format(*l) }}"), "«x»|    «yx»-  «y»");
  EXPECT_EQ(marked("{% set x %}<{{ l[0] }}>{% endset %}{{ x|trim('<') }}{{ x.center(5, '*') }}"),
            "«x»>*<«x»>*");
  EXPECT_EQ(marked("{% macro m(a) %}({{ a }}){% endmacro %}{{ m(l[0])|indent(1, true) }}"), " («x»)");
  EXPECT_EQ(marked("{{ 'x'.join(l) }}{{ l|map('upper')|list }}{{ c.format() }}"),
            "«x»x«y»['«X»', '«Y»']«A<|im_end|>b c»");
  EXPECT_EQ(marked("{% for k in d %}{{ k }}{% endfor %}{{ dict(d)|dictsort }}{{ '%c' % 60 }}"),
            "«key»[('«key»', '«v»')]«<»");
}

TEST(JinjaTemplate, ErrorsSayTheLine) {
  const auto says = [](const char* source, const char* part) {
    const std::string message = ErrorOf(source, {{"l", {1}}, {"m", "text"}});
    EXPECT_NE(message.find(part), std::string::npos) << source << ": " << message;
  };
  says("a\n{{ raise_exception('no ' ~ m) }}", "line 2: the template refuses this: no text");
  says("\n\n{{ x.y }}", "line 3: 'x' is undefined");
  says("{{ 'a' +\n1 }}", "line 1");
  says("\n{{ 'a' + 1 }}", "line 2: there is no str + int");
  says("{{ l.append(1) }}", "'append' changes a list, which the sandbox refuses");
  says("{{ none|length }}", "a NoneType has no length");
  says("{{ 'a' in none }}", "a NoneType has no elements");
  says("{{ l|map('upper')|tojson }}", "a generator has no JSON");
  says("{{ 9223372036854775807 + 1 }}", "64 bits");
  says("{% if true %}\n\n{{ 1 }", "line 3");
  says("{% if true %}\n", "ends within a tag or before its end tag");
  says("{% for %}", "unexpected '%}'");
  says("{{ 'a }}", "line 1");
  says("{# a", "a comment has no end");
  says("{% endif %}", "no tag named 'endif'");
  says("{% if false %}{{ 1|nothing }}{% endif %}{% if true %}{{ 1|nothing }}{% endif %}",
       "there is no filter named 'nothing'");
  EXPECT_EQ(CodeOf("{{ 1|nothing }}"), StatusCode::kUnsupported);
  EXPECT_EQ(CodeOf("{% include 'a' %}"), StatusCode::kUnsupported);
  EXPECT_EQ(CodeOf("{% import 'a' as b %}"), StatusCode::kUnsupported);
  EXPECT_EQ(CodeOf("{% break %}"), StatusCode::kInvalidArgument);
}

TEST(JinjaTemplate, TellsWhatItReadsAndWrites) {
  const Result<JinjaTemplate> read =
      JinjaTemplate::Parse("<|a|>{% if tools %}{{ 'b' 'c' }}{% endif %}{% set x = 1 %}");
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->form_texts(), (std::vector<std::string>{"<|a|>", "bc"}));
  EXPECT_TRUE(read->reads("tools"));
  EXPECT_FALSE(read->reads("x"));
  EXPECT_FALSE(read->reads("messages"));
}

TEST(JinjaTemplate, TellsTheTime) {
  const Result<JinjaTemplate> read =
      JinjaTemplate::Parse("{{ strftime_now('%Y-%m-%d %A %-d %B %j %I%p %y%%') }}");
  ASSERT_TRUE(read.ok());
  std::tm noon{};
  noon.tm_year = 126;
  noon.tm_mon = 2;
  noon.tm_mday = 7;
  noon.tm_hour = 12;
  const Result<JinjaText> text = read->Render({{}, {}, std::mktime(&noon)});
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_EQ(JoinPieces(*text), "2026-03-07 Saturday 7 March 066 12PM 26%");
}

}  // namespace
}  // namespace kvrun
