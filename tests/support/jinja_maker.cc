#include "tests/support/jinja_maker.h"

namespace kvrun::testing {
namespace {

constexpr const char* kTextVariables[] = {"s",     "t",   "e",   "u",          "q",
                                          "lines", "num", "d.a", "lm[0].role", "m.content"};
constexpr const char* kNumberVariables[] = {"n",   "z",       "neg",  "f",          "b",
                                            "big", "lm[1].n", "l[0]", "loop.index", "loop.index0"};
constexpr const char* kListVariables[] = {"l",     "ls",    "lm",    "d",       "dd",
                                          "mixed", "empty", "pairs", "dd.list", "s"};
constexpr const char* kOtherVariables[] = {"nul",
                                           "missing",
                                           "lm[0]",
                                           "m",
                                           "x",
                                           "y",
                                           "ns.a",
                                           "ns",
                                           "i",
                                           "loop",
                                           "d.missing",
                                           "loop.first",
                                           "loop.last",
                                           "loop.length",
                                           "loop.previtem",
                                           "loop.nextitem",
                                           "loop.revindex",
                                           "m.role",
                                           "i.role",
                                           "d.items",
                                           "dd['k']",
                                           "caller",
                                           "kwargs"};

constexpr const char* kTextLiterals[] = {"'a'",     "'b, c'", "' x '", "\"it's\"",   "'<b>&'", "'%s-%s'",
                                         "'{}|{}'", "'l'",    "' '",   "'\\n'",      "''",     "'ß'",
                                         "'A-b c'", "'role'", "'n'",   "'é\\u00e9'", "','",    "'o'"};
constexpr const char* kTextForms[] = {
    "$|trim",
    "$|upper",
    "$|lower",
    "$|title",
    "$|capitalize",
    "$|replace($, $)",
    "$|replace($, $, #)",
    "^|join($)",
    "@|tojson",
    "@|tojson(indent=2)",
    "@|string",
    "$|indent(3)",
    "$|indent(2, true)",
    "$|indent(1, blank=true)",
    "$ + $",
    "$ ~ @",
    "@ ~ @",
    "$ * 3",
    "$[#]",
    "$[1:]",
    "$[:-1]",
    "$[#:#]",
    "$[::-1]",
    "$[::2]",
    "$.strip()",
    "$.lstrip($)",
    "$.rstrip($)",
    "$.split($)[0]",
    "$.split($)[-1]",
    "$.split()|join('|')",
    "$.split($, 1)|join('|')",
    "$.upper()",
    "$.lower()",
    "$.title()",
    "$.capitalize()",
    "$.replace($, $)",
    "$.join(^)",
    "$.removeprefix($)",
    "$.removesuffix($)",
    "$.center(9)",
    "$.ljust(7, '*')",
    "$.rjust(#)",
    "$.zfill(6)",
    "$.partition($)|string",
    "$.splitlines()|string",
    "'%s=%s' % (@, @)",
    "'%5.2f|%d' % (#, #)",
    "'%-6s|' % $",
    "'{}:{}'.format(@, @)",
    "'{0}{1}{0}'.format($, #)",
    "'{:>8}|'.format($)",
    "'{:05d}|'.format(#)",
    "'{:.2f}'.format(#)",
    "'{a}'.format(a=@)",
    "$|escape",
    "$|safe",
    "($|safe) + $",
    "$|e|upper",
    "$|reverse",
    "$|urlencode",
    "$|center(11)",
    "$|format(@, @)",
    "$|truncate(6)",
    "^|list|string",
    "@|default($)",
    "@|d($, true)",
    "$|first",
    "$|last",
    "$.swapcase()",
    "$.rsplit($, 1)|string",
    "$.rsplit()|string",
    "^|map('string')|join('/')",
    "$|trim($)",
    "'%x %o %e %g' % (#, #, #, #)",
    "'{!r:>10}'.format(@)",
    "'{:,}'.format(#)",
    "mac(@)",
    "mac(@, y=@)",
    "mac(@, @, @)",
    "^|dictsort|string",
    "lm|map(attribute='role')|join(',')",
    "'%r' % (@,)",
    "lm|map(attribute='missing', default='none')|join",
    "lm|groupby('role')|string",
    "$.casefold()",
    "range(#)|join(',')",
    "dict(a=@, b=@)|string",
    "dict(pairs)|tojson",
    "{'k': @, 'j': @}|tojson",
    "d|tojson(sort_keys=true)",
    "'%c' % 65",
    "mixed|tojson(separators=(',', ':'))",
    "u|tojson(ensure_ascii=true)",
    "ls|sort|join",
    "ls|sort(reverse=true)|join",
    "ls|unique|join",
    "lm|sort(attribute='n')|map(attribute='n')|join(' ')",
    "$ if @ else $",
    "$|wordcount|string",
    "lm|selectattr('n', 'gt', #)|list|string",
    "lm|rejectattr('role', 'equalto', $)|list|length|string",
    "^|batch(2)|list|string",
    "^|slice(2)|list|string",
    "^|batch(3, 'x')|list|string",
    "joiner($)()",
    "(s, n)|string",
};
constexpr const char* kNumberForms[] = {
    "# + #",
    "# - #",
    "# * #",
    "# / #",
    "# // #",
    "# % #",
    "# ** 2",
    "-#",
    "^|length",
    "^|count",
    "$|length",
    "#|abs",
    "#|int",
    "#|float",
    "#|round",
    "#|round(1)",
    "#|round(2, 'floor')",
    "#|round(0, 'ceil')",
    "$|int",
    "$|int(7)",
    "$|float",
    "l|sum",
    "l|min",
    "l|max",
    "lm|sum(attribute='n')",
    "$.find($)",
    "$.count($)",
    "$.index($)",
    "$.rfind($)",
    "^|first",
    "^|last",
    "lm|map(attribute='n')|sum",
    "-#|abs",
    "+#",
    "l.index(#)",
    "ls.count($)",
    "(l|length) - 1",
    "l[#]",
    "$|wordcount",
    "'0x1f'|int(base=16)",
    "# if @ else #",
    "(@, #)|max",
    "l|select('odd')|list|length",
    "#|int * #",
    "loop.index // 2",
    "lm|length - loop.index0",
};
constexpr const char* kListForms[] = {
    "[@, @]",
    "(@, @)",
    "[]",
    "{'a': @, $: @}",
    "^ + ^",
    "^|list",
    "^|reverse",
    "^|sort",
    "^[1:]",
    "^[:#]",
    "^[::-1]",
    "range(#)",
    "range(1, 5)",
    "range(#, #, 2)",
    "d.items()",
    "dd.items()",
    "d|items",
    "d.keys()",
    "d.values()",
    "d|dictsort",
    "d|dictsort(by='value')",
    "^|select",
    "^|reject('none')",
    "^|select('string')",
    "^|map('upper')",
    "^|map('string')",
    "lm|selectattr('role')",
    "lm|selectattr('role', 'equalto', 'user')",
    "lm|rejectattr('n')",
    "^|unique",
    "$.split($)",
    "$.split()",
    "$|list",
    "lm|map(attribute='role')",
    "lm|groupby('n')",
    "^|batch(2)",
    "^ * 2",
    "^|select('in', ^)",
    "(@,)",
    "^ if @ else ^",
    "lm|sort(attribute='role')",
    "pairs|map('first')",
    "pairs|map('last')|list",
    "pairs|map(attribute=0)|list",
    "lm|map('items')|map('list')|list",
    "^|map('default', 'D', true)|list",
    "^|map('length')|list",
    "dd.get('list', [])",
};
constexpr const char* kExpressionForms[] = {
    "@ == @",
    "@ != @",
    "# < #",
    "# <= # < #",
    "$ > $",
    "@ >= @",
    "$ in $",
    "@ in ^",
    "@ not in ^",
    "@ and @",
    "@ or @",
    "not @",
    "@ is defined",
    "@ is undefined",
    "@ is none",
    "@ is not none",
    "@ is string",
    "@ is mapping",
    "@ is sequence",
    "@ is iterable",
    "@ is number",
    "@ is integer",
    "@ is float",
    "@ is boolean",
    "@ is true",
    "@ is false",
    "# is odd",
    "# is even",
    "# is divisibleby 3",
    "# is divisibleby(#)",
    "@ is eq @",
    "@ is ne(@)",
    "# is lt #",
    "@ is in ^",
    "$ is lower",
    "$ is upper",
    "@ is callable",
    "@ is sameas @",
    "@ if @",
    "@ if @ else @",
    "$.startswith($)",
    "$.endswith(($, $))",
    "$.isdigit()",
    "$.isalpha()",
    "$.isspace()",
    "$.isupper()",
    "$.islower()",
    "$.isalnum()",
    "d.get($)",
    "d.get($, @)",
    "d[$]",
    "lm[#]",
    "lm[#].role",
    "lm[#]['n']",
    "^[#]",
    "@.a",
    "@['k']",
    "@|default(@)",
    "@|default(@, true)",
    "^|first",
    "^|last",
    "^|min",
    "^|max",
    "ns.a",
    "dd.k.deep",
    "dd['k']['deep'][0]",
    "(@)",
    "@|length",
    "@|list",
    "@|string",
    "@|int",
    "@ + @",
    "@ - @",
    "@ * @",
    "@ ~ @",
    "@ % @",
    "@|join",
    "@|upper",
    "@[0]",

    "@|tojson",
    "@|first",
    "loop.cycle(@, @)",
    "loop.changed(@)",
    "$ is filter",
    "'defined' is test",
    "@.role",
    "@.items()",
    "@|items|list",
    "$.istitle()",
    "@|reverse|list",
    "@|abs",
    "@|round",
    "@|sum",
    "@ is not string and @",
    "-@",
    "lm.append(@)",
    "d.pop($)",
    "s.nothing",
};
constexpr const char* kStatementForms[] = {
    "{{ @ }}",
    "{{- @ -}}",
    "{{ $ }}",
    "{{ $ }}\n",
    "{% set x = @ %}",
    "{%- set x = @ -%}",
    "{% set y = x %}{{ y }}",
    "{% set ns.a = @ %}",
    "{% if @ %}%{% endif %}",
    "{% if @ %}%{% else %}%{% endif %}\n",
    "{%- if @ %}\n  %{%- elif @ -%}\n%{% endif -%}\n",
    "{% for i in ^ %}%{{ loop.index }}{% endfor %}",
    "{%- for m in lm -%}%\n{% endfor %}",
    "{% for i in ^ if @ %}%{% else %}none{% endfor %}",
    "{% for i in ^ %}{% if @ %}{% break %}{% endif %}%{% endfor %}",
    "{% for i in ^ %}{% if @ %}{% continue %}{% endif %}%{% endfor %}",
    "{% for a, c in pairs %}{{ a }}{{ c }}%{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d|dictsort %}{{ k }}%{% endfor %}",
    "{% set x, y = @, @ %}",
    "{% set x %}%{% endset %}{{ x }}",
    "{% set x | upper %}%{% endset %}",
    "{% filter upper %}%{% endfilter %}",
    "{% filter replace('a', 'o')|trim %}%{% endfilter %}",
    "{% macro mac(x, y=@) %}%{{ x }}|{{ y }}{% endmacro %}",
    "{% macro mac(x) %}{{ varargs }}{{ kwargs }}%{% endmacro %}",
    "{% call mac(@) %}%{% endcall %}",
    "{% macro mac(x) %}[{{ caller() if caller else x }}]{% endmacro %}",
    "{% with x = @ %}%{{ x }}{% endwith %}",
    "{% generation %}%{% endgeneration %}",
    "{# a comment #}\n",
    "{%- raw %} {{ x }} {% endraw -%}",
    "{% raw %}{% if %}{% endraw %}",
    "text\n",
    "  \n",
    "<|im_start|>",
    " {%+ if @ %} x {% endif %}\n",
    "\n   {% if @ +%}\n y {% endif %}",
    "{{ mac(@) }}",
    "{% set ns = namespace(a=@) %}%{{ ns.a }}",
    "{% for i in range(#) %}{% set x = i %}{{ x }}{% endfor %}{{ x }}",
    "{% for i in ^ %}{{ loop.first }}{{ loop.last }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.revindex0 "
    "}}{% endfor %}",
    "{% for i in ^ recursive %}{{ i }}{% if @ %}{{ loop(dd.list) if loop.depth < 3 }}{% endif %}{% endfor %}",
    "{% print @, $ %}",
    "{% set c = cycler(1, 'b') %}{{ c.next() }}{{ c.current }}{{ c.next() }}",
    "   {{- $ }}  ",
    "{% if @ -%}  x  {%- endif %}  ",
    "{% for x in [1, 2] %}{% for i in ^ %}{{ loop.index }}{% set x = @ %}{{ x }}{% endfor %}{{ x }}{% endfor "
    "%}",
};

}  // namespace

const char* JinjaMakerVariables() {
  return R"({"s": "Hello World", "t": "  spaced\ttext \n", "e": "", "u": "Größe ΩΣ Привет 日本語 é ß",
    "q": "it's \"q\" <b> & \\ \u0001",
    "lines": "one\ntwo\r\n\n three\n", "num": " 42 ", "n": 7, "z": 0, "neg": -3,
    "f": 2.5, "b": true, "big": 123456789012, "nul": null, "l": [3, 1, 2, 1], "ls": ["b", "A", "c", "", "a"],
    "lm": [{"role": "user", "content": "hi", "n": 2},
           {"role": "assistant", "content": " <think>x</think> y", "n": 1},
           {"role": "user", "content": "", "n": 3.5}],
    "d": {"b": 1, "a": "x", "C": null, "items": 5},
    "dd": {"k": {"deep": [1, {"z": 2}]}, "list": [[1, 2], ["a"]]},
    "mixed": [1, "a", null, true, 2.5, [1], {"k": "v"}],
    "empty": [], "pairs": [["a", 1], ["b", 2]]})";
}

