"""Renders templates with Jinja2 itself, set up as Hugging Face sets it up for chat templates.

Standard input: a line of JSON for each, {"source": ..., "variables": {...}}. Standard output: a line each,
{"text": ...} or {"error": ...}.
"""
import json
import signal
import sys

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise ValueError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def too_long(signum, frame):
    raise TimeoutError("too long")


def main():
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    signal.signal(signal.SIGALRM, too_long)
    sys.set_int_max_str_digits(0)
    for line in sys.stdin:
        case = json.loads(line)
        try:
            signal.setitimer(signal.ITIMER_REAL, 2.0)
            text = environment.from_string(case["source"]).render(case["variables"])
            text.encode("utf-8")
            result = {"text": text}
        except BaseException as error:  # what a template does wrong may be of any kind
            result = {"error": f"{type(error).__name__}: {error}"[:300]}
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(result))


main()
