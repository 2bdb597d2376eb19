#!/usr/bin/env python3
"""The page of kvrun serve in headless Chromium. README.md beside this file says how to run it."""

import argparse
import pathlib
import re
import sys
import tempfile
import time
import traceback
import urllib.parse

import fake_server
import looks
from devtools import Browser, Failure, Page

DOCUMENT = "\n\n".join(
    f"Chapter {i}. The keeper of the lighthouse at Skerry Point wrote of day {i}: wind from the west, and the lamp lit "
    f"at {i % 12 + 1} o'clock. Nobody came by the road, and the boat brought oil, bread and a letter."
    for i in range(1, 81)
)
DONE = "document.querySelector('#stop').hidden"


def check(is_so, what):
    if not is_so:
        raise Failure(what)


def same(got, wanted, what):
    check(got == wanted, f"{what}: {got!r} instead of {wanted!r}")


class Test:
    def __init__(self, browser, options, folder):
        self.browser = browser
        self.options = options
        self.is_fake = not options.url
        self.folder = folder
        self.document = options.document or folder / "skerry.txt"
        if not options.document:
            self.document.write_text(DOCUMENT)
        self.server = None
        self.page = None
        self.allowed = []  # what the console may say, as regular expressions

    def open(self, width=1280, height=800, is_dark=False, **server):
        if self.is_fake:
            self.server = fake_server.Server(**server).start()
        self.url = self.options.url or self.server.url
        self.page = Page(self.browser, self.url, width, height, is_dark, self.options.timeout_s)
        self.page.wait("document.querySelector('#memory h2')")
        if self.options.url and self.options.api_key and not server.get("api_key"):
            self.page.wait("!document.querySelector('#key-form').hidden")
            self.page.click("#key")
            self.page.type(self.options.api_key)
            self.page.press("Enter")
        return self.page

    def ask(self, question, is_awaited=True):
        self.page.click("#question")
        self.page.type(question)
        self.page.press("Enter")
        if is_awaited:
            self.page.wait(f"document.querySelectorAll('.asked').length && {DONE}")

    def screenshot(self, name):
        if self.options.screenshots:
            self.page.screenshot(self.options.screenshots / f"{name}.png")

    def end(self):
        """What must hold whatever was done."""
        page = self.page
        hosts = {urllib.parse.urlsplit(url).netloc for url in page.requests}
        same(hosts, {urllib.parse.urlsplit(self.url).netloc}, "hosts that the page asked")
        key = self.options.api_key and r"401 \(Unauthorized\)"
        said = [
            line
            for line in page.console
            if not any(re.search(one, line) for one in [*self.allowed, key] if one)
        ]
        same(said, [], "the console")
        same(page.js("document.documentElement.scrollWidth <= innerWidth"), True, "no horizontal scrolling")

    def close(self):
        if self.page:
            self.page.close()
        if self.server:
            self.server.shutdown()
            self.server.server_close()


