#!/usr/bin/env python3
"""A server that speaks as kvrun serve does, with canned answers at a slow pace, for the page's test.

  fake_server.py [--port 8090] [--api-key KEY]     by hand, to look at the page

What a question says decides what comes: "busy": 503, once; "lost": the connection breaks in the middle;
"wrong": an error within the stream; "code": an answer with code; "long": one of 400 words.
"""

import argparse
import http.server
import json
import math
import pathlib
import threading
import time

PAGE = pathlib.Path(__file__).resolve().parents[3] / "apps/kvserve/page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
MIB = 1 << 20

REASONING = (
    "The user asks about the lighthouse. The second chapter says when it was lit, and the ledger at the end "
    "gives the keeper's name.\n\nI will answer from both."
)
FIRST = (
    "The lighthouse was lit on 4 March 1871. Its first keeper was Ada Thorne, who kept it for thirty-one years.\n\n"
    "The text says so twice: in the second chapter, and in the ledger at its end. <b>Not markup</b> & such."
)
SECOND = "She left it to her niece. The ledger's last line, of 1902, has the niece's hand."
CODE = 'Here is how:\n\n```python\nfor year in range(1871, 1903):\n    print(year, "a line that is longer than a phone is wide, by far")\n```\n\nIt prints each year once.'
OTHER = "I have not read about that. Ask me about the lighthouse."


