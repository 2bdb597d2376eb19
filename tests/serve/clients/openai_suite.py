#!/usr/bin/env python3
"""`kvrun serve` through the openai package. README.md beside this file says how to run it."""

import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.request

import openai
from asking import Asking, Failure, check, same, user
from prometheus_client.parser import text_string_to_metric_families

NAMES = [
    "Write a list of five colours.",
    "What is the capital of France?",
    "Why is the sky blue?",
    "Tell a short story.",
]
PLAIN = {"repeat_penalty": 1}  # for a small model there is one otherwise
LONG_TEXT = "\n".join(
    f"Day {i}: wind from the west, the lamp lit at {i % 12 + 1} o'clock, and {i * 7 % 31} ships in sight."
    for i in range(1, 61)
)


class Test(Asking):
    # ---- Models, tokens, figures

    def api_models(self):
        same(self.client.models.retrieve(self.model).id, self.model, "model")
        self.refused(openai.NotFoundError, lambda: self.client.models.retrieve("nobody"), code="model_not_found")
        self.refused(openai.NotFoundError, lambda: self.client.embeddings.create(model=self.model, input="x"))

    def api_tokens(self):
        text = "The quick brown fox, naïve and 🦊."
        tokens = self.post("/tokenize", {"content": text})["tokens"]
        check(len(tokens) > 5, f"only the tokens {tokens}")
        same(self.post("/detokenize", {"tokens": tokens})["content"], text, "text")

    def api_metrics(self):
        before = self.metrics()
        used = self.chat("Name a river.").usage
        self.wait_for_none(5)
        time.sleep(0.3)  # a report may be so old
        after = self.metrics()
        same(self.value(after, "kvrun_active_requests", {"state": "reading"}), 0, "requests that are read")
        grown = lambda name, **labels: self.value(after, name, labels) - self.value(before, name, labels)
        same(grown("kvrun_requests_total", outcome="answered"), 1, "answered requests")
        same(grown("kvrun_prompt_tokens_total"), used.prompt_tokens, "prompt tokens")
        same(grown("kvrun_answer_tokens_total"), used.completion_tokens, "answer tokens")
        check(self.value(after, "kvrun_process_bytes", {}) > 2**20, "process_bytes")

    def metrics(self):
        return {family.name: family for family in text_string_to_metric_families(self.get("/metrics"))}

    @staticmethod
    def value(families, name, labels):
        family = families[name.removesuffix("_total")]
        return next(s.value for s in family.samples if s.name == name and s.labels == labels)

    def api_health(self):
        same(json.loads(self.get("/health")), {"status": "ok"}, "health")

    def api_curl(self):
        body = json.dumps({"messages": user("What is the capital of France?"), "temperature": 0, "max_tokens": 24})
        curl = ["curl", "-sS", "--fail-with-body", "-H", "Content-Type: application/json", "-d"]
        address = self.options.url + "/v1/chat/completions"
        whole = json.loads(subprocess.run([*curl, body, address], check=True, capture_output=True, text=True).stdout)
        events = subprocess.run(
            [*curl, body[:-1] + ', "stream": true}', "-N", address], check=True, capture_output=True, text=True
        ).stdout
        lines = [line.removeprefix("data: ") for line in events.splitlines() if line.startswith("data: ")]
        same(lines.pop(), "[DONE]", "last event")
        text = "".join(json.loads(line)["choices"][0]["delta"].get("content", "") for line in lines)
        same(text, whole["choices"][0]["message"]["content"], "streamed text")
        bad = subprocess.run([*curl, "{", address], capture_output=True, text=True)
        same((bad.returncode, list(json.loads(bad.stdout))), (22, ["error"]), "refusal of what is no JSON")

    # ---- Answers

    def kvrun_run(self, prompt, n, *more):
        """What `kvrun run` answers, alone and with a session of its own."""
        with tempfile.TemporaryDirectory() as folder:
            command = [self.options.kvrun, "run", "-m", self.options.model, *self.options.kvrun_options, "-p", prompt]
            # Encrypted, as what the server keeps: it costs time, by which a budget says how much is read.
            command += ["--session", f"{folder}/new", "--session-key", "auto"]
            command += ["--temp", "0", "-n", str(n), "--json", "--quiet", *more]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            check(done.returncode == 0, f"{command}: {done.stderr}")
            return json.loads(done.stdout)["text"]

    def api_same_as_kvrun_run(self):
        for prompt in NAMES:
            wanted = self.kvrun_run(prompt, 40, "--chat")
            same(self.chat(prompt, max_tokens=40).choices[0].message.content, wanted, f"answer to {prompt!r}")
        same(self.complete(NAMES[3], max_tokens=30).choices[0].text, self.kvrun_run(NAMES[3], 30), "completion")

    def api_same_as_kvrun_run_from_flash(self):
        prompt = f"Summarise, at {time.time()}:\n" + LONG_TEXT  # of which nothing is kept
        wanted = self.kvrun_run(prompt, 40, "--chat")
        same(self.chat(prompt, max_tokens=40).choices[0].message.content, wanted, "answer")

    def api_chat(self):
        whole = self.chat("What is the capital of France?")
        choice = whole.choices[0]
        check("Paris" in choice.message.content, choice.message.content)
        same(
            (choice.message.role, choice.finish_reason, whole.object), ("assistant", "stop", "chat.completion"), "reply"
        )
        check(not hasattr(choice.message, "reasoning_content"), "there is reasoning")
        text, chunks = self.streamed(messages="What is the capital of France?")
        same(text, choice.message.content, "streamed text")
        same({c.id for c in chunks}, {chunks[0].id}, "ids")
        same([c.choices[0].delta.role for c in chunks if c.choices[0].delta.role], ["assistant"], "roles")
        same([c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason], ["stop"], "finish reasons")
        same([c.usage for c in chunks if c.usage], [], "usage")
        check(all("reasoning_content" not in c.to_json() for c in chunks), "there is reasoning")

    def api_completion(self):
        whole = self.complete("Once upon a time")
        same((whole.object, whole.choices[0].finish_reason), ("text_completion", "length"), "reply")
        chunks = list(self.complete("Once upon a time", stream=True))
        same("".join(c.choices[0].text for c in chunks), whole.choices[0].text, "streamed text")
        echoed = self.complete("Once upon a time", echo=True).choices[0].text
        same(echoed, "Once upon a time" + whole.choices[0].text, "echo")
        ids = self.post("/tokenize", {"content": "Once upon a time", "add_special": True})["tokens"]
        same(self.complete(ids).choices[0].text, whole.choices[0].text, "of token ids")
        several = self.complete(["Once upon a time", "The sea"]).choices
        same([c.index for c in several], [0, 1], "indices")
        same(
            [c.text for c in several],
            [whole.choices[0].text, self.complete("The sea").choices[0].text],
            "of two prompts",
        )

    def api_roles(self):
        system = {"role": "system", "content": "You speak like a pirate."}
        wanted = self.chat([system, *user(NAMES[1])])
        parts = self.chat(
            [system, *user([{"type": "text", "text": NAMES[1][:9]}, {"type": "text", "text": NAMES[1][9:]}])]
        )
        developer = self.chat([{**system, "role": "developer"}, *user(NAMES[1])])
        for reply in (parts, developer):
            same(reply.choices[0].message.content, wanted.choices[0].message.content, "answer")
            same(reply.usage.prompt_tokens, wanted.usage.prompt_tokens, "tokens of the prompt")

    def api_max_tokens(self):
        for name in ("max_tokens", "max_completion_tokens"):
            reply = self.chat(NAMES[3], **{"max_tokens": openai.omit, name: 3})
            same((reply.choices[0].finish_reason, reply.usage.completion_tokens), ("length", 3), name)

    def api_usage(self):
        usage = self.chat(NAMES[1]).usage
        same(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens, "total")
        _, chunks = self.streamed(messages=NAMES[1], stream_options={"include_usage": True})
        same([len(c.choices) for c in chunks[-2:]], [1, 0], "choices of the last two chunks")
        same([c.usage for c in chunks[:-1] if c.usage], [], "usage before the last chunk")
        streamed = chunks[-1].usage
        wanted = (usage.prompt_tokens, usage.completion_tokens, 0)
        same(
            (streamed.prompt_tokens, streamed.completion_tokens, streamed.completion_tokens_details.reasoning_tokens),
            wanted,
            "usage",
        )

    def api_stop(self):
        whole = self.complete("1, 2, 3, 4,", max_tokens=30).choices[0].text
        check("8, 9" in whole, whole)
        for stop in ("8", "8, 9", ["nowhere", ", 8, 9,"]):
            reply = self.complete("1, 2, 3, 4,", max_tokens=30, stop=stop)
            last = stop if isinstance(stop, str) else stop[1]
            same(
                (reply.choices[0].text, reply.choices[0].finish_reason),
                (whole[: whole.index(last)], "stop"),
                f"stop {stop}",
            )
            chunks = list(self.complete("1, 2, 3, 4,", max_tokens=30, stop=stop, stream=True))
            same("".join(c.choices[0].text for c in chunks), reply.choices[0].text, f"streamed, stop {stop}")
        same(
            self.complete("1, 2, 3, 4,", max_tokens=30, stop="8, 10").choices[0].text,
            whole,
            "a stop that is only begun",
        )

    def api_seed(self):
        draw = lambda **more: [c.message.content for c in self.chat(NAMES[3], temperature=1.0, **more).choices]
        three = draw(seed=7, n=3)
        same(len(set(three)), 3, "different texts of three choices")
        same(draw(seed=7, n=3), three, "texts of the same seed")
        same(draw(seed=7)[0], three[0], "text of the first choice alone")
        check(draw(seed=8)[0] != three[0], "another seed says the same")
        check(draw() != draw(), "without a seed it says the same twice")
        _, chunks = self.streamed(messages=NAMES[3], temperature=1.0, seed=7, n=3)
        texts = ["", "", ""]
        for chunk in chunks:
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        same(texts, three, "streamed")

    def api_logprobs(self):
        reply = self.chat(NAMES[2], logprobs=True, top_logprobs=20, extra_body=PLAIN).choices[0]
        steps = reply.logprobs.content
        same(len(steps), 24, "tokens")
        same("".join(s.token for s in steps), reply.message.content, "text of the tokens")
        for step in steps:
            top = step.top_logprobs
            same((step.token, step.logprob), (top[0].token, top[0].logprob), "the likeliest")
            total = sum(math.exp(t.logprob) for t in top)
            check(len(top) == 20 and 0.3 < total < 1.0001, f"20 probabilities come to {total}")
            check(all(a.logprob >= b.logprob for a, b in zip(top, top[1:])), "order")
            same(bytes(step.bytes).decode(), step.token, "bytes")
        _, chunks = self.streamed(messages=NAMES[2], logprobs=True, top_logprobs=20, extra_body=PLAIN)
        streamed = [s for c in chunks if c.choices[0].logprobs for s in c.choices[0].logprobs.content]
        same(streamed, steps, "streamed")
        none = self.chat(NAMES[2], logprobs=True, extra_body=PLAIN).choices[0].logprobs.content
        same([s.logprob for s in none], [s.logprob for s in steps], "without the likeliest")
        old = self.complete("Once upon a time", logprobs=2).choices[0]
        same("".join(old.logprobs.tokens), old.text, "tokens of a completion")
        check(all(len(t) in (2, 3) for t in old.logprobs.top_logprobs), f"{old.logprobs.top_logprobs}")
        same(old.logprobs.text_offset[:2], [0, len(old.logprobs.tokens[0])], "offsets")

    def api_logit_bias(self):
        [token] = self.post("/tokenize", {"content": " blue"})["tokens"]
        forced = self.complete("The sky is", logit_bias={token: 100}, max_tokens=3).choices[0].text
        same(forced, " blue blue blue", "forced")
        usual = self.complete("The sky is", max_tokens=1, logprobs=1).choices[0]
        [usual_token] = self.post("/tokenize", {"content": usual.text})["tokens"]
        check(
            self.complete("The sky is", max_tokens=1, logit_bias={usual_token: -100}).choices[0].text != usual.text,
            "banned",
        )

    def api_errors(self):
        bad = openai.BadRequestError
        self.refused(bad, lambda: self.chat("x", temperature=9), param="temperature", code="invalid_value")
        self.refused(bad, lambda: self.chat("x", max_tokens="many"), param="max_tokens")
        self.refused(bad, lambda: self.chat([]), param="messages")
        self.refused(bad, lambda: self.chat([{"role": "king", "content": "x"}]), param="messages[0].role")
        tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
        self.refused(bad, lambda: self.chat("x", tools=[tool]), param="tools", code="unsupported_parameter")
        form = {"type": "json_object"}
        self.refused(bad, lambda: self.chat("x", response_format=form), param="response_format")
        self.refused(bad, lambda: self.chat("x", n=17), param="n")
        self.refused(bad, lambda: self.complete([10**6]), param="prompt", words="1000000")
        self.refused(bad, lambda: self.complete("x", logit_bias={10**6: 1}), param="logit_bias", words="1000000")
        self.refused(bad, lambda: self.chat("word " * 9000), code="context_length_exceeded", param="messages")
        self.refused(bad, lambda: self.complete("word " * 9000), code="context_length_exceeded", param="prompt")
        check(self.chat("Hello", extra_body={"no_such_field": 1}).choices[0].message.content, "unknown field")

    # ---- Conversations

    def api_second_turn(self):
        messages = user("Here is a log:\n" + LONG_TEXT + "\nSay hello.")
        first = self.chat(messages)
        messages += [
            {"role": "assistant", "content": first.choices[0].message.content},
            *user("And what was day 7 like?"),
        ]
        second = self.chat(messages).usage
        cached = second.prompt_tokens_details.cached_tokens
        check(
            first.usage.prompt_tokens <= cached < second.prompt_tokens, f"{cached} of {second.prompt_tokens} are cached"
        )

    def api_at_once(self):
        alone = [self.chat(name).choices[0].message.content for name in NAMES]
        together = [None] * 12

        def ask(i):
            together[i] = self.chat(NAMES[i % 4]).choices[0].message.content

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        same(together, alone * 3, "twelve answers at once")

    def api_cancelled_answer(self):
        stream = self.chat("Count to a thousand.", stream=True, max_tokens=4000, logit_bias={2: -100})
        for _ in range(5):
            next(stream)
        check(self.status()["requests"], "there is no request")
        stream.close()
        took_s = self.wait_for_none(1)
        print(f"  an answer is gone {took_s:.2f} s after its client")

    # ---- Long documents: before a restart, and after it

    def document(self, question, before=""):
        return user(before + self.options.document.read_text() + "\n\n" + question)

    def first_token_s(self, messages):
        began = time.monotonic()
        stream = self.chat(messages, stream=True, max_tokens=8, stream_options={"include_usage": True})
        first_s = None
        for chunk in stream:
            if first_s is None and chunk.choices and chunk.choices[0].delta.content:
                first_s = time.monotonic() - began
        return first_s, chunk.usage

    def document_cancelled_prompt(self):
        messages = self.document("What is this?", "A copy that nobody reads to its end.\n\n")
        progress = {"return_progress": True}
        stream = self.chat(messages, stream=True, extra_body=progress)
        done = next(c.prompt_progress for c in stream if c.prompt_progress["processed"] > 4000)
        stream.close()
        took_s = self.wait_for_none(1)
        again = self.chat(messages, stream=True, extra_body=progress)
        kept = next(iter(again)).prompt_progress
        again.close()
        self.wait_for_none(1)
        check(0 < kept["cache"] <= done["total"], f"{kept} after {done}")
        print(f"  a prompt is gone {took_s:.2f} s after its client")
        print(f"  {kept['cache']} of {done['processed']} tokens are kept")

    def document_cancelled_unstreamed(self):
        messages = self.document("What is this?", "Another copy.\n\n")
        impatient = self.client.with_options(timeout=20)
        make = lambda: impatient.chat.completions.create(model=self.model, messages=messages)
        self.refused(openai.APITimeoutError, make)
        self.wait_for_none(1)
        again = self.chat(messages, stream=True, extra_body={"return_progress": True})
        kept = next(iter(again)).prompt_progress
        again.close()
        self.wait_for_none(1)
        check(kept["cache"] > 0, f"nothing is kept: {kept}")

    def document_read(self):
        first_s, usage = self.first_token_s(self.document("Who wrote this?"))
        self.options.notes.write_text(json.dumps({"first_s": first_s}))
        same(usage.prompt_tokens_details.cached_tokens, 0, "cached tokens")
        print(f"  {usage.prompt_tokens} tokens: the first token after {first_s:.2f} s")

    def restarted_read(self):
        first_s, usage = self.first_token_s(self.document("What are its terms?"))
        before_s = json.loads(self.options.notes.read_text())["first_s"]
        cached = usage.prompt_tokens_details.cached_tokens
        print(f"  {cached} of {usage.prompt_tokens} tokens are cached")
        print(f"  the first token after {first_s:.2f} s, {before_s / first_s:.0f} times sooner")
        check(cached > 0.99 * usage.prompt_tokens - 30, "the document is not there any more")
        check(before_s > 40 * first_s, "less than 40 times sooner")

    # ---- A server with a key

    def key_needed(self):
        stranger = openai.OpenAI(base_url=self.options.url + "/v1", api_key="guess", max_retries=0)
        self.refused(openai.AuthenticationError, stranger.models.list, code="invalid_api_key")
        ask = lambda: stranger.chat.completions.create(model=self.model, messages=user("x"))
        self.refused(openai.AuthenticationError, ask, code="invalid_api_key")
        check(self.chat("Hello").choices[0].message.content, "with the key")
        same(json.loads(self.get("/health")), {"status": "ok"}, "health")

    def key_full_queue(self):
        """The server computes one request, and lets one wait."""
        refusals = []
        answers = []

        def ask():
            try:
                answers.append(self.chat(NAMES[3], max_tokens=60).choices[0].message.content)
            except openai.InternalServerError as error:
                refusals.append((error.status_code, int(error.response.headers["Retry-After"])))

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        same(len(answers) + len(refusals), 6, "requests that ended")
        check(len(answers) >= 2 and len(set(answers)) == 1, f"answers: {answers}")
        same(set(refusals), {(503, 5)}, "refusals")

    def key_langchain(self):
        from langchain_openai import ChatOpenAI, OpenAI

        common = {
            "base_url": self.options.url + "/v1",
            "api_key": self.options.api_key,
            "model": self.model,
            "temperature": 0,
        }
        chat = ChatOpenAI(**common, max_completion_tokens=24)
        question = "What is the capital of France?"
        reply = chat.invoke(question)
        same(reply.content, self.chat(question).choices[0].message.content, "answer")
        same(reply.usage_metadata["output_tokens"], self.chat(question).usage.completion_tokens, "tokens of the answer")
        same("".join(part.content for part in chat.stream(question)), reply.content, "streamed")
        same([r.content for r in chat.batch([question, question])], [reply.content] * 2, "batch")
        old = OpenAI(**common, max_tokens=16).invoke("Once upon a time")
        same(old, self.complete("Once upon a time").choices[0].text, "completion")


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["api", "document", "restarted", "key"])
    parser.add_argument("--url", required=True, help="of the server, without /v1")
    parser.add_argument("--api-key")
    parser.add_argument("--model", required=True, help="the server's, for kvrun run")
    parser.add_argument("--kvrun", default="build/release/bin/kvrun")
    parser.add_argument("--kvrun-options", type=str.split, default=[], help="such as '--device host'")
    parser.add_argument("--document", type=pathlib.Path, default="/usr/share/common-licenses/GPL-3")
    parser.add_argument("--notes", type=pathlib.Path, help="a file from `document` to `restarted`")
    parser.add_argument("--only", default="", help="tests whose name has this in it")
    return parser.parse_args()


def main():
    options = parse()
    test = Test(options)
    n_passed = n_failed = 0
    for name in [n for n in vars(Test) if n.startswith(options.part + "_") and options.only in n]:
        began = time.monotonic()
        try:
            getattr(test, name)()
            n_passed += 1
            print(f"ok {name} ({time.monotonic() - began:.1f} s)", flush=True)
        except Exception as error:
            n_failed += 1
            if not isinstance(error, Failure):
                traceback.print_exc()
            print(f"FAILED {name}: {error}", flush=True)
    print(f"{n_passed} passed, {n_failed} failed")
    return 1 if n_failed or not n_passed else 0


if __name__ == "__main__":
    sys.exit(main())