def reads_a_document_and_answers_twice(test):
    page = test.open(step_s=0.06, read_step_s=0.15)
    page.wait("document.querySelector('#empty').checkVisibility()")
    test.screenshot("empty")
    page.drop(test.document)
    page.wait(f"document.querySelector('#documents').innerText.includes('{test.document.name}')")
    test.ask("When was it lit, and who was the first keeper?", False)
    page.wait("document.querySelector('.bar[aria-valuenow]')?.checkVisibility()")
    first = page.wait(
        "document.querySelector('.reading .words').innerText.match(/^Read ([\\d,]+) of [\\d,]+ tokens/)?.[1]"
    )
    if test.is_fake:
        page.wait(
            f"document.querySelector('.reading .words').innerText.includes('left') && "
            f"!document.querySelector('.reading .words').innerText.startsWith('Read {first} ')"
        )
        check(page.js("+document.querySelector('.bar').ariaValueNow") > 0, "the bar shows progress")
        test.screenshot("reading")
        page.wait("document.querySelector('summary')?.innerText === 'Thinking…'")
        page.wait("document.querySelector('.answer.coming > .text > p')?.innerText.length > 60")
        test.screenshot("answering")
    page.wait(DONE)
    page.wait("document.querySelector('.usage').innerText.match(/prompt tokens, [\\d,]+ cached/)")
    test.ask("And after her?")
    same(page.js("document.querySelectorAll('.answer').length"), 2, "answers")
    answers = page.js("[...document.querySelectorAll('.answer > .text')].map((one) => one.innerText)")
    check(all(answers), f"both answers have text: {answers}")
    cached = int(
        page.js(
            "[...document.querySelectorAll('.usage')].at(-1).innerText.match(/([\\d,]+) cached/)[1]"
        ).replace(",", "")
    )
    check(cached > 1000 or not test.is_fake and cached > 0, f"the second prompt was known: {cached} tokens")
    if test.is_fake:
        same(answers, [fake_server.FIRST, fake_server.SECOND], "answers")
        same(page.js("document.querySelector('.answer b')"), None, "markup from an answer")
        same(
            test.server.bodies[0]["messages"],
            [{"role": "user", "content": DOCUMENT + "\n\nWhen was it lit, and who was the first keeper?"}],
            "the request",
        )
        same(
            test.server.bodies[1]["messages"][1:],
            [
                {"role": "assistant", "content": fake_server.FIRST},
                {"role": "user", "content": "And after her?"},
            ],
            "what follows",
        )
        same(page.js("document.querySelector('.reasoning').open"), False, "reasoning is folded")
        page.click("summary")
        check(fake_server.REASONING[:60] in page.text(".reasoning .text"), "reasoning can be read")
        said = page.js("document.querySelector('#announcer').textContent")
        check("Ada Thorne" in said and "complete" in said, f"screen readers are told the answer: {said}")
        test.screenshot("answered")
    check_figures(test)
    check_kept(test, answers)


def check_figures(test):
    page = test.page
    page.wait("document.querySelectorAll('.budget span').length > 0")
    check(re.search(r"[\d.]+ [KMG]iB( of [\d.]+ [KMG]iB)? in use", page.text(".total")), page.text(".total"))
    widths = page.js(
        "[...document.querySelectorAll('.budget span')].reduce((sum, one) => sum + one.offsetWidth, 0)"
        " / document.querySelector('.budget').offsetWidth"
    )
    check(0 < widths <= 1.02, f"the parts are within the bar: {widths}")
    legend = page.text(".legend")
    check("the whole process" in legend and legend.count("iB") >= 2, legend)
    check("iB" in page.text("dl"), "bytes read and written")
    if test.is_fake:
        same(page.js("document.querySelectorAll('.legend li').length"), 6, "rows of the legend")
        check(
            page.js(
                "[...document.querySelectorAll('.spark .line')].every((one) => one.getAttribute('d').length > 9)"
            ),
            "hits and stalls have a line",
        )
        check("7,639 tokens" in page.text("#memory .lines"), "parked conversations")
        check("3 conversations" in page.text("#memory"), "their number")


def check_kept(test, answers):
    """After the page was loaded again, the conversation is there."""
    page = test.page
    page.call("Page.reload")
    page.wait(
        "document.querySelectorAll('#list .open').length === 1 && document.querySelector('#empty').checkVisibility()"
    )
    page.click("#list .open")
    same(
        page.js("[...document.querySelectorAll('.answer > .text')].map((one) => one.innerText)"),
        answers,
        "answers after a reload",
    )
    same(page.text(".asked .chip .name"), test.document.name, "the document after a reload")