std::string JinjaMaker::Filled(const char* form, int depth) {
  std::string text;
  for (const char* c = form; *c != '\0'; ++c) {
    const bool is_block =
        *c == '%' && c != form && c[-1] != '{' && c[1] != '}' && form[0] == '{' && c[-1] == '}';
    switch (*c) {
      case '@': text += Expression(depth - 1); break;
      case '#': text += form[0] == '{' && c[-1] == '{' ? "#" : c[1] == '}' ? "#" : Number(depth - 1); break;
      case '$': text += Text(depth - 1); break;
      case '^': text += List(depth - 1); break;
      case '%':
        if (is_block || (c[-1] == '\n' && form[0] == '{')) {
          text += Statements(depth - 1);
          break;
        }
        [[fallthrough]];
      default: text += *c;
    }
  }
  return text;
}

std::string JinjaMaker::Text(int depth) {
  if (depth <= 0 || Below(4) == 0) return Below(2) == 0 ? One(kTextVariables) : One(kTextLiterals);
  return "(" + Filled(One(kTextForms), depth) + ")";
}

std::string JinjaMaker::Number(int depth) {
  if (depth <= 0 || Below(3) == 0) return Below(2) == 0 ? One(kNumberVariables) : std::to_string(Below(6));
  return "(" + Filled(One(kNumberForms), depth) + ")";
}

std::string JinjaMaker::List(int depth) {
  if (depth <= 0 || Below(3) == 0) return One(kListVariables);
  return "(" + Filled(One(kListForms), depth) + ")";
}

std::string JinjaMaker::Expression(int depth) {
  switch (Below(depth <= 0 ? 4 : 8)) {
    case 0: return Text(depth);
    case 1: return Number(depth);
    case 2: return List(depth);
    case 3: return One(kOtherVariables);
    default: return "(" + Filled(One(kExpressionForms), depth) + ")";
  }
}

std::string JinjaMaker::Statement(int depth) {
  if (depth <= 0) return Below(2) == 0 ? "{{ " + Expression(1) + " }}" : " text\n";
  return Filled(One(kStatementForms), depth);
}

std::string JinjaMaker::Statements(int depth) {
  std::string text;
  for (size_t n = 1 + Below(2); n > 0; --n) text += Statement(depth);
  return text;
}

std::string JinjaMaker::Template() {
  std::string text = "{% set ns = namespace(a=1) %}{% macro mac(x, y=2) %}<{{ x }}{{ y }}>{% endmacro %}\n";
  for (size_t n = 1 + Below(4); n > 0; --n) text += Statement(3);
  return text;
}

}  // namespace kvrun::testing
