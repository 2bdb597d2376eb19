"""What the tests of openai_suite.py ask and check with."""

import json
import time
import urllib.request

import openai


class Failure(Exception):
    pass


def check(is_so, what):
    if not is_so:
        raise Failure(what)


def same(got, wanted, what):
    check(got == wanted, f"{what}: {got!r} instead of {wanted!r}")


def user(text):
    return [{"role": "user", "content": text}]


class Asking:
    def __init__(self, options):
        self.options = options
        self.client = openai.OpenAI(
            base_url=options.url + "/v1", api_key=options.api_key or "none", max_retries=0, timeout=600
        )
        self.model = self.client.models.list().data[0].id

    def chat(self, messages, **more):
        given = {"temperature": 0, "max_tokens": 24, "model": self.model, **more}
        return self.client.chat.completions.create(
            messages=user(messages) if isinstance(messages, str) else messages, **given
        )

    def complete(self, prompt, **more):
        given = {"temperature": 0, "max_tokens": 16, "model": self.model, **more}
        return self.client.completions.create(prompt=prompt, **given)

    def get(self, path):
        fields = {"Authorization": f"Bearer {self.options.api_key}"} if self.options.api_key else {}
        with urllib.request.urlopen(
            urllib.request.Request(self.options.url + path, headers=fields), timeout=60
        ) as reply:
            return reply.read().decode()

    def post(self, path, body):
        request = urllib.request.Request(
            self.options.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.loads(reply.read())

    def status(self):
        return json.loads(self.get("/status"))

    def streamed(self, **more):
        """The whole text of a chat that is streamed, and its chunks."""
        chunks = list(self.chat(stream=True, **more))
        return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), chunks

    def refused(self, kind, call, *, code=None, param=None, words=""):
        try:
            call()
        except kind as error:
            if code:
                same(error.code, code, "code")
            if param:
                same(error.param, param, "param")
            check(words in str(error), f"{words!r} is not in {error}")
            return error
        raise Failure(f"no {kind.__name__}")

    def wait_for_none(self, at_most_s):
        """Seconds until the server has no request any more."""
        began = time.monotonic()
        while time.monotonic() - began < at_most_s:
            if not self.status()["requests"]:
                return time.monotonic() - began
            time.sleep(0.05)
        raise Failure(f"after {at_most_s} s there is still {self.status()['requests']}")