def stops_an_answer(test):
    page = test.open()
    test.ask("Tell me something long, in many words.", False)
    page.wait("document.querySelector('.answer > .text')?.innerText.length > 40")
    page.click("#stop")
    page.wait(DONE)
    kept = page.text(".answer > .text")
    check(len(kept) > 40, "what had come stays")
    same(page.text(".note"), "You stopped this answer.", "note")
    time.sleep(0.3)
    same(page.text(".answer > .text"), kept, "nothing comes after")
    if not test.is_fake:
        return
    page.wait(DONE)
    check_soon(lambda: test.server.n_gone == 1, "the server sees that the client has gone")
    test.server.read_step_s = 0.15
    page.drop(test.document)
    page.wait("document.querySelector('#documents li')")
    test.ask("And the keeper?", False)
    page.wait("document.querySelector('.bar[aria-valuenow]')?.checkVisibility()")
    page.click("#stop")
    page.wait(f"{DONE} && document.querySelector('#question').value === 'And the keeper?'")
    same(page.text("#documents .name"), test.document.name, "the document is back with its question")
    same(page.js("document.querySelectorAll('.asked').length"), 1, "questions")
    page.press("Enter")
    page.wait(f"document.querySelectorAll('.answer').length === 2 && {DONE}")
    same(test.server.bodies[-1]["messages"][1]["content"].strip(), kept, "the stopped answer as context")


def check_soon(condition, what):
    end_s = time.monotonic() + 5
    while not condition():
        check(time.monotonic() < end_s, what)
        time.sleep(0.05)


def asks_for_the_key(test):
    key = test.options.api_key or "secret 1"
    test.allowed = [r"401 \(Unauthorized\)"]
    page = test.open(api_key=key)
    page.wait("document.querySelector('#key-form').checkVisibility()")
    test.ask("Who was the keeper?", False)
    page.wait("document.activeElement.id === 'key'")
    page.type("not this")
    page.press("Enter")
    page.wait(
        "document.querySelector('#key-why').innerText.includes('did not accept') && document.activeElement.id === 'key'"
    )
    test.screenshot("key")
    page.type(key)
    page.press("Enter")
    page.wait(f"document.querySelector('.answer > .text')?.innerText && {DONE}")
    page.wait("document.querySelectorAll('.budget span').length > 0")
    same(page.js("document.querySelector('#key-form').hidden"), True, "the field is gone")
    check(key not in page.js("JSON.stringify({...localStorage})"), "the key is not kept beyond the session")
    page.call("Page.reload")
    page.wait("document.querySelectorAll('.budget span').length > 0")


FOCUSED = """(() => {
  const node = document.activeElement, style = getComputedStyle(node), box = node.getBoundingClientRect();
  const around = node.id === 'question' ? getComputedStyle(document.querySelector('#composer')).boxShadow : 'none';
  return {what: node.id || node.ariaLabel || node.className || node.localName,
          is_seen: (style.outlineStyle !== 'none' || around !== 'none') && box.width > 0 && box.right <= innerWidth};
})()"""


def tab_to(page, what, shift=False):
    passed = []
    for _ in range(40):
        page.press("Tab", shift)
        focused = page.js(FOCUSED)
        passed.append(focused["what"])
        check(focused["is_seen"] or focused["what"] == "body", f"the focus can be seen on {focused['what']}")
        if focused["what"] == what:
            return passed
    raise Failure(f"Tab does not lead to {what}: {passed}")


def works_by_keyboard(test):
    page = test.open()
    page.js("document.activeElement.blur()")
    passed = tab_to(page, "drop")
    same(passed, ["skip", "new", "log", "drop"], "the order of focus")
    page.press("Enter")
    page.choose(test.document)
    page.wait("document.querySelector('#documents li') && document.activeElement.id === 'question'")
    page.type("Who was")
    page.press("Enter", shift=True)
    page.type("the keeper?")
    same(page.js("document.querySelector('#question').value"), "Who was\nthe keeper?", "Shift and Enter")
    tab_to(page, "send")
    page.press("Space")
    page.wait("document.querySelector('#stop').checkVisibility() && document.activeElement.id === 'question'")
    page.wait(DONE)
    name = page.text("#list .name")
    tab_to(page, f"Rename {name}", shift=True)
    page.press("Enter")
    page.type("Skerry Point")
    page.press("Enter")
    page.wait("document.querySelector('#list .name')?.innerText === 'Skerry Point'")
    same(page.js("document.activeElement.ariaLabel"), "Rename Skerry Point", "focus after renaming")
    page.press("Enter")
    page.type("not so")
    page.press("Escape")
    page.wait("document.querySelector('#list .name')?.innerText === 'Skerry Point'")
    tab_to(page, "Delete Skerry Point")
    page.press("Enter")
    page.wait(
        "document.querySelectorAll('#list li').length === 0 && document.activeElement.innerText === 'Undo'"
    )
    page.press("Enter")
    page.wait(
        "document.querySelectorAll('#list li').length === 1 && document.querySelectorAll('.answer').length === 1"
    )
    tab_to(page, "new", shift=True)
    page.press("Enter")
    page.wait(
        "document.querySelector('#empty').checkVisibility() && document.activeElement.id === 'question'"
    )
    tab_to(page, "open", shift=True)
    page.press("Enter")
    page.wait("document.querySelectorAll('.answer').length === 1 && document.querySelector('[aria-current]')")


