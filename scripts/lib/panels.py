"""What scripts/draw-depth and scripts/draw-quality share: reading their data, and panels in an SVG."""
import json
import math
import sys
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH = 760
PANEL_WIDTH = 285
PANEL_LEFT = (70, 440)
MIB = 1024 * 1024
INK, FAINT, FULL = "#24292f", "#d0d7de", "#57606a"
MEMORY_CAPTION = "memory for the KV cache, MiB"


def fail(words):
    sys.exit(f"{Path(sys.argv[0]).name}: {words}")


def load_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    except ValueError as error:
        fail(f"{path} is not JSON: {error}")


def load(path):
    """The objects of the JSON array in a file, without configurations that failed."""
    results = load_json(path)
    if not isinstance(results, list) or not all(isinstance(r, dict) for r in results):
        fail(f"{path} is not an array of results")
    ok = [r for r in results if "error" not in r]
    if not ok:
        fail("no configuration has a result")
    return ok


def save(path, height, body):
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join([
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
                f'viewBox="0 0 {WIDTH} {height}" '
                'font-family="sans-serif" font-size="12">',
                f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>', *body, "</svg>", ""]))
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror}")


def ticks(least, most, steps=5):
    """Round numbers, so many or fewer steps apart."""
    step = 10 ** math.floor(math.log10((most - least) / 4))
    step = next(step * f for f in (1, 2, 5, 10) if (most - least) / (step * f) <= steps)
    return [i * step for i in range(math.ceil(least / step), math.floor(most / step + 1e-9) + 1)]


def powers_of_two(least, most):
    found = [2.0**power for power in range(math.ceil(math.log2(least)), math.floor(math.log2(most)) + 1)]
    return found if len(found) > 1 else ticks(least, most)


def decimal_ticks(least, most):
    """Round numbers for a logarithmic axis, seven at most."""
    powers = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    choices = [(1, (1, 2, 5)), (1, (1, 3))] + [(step, (1,)) for step in range(1, len(powers) + 1)]
    for step, factors in choices:
        found = [f * 10.0**power for power in powers if power % step == 0 for f in factors]
        found = [value for value in found if least <= value <= most]
        if len(found) <= 7:
            break
    return found if len(found) > 1 else ticks(least, most)


class Axis:
    """Values from `least` to `most`, spread by `scale`, with labels at `marks`."""

    def __init__(self, least, most, unit, scale, marks):
        self.least, self.most, self.unit, self.scale = least, most, unit, scale
        self.marks = marks(least, most)

    def share(self, value):
        first, last = self.scale(self.least), self.scale(self.most)
        return (self.scale(value) - first) / (last - first)

    def label(self, value):
        return f"{value:,g}{self.unit}"


def linear(least, most, unit="", marks=ticks):
    return Axis(least, most, unit, float, marks)


def logarithmic(values, marks):
    """Around `values`, with some room."""
    return Axis(min(values) / 1.25, max(values) * 1.25, "", math.log2, marks)


class Panel:
    def __init__(self, left, top, height, title, caption, x_axis, y_axis, width=PANEL_WIDTH):
        self.left, self.top, self.height, self.title, self.caption = left, top, height, title, caption
        self.x_axis, self.y_axis, self.width = x_axis, y_axis, width
        self.right, self.bottom = left + width, top + height

    def x(self, value):
        return self.left + self.width * self.x_axis.share(value)

    def y(self, value):
        return self.top + self.height * (1 - self.y_axis.share(value))

    def frame(self):
        """All but the data."""
        out = [text(self.left, self.top - 14, self.title, weight="bold")]
        for value in self.y_axis.marks:
            out.append(line(self.left, self.y(value), self.right, self.y(value), FAINT))
            out.append(text(self.left - 8, self.y(value) + 4, self.y_axis.label(value), anchor="end"))
        for value in self.x_axis.marks:
            out.append(line(self.x(value), self.bottom, self.x(value), self.bottom + 5, INK))
            out.append(text(self.x(value), self.bottom + 19, self.x_axis.label(value), anchor="middle"))
        out.append(line(self.left, self.bottom, self.right, self.bottom, INK))
        out.append(text(self.left + self.width / 2, self.bottom + 38, self.caption, anchor="middle"))
        return out

    def curve(self, data, colour):
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in data)
        return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'


def line(x1, y1, x2, y2, colour):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def circle(x, y, colour):
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'


def text(x, y, words, anchor="start", weight="normal", colour=INK):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" fill="{colour}">'
            f"{escape(words)}</text>")