def answer_of(question):
    if "code" in question:
        return "", CODE
    if "long" in question:
        return "", " ".join(f"Word {i} of a long answer." for i in range(400))
    if "keeper" in question:
        return REASONING, FIRST
    if "after her" in question:
        return "", SECOND
    return "", OTHER


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port=0, api_key="", step_s=0.02, read_step_s=0.02):
        super().__init__(("127.0.0.1", port), Handler)
        self.api_key = api_key
        self.has_status = True
        self.is_down = False
        self.step_s = step_s  # between two tokens
        self.read_step_s = read_step_s  # between two events of progress
        self.lock = threading.Lock()
        self.requests = {}
        self.bodies = []  # of all chats, as they came
        self.n_gone = 0  # clients that went away before the end
        self.n_busy = 0
        self.n_tokens = 0
        self.cached = 0
        self.began_s = time.monotonic()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def start(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def handle_error(self, request, client_address):
        pass  # clients that go away are part of the test

    def status(self):
        s = time.monotonic() - self.began_s
        with self.lock:
            requests = [dict(one) for one in self.requests.values()]
            moved = self.n_tokens
        busy = any(one["state"] == "answering" for one in requests)
        slots = int((18 + 4 * math.sin(s / 3)) * MIB)
        return {
            "model": "SmolLM2-135M-Instruct.Q4_1",
            "budget_bytes": 64 * MIB,
            "parts": [
                {"name": "index", "bytes": int(9.4 * MIB)},
                {"name": "recently used", "bytes": slots},
                {"name": "prompt's most used", "bytes": 12 * MIB},
                {"name": "newest", "bytes": 6 * MIB},
                {"name": "staging", "bytes": int(2.5 * MIB)},
            ],
            "process_bytes": 231 * MIB,
            "hit_rate": 0.93 + 0.04 * math.sin(s / 2) if busy else None,
            "stall_ms_per_token": 1.4 + math.sin(s) if busy else None,
            "read_bytes": int(1.21 * 1024 * MIB) + 90000 * moved,
            "written_bytes": 412 * MIB + 30000 * moved,
            "read_mbps": 338.0 if busy else None,
            "requests": requests,
            "n_queued": 0,
            "decode_tps": 48.2 if busy else None,
            "sessions": [
                {"name": "The lighthouse at Skerry Point", "tokens": 7639, "bytes": 172 * MIB},
                {
                    "name": "Contract of lease, 2024, with all its annexes",
                    "tokens": 31200,
                    "bytes": 702 * MIB,
                },
                {"name": "notes.md", "tokens": 912, "bytes": 20 * MIB},
            ],
        }


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def parse_request(self):
        if self.server.is_down:
            self.close_connection = True
            return False
        return super().parse_request()

    def log_message(self, *_):
        pass

    def send(self, code, content_type, data, **fields):
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Security-Policy", POLICY)
        for name, value in fields.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def send_json(self, code, value, **fields):
        self.send(code, "application/json", json.dumps(value).encode(), **fields)

    def fail(self, code, message, **fields):
        self.send_json(
            code, {"error": {"message": message, "type": "error", "param": None, "code": None}}, **fields
        )

    def is_refused(self):
        if not self.server.api_key or self.headers.get("Authorization") == f"Bearer {self.server.api_key}":
            return False
        self.fail(401, "The API key is missing or wrong")
        return True

    def do_GET(self):
        name = self.path.lstrip("/") or "index.html"
        file = PAGE / name
        if "/" not in name and file.is_file():
            self.send(200, TYPES[file.suffix], file.read_bytes())
        elif self.is_refused():
            pass
        elif name == "status" and self.server.has_status:
            self.send_json(200, self.server.status())
        else:
            self.fail(404, f"There is no {self.path}")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.is_refused():
            return
        if self.path != "/v1/chat/completions":
            self.fail(404, f"There is no {self.path}")
            return
        self.server.bodies.append(body)
        question = body["messages"][-1]["content"].rsplit("\n\n", 1)[-1]
        if "busy" in question and self.server.n_busy == 0:
            self.server.n_busy += 1
            self.fail(503, "4 requests are waiting, which is the limit", Retry_After="3")
            return
        request = {
            "id": f"chatcmpl-{len(self.server.bodies)}",
            "state": "queued",
            "prompt_tokens": 0,
            "read_tokens": 0,
            "cached_tokens": 0,
            "answer_tokens": 0,
        }
        with self.server.lock:
            self.server.requests[request["id"]] = request
        try:
            self.stream(body, question, request)
        except (BrokenPipeError, ConnectionResetError):
            self.server.n_gone += 1
        finally:
            with self.server.lock:
                del self.server.requests[request["id"]]

    def event(self, value):
        data = value if isinstance(value, str) else json.dumps(value)
        self.write(f"data: {data}\n\n".encode())

    def write(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def chunk(self, request, **delta):
        self.event(
            {
                "id": request["id"],
                "object": "chat.completion.chunk",
                "choices": [{"index": 0, "delta": delta, "finish_reason": None}],
                "usage": None,
            }
        )

    def read(self, request, body):
        """The prompt, in steps."""
        total = sum(len(message["content"]) for message in body["messages"]) // 4 + 20
        cached = min(self.server.cached, total - 8)
        request.update(state="reading", prompt_tokens=total, cached_tokens=cached)
        self.write(b": still here\n\n")
        began_s = time.monotonic()
        step = max(1, (total - cached + 19) // 20)
        for processed in [*range(cached, total, step), total]:
            request["read_tokens"] = processed
            self.event(
                {
                    "id": request["id"],
                    "object": "chat.completion.chunk",
                    "choices": [],
                    "prompt_progress": {
                        "total": total,
                        "cache": cached,
                        "processed": processed,
                        "time_ms": int(1000 * (time.monotonic() - began_s)),
                    },
                }
            )
            time.sleep(self.server.read_step_s)
        self.server.cached = total
        return total, cached

    def stream(self, body, question, request):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        total, cached = self.read(request, body)
        request["state"] = "answering"
        reasoning, content = answer_of(question)
        self.chunk(request, role="assistant", content="")
        n_tokens = 0
        for field, text in (("reasoning_content", reasoning), ("content", content)):
            for word in text.replace(" ", " \0").split("\0") if text else []:
                time.sleep(self.server.step_s)
                self.chunk(request, **{field: word})
                n_tokens += 1
                request["answer_tokens"] = n_tokens
                self.server.n_tokens += 1
                if "lost" in question and n_tokens == 5:
                    self.close_connection = True
                    time.sleep(0.3)  # a browser drops what it has not read when the connection breaks
                    self.connection.shutdown(2)
                    return
                if "wrong" in question and n_tokens == 5:
                    self.event({"error": {"message": "the flash disk is full", "type": "server_error"}})
                    self.write(b"")
                    return
        self.event({"id": request["id"], "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        self.event(
            {
                "id": request["id"],
                "choices": [],
                "usage": {
                    "prompt_tokens": total,
                    "completion_tokens": n_tokens,
                    "total_tokens": total + n_tokens,
                    "prompt_tokens_details": {"cached_tokens": cached},
                },
            }
        )
        self.event("[DONE]")
        self.write(b"")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=8090)
    parser.add_argument("--api-key", default="")
    options = parser.parse_args()
    server = Server(options.port, options.api_key, step_s=0.06, read_step_s=0.3)
    print(f"{server.url}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