def shows_errors(test):
    test.allowed = ["503", "ERR_", "404"]
    page = test.open()
    test.ask("Are you busy?", False)
    page.wait("document.querySelector('#notice').innerText.match(/limit.*Try again in [123] s/s)")
    same(page.js("document.querySelector('#question').value"), "Are you busy?", "the question stays")
    same(page.js("document.querySelectorAll('#list li').length"), 0, "conversations without an answer")
    test.screenshot("busy")
    page.press("Enter")
    page.wait(f"document.querySelectorAll('.answer').length === 1 && {DONE}")
    same(page.js("document.querySelector('#notice').hidden"), True, "the notice goes")
    test.ask("Is it long before you are lost?")
    check("What had come is kept" in page.text(".note"), page.text(".note"))
    same(
        page.js("[...document.querySelectorAll('.answer > .text')].at(-1).innerText"),
        "Word 0 of a long",
        "what came",
    )
    test.ask("What of a long one goes wrong?")
    check("the flash disk is full" in page.text(".answer:last-child .note"), page.text(".note"))
    test.ask("Show me code.")
    same(
        page.text(".answer:last-child pre"),
        fake_server.CODE.split("```")[1].removeprefix("python\n").rstrip("\n"),
        "code",
    )
    test.server.has_status = False
    page.wait("document.querySelector('.trouble').checkVisibility()")
    check("No figures now" in page.text(".trouble"), page.text(".trouble"))
    test.screenshot("no figures")
    test.ask("And who was the keeper?")
    check("Ada Thorne" in page.text(".answer:last-child"), "the conversation goes on without figures")
    picture = test.folder / "picture.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\xff\xfe")
    page.drop(picture)
    page.wait("document.querySelector('#notice').innerText.includes('picture.png is not text')")
    test.server.is_down = True
    test.ask("Is anybody there?", False)
    page.wait("document.querySelector('#notice').innerText.includes('cannot be reached')")
    same(page.js("document.querySelector('#question').value"), "Is anybody there?", "the question stays")


def keeps_what_fits(test):
    page = test.open()
    large = test.folder / "large.txt"
    large.write_text("A line of a large document.\n" * 250000)
    page.drop(large)
    page.wait("document.querySelector('#documents li')")
    test.ask("Who was the keeper?")
    check("no room for the document" in page.text("#notice"), page.text("#notice"))
    page.call("Page.reload")
    page.click("#list .open")
    page.wait("document.querySelector('.chip.missing')")
    test.ask("And after her?", False)
    page.wait("document.querySelector('#notice').innerText.includes('Choose large.txt again')")
    for file, is_it in ((test.document, False), (large, True)):
        page.click(".chip.missing button")
        page.choose(file)
        page.wait(
            "document.querySelector('#notice').innerText.includes('is not the text')"
            if not is_it
            else "!document.querySelector('.chip.missing')"
        )
    page.click("#send")
    page.wait(f"document.querySelectorAll('.answer').length === 2 && {DONE}")
    same(
        len(test.server.bodies[-1]["messages"][0]["content"]),
        28 * 250000 + len("\n\nWho was the keeper?"),
        "the document, given again",
    )


def looks_right(test, width, is_dark):
    name = f"{width} {'dark' if is_dark else 'light'}"
    page = test.open(width, 740 if width < 500 else 800, is_dark)
    looks.check(page, f"{name}, empty")
    test.screenshot(f"{name} empty")
    if width < 500:  # a screen's keyboard: Enter is a new line, and files are not dropped
        page.click("#choose")
        page.choose(test.document)
    else:
        page.drop(test.document)
    page.wait("document.querySelector('#documents li')")
    looks.check(page, f"{name}, a document")
    for i, question in enumerate(("Who was the first keeper?", "And can you show it as code?")):
        page.click("#question")
        page.type(question)
        page.click("#send")
        page.wait(f"document.querySelectorAll('.answer').length === {i + 1} && {DONE}")
    looks.check(page, f"{name}, answered")
    test.screenshot(f"{name} answered")
    for side in ("conversations", "memory"):
        button = f"#show-{side}"
        if not page.js(f"document.querySelector('{button}').checkVisibility()"):
            continue
        page.click(button)
        page.wait(
            f"document.querySelector('#{side}').checkVisibility() && document.activeElement.id === '{side}'"
        )
        looks.check(page, f"{name}, {side}")
        if side == "memory":
            page.wait("document.querySelectorAll('.budget span').length > 0")
        test.screenshot(f"{name} {side}")
        page.press("Escape")
        page.wait(
            f"!document.querySelector('#{side}').checkVisibility() && document.activeElement.id === 'show-{side}'"
        )


def tests(options):
    found = {
        "reads a document and answers twice": reads_a_document_and_answers_twice,
        "stops an answer": stops_an_answer,
        "works by keyboard": works_by_keyboard,
    }
    if not options.url or options.api_key:
        found["asks for the key"] = asks_for_the_key
    if not options.url:
        found |= {"shows errors": shows_errors, "keeps what fits": keeps_what_fits}
    for width in (360, 1280):
        for is_dark in (False, True):
            found[f"looks right at {width}, {'dark' if is_dark else 'light'}"] = (
                lambda test, width=width, is_dark=is_dark: looks_right(test, width, is_dark)
            )
    return {name: run for name, run in found.items() if options.only in name}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--url", help="of a kvrun serve that runs; without it, the fake server beside this file"
    )
    parser.add_argument("--api-key", default="", help="of the server at --url")
    parser.add_argument("--document", type=pathlib.Path, help="a text file to ask about")
    parser.add_argument(
        "--screenshots", type=pathlib.Path, metavar="FOLDER", help="where pictures of the page go"
    )
    parser.add_argument("--timeout-s", type=float, help="of each wait (20; with --url 300)")
    parser.add_argument("--only", default="", metavar="WORDS", help="the tests whose names have these words")
    options = parser.parse_args()
    options.timeout_s = options.timeout_s or (300 if options.url else 20)
    if options.url:
        options.url = options.url.rstrip("/") + "/"
    if options.screenshots:
        options.screenshots.mkdir(parents=True, exist_ok=True)
    n_failed = 0
    chosen = tests(options)
    browser = Browser()
    for name, run in chosen.items():
        with tempfile.TemporaryDirectory() as folder:
            test = Test(browser, options, pathlib.Path(folder))
            began_s = time.monotonic()
            try:
                run(test)
                test.end()
                print(f"ok    {name} ({time.monotonic() - began_s:.1f} s)", flush=True)
            except Exception as error:
                n_failed += 1
                where = traceback.extract_tb(error.__traceback__)[1]
                print(f"FAIL  {name}: {error} ({where.name}, line {where.lineno})", flush=True)
                if test.page:
                    print(f"      console: {test.page.console}")
                    test.screenshot(f"failed {name}")
            test.close()
    browser.close()
    print(f"{len(chosen) - n_failed} passed, {n_failed} failed")
    return 1 if n_failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
