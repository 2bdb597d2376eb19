#!/usr/bin/env python3
"""Valid requests of kvrun serve, changed at random: the server must answer or close, and stay alive.

    kvrun serve -m MODEL --port 8080 --ctx 192 -n 8 &   # short answers, where a request does not say
    fuzz.py --port 8080 --seconds 120 --seed 1

A failure names the seed and the number of its request, and leaves the bytes in --keep. Exits with 1 then.
"""
import argparse
import collections
import json
import random
import sys
import threading
import time

from http_exchange import Broken, Reader, close, connect, exchange, request_bytes, why_unclean

BODIES = [
    ('/v1/chat/completions', {'messages': [{'role': 'user', 'content': 'Name a colour.'}], 'max_tokens': 2,
                              'temperature': 0, 'stream': False, 'n': 1, 'stop': ['.'], 'seed': 3, 'top_p': 0.9,
                              'logprobs': True, 'top_logprobs': 2, 'logit_bias': {'5': -1}}),
    ('/v1/completions', {'prompt': 'Once upon', 'max_tokens': 2, 'temperature': 0.5, 'echo': True, 'stream': True,
                         'stream_options': {'include_usage': True}, 'return_progress': True}),
    ('/v1/completions', {'prompt': [[1, 2, 3], [4, 5]], 'max_tokens': 1, 'min_p': 0.1, 'logprobs': 3}),
    ('/v1/chat/completions', {'messages': [{'role': 'system', 'content': 'Be brief.'}, {
        'role': 'user', 'content': [{'type': 'text', 'text': 'Hello'}]}], 'max_completion_tokens': 1,
                              'reasoning_effort': 'low', 'chat_template_kwargs': {'x': 1}}),
    ('/tokenize', {'content': 'some text', 'add_special': True}),
    ('/detokenize', {'tokens': [1, 2, 3]}),
]
ODD = [None, True, False, 0, -1, 1, 2**31, 2**32, 2**63, 2**64, -2**63, 1e308, -0.0, 0.1, '', 'x', '\0', '\ud7ff',
       '\U0001f600', 'a' * 5000, [], {}, [[]], [None], {'a': None}, {'': ''}, [0] * 300, '0', 'NaN']


class Fuzz:
    def __init__(self, options):
        self.options = options
        self.address = ('127.0.0.1', options.port)
        self.lock = threading.Lock()
        self.counts = collections.Counter()
        self.failures = 0
        self.ends_at = time.monotonic() + options.seconds

    def fail(self, name, sent, why):
        with self.lock:
            self.failures += 1
            print(f'FAILED: {name}: {why}', flush=True)
            if self.options.keep:
                with open(f'{self.options.keep}/fuzz-{name}', 'wb') as file:
                    file.write(sent)

    # ---- Changes

    def change_value(self, rng, value):
        """Somewhere in it."""
        if isinstance(value, dict) and value and rng.random() < 0.8:
            key = rng.choice(list(value))
            changed = dict(value)
            what = rng.randrange(5)
            if what == 0:
                del changed[key]
            elif what == 1:
                changed[rng.choice(('tools', 'unknown', '', 'n', 'stop', 'max_tokens', 'logit_bias'))] = rng.choice(ODD)
            else:
                changed[key] = self.change_value(rng, value[key])
            return changed
        if isinstance(value, list) and value and rng.random() < 0.8:
            changed = list(value)
            i = rng.randrange(len(value))
            if rng.random() < 0.3:
                changed = changed * rng.choice((0, 2, 20))
            else:
                changed[i] = self.change_value(rng, value[i])
            return changed
        return rng.choice(ODD)

    @staticmethod
    def change_bytes(rng, given):
        changed = bytearray(given)
        for _ in range(rng.choice((1, 1, 2, 5, 20))):
            at = rng.randrange(len(changed) + 1)
            what = rng.randrange(4)
            if what == 0:
                changed[at:at + rng.randrange(1, 20)] = b''
            elif what == 1:
                changed[at:at] = rng.randbytes(rng.randrange(1, 10))
            elif what == 2:
                changed[at:at] = rng.choice((b'\r\n', b'\r\n\r\n', b'\0', b' ', b'\xff', b'{', b'"', b'[' * 50,
                                             b'Transfer-Encoding: chunked\r\n', b'Content-Length: 3\r\n',
                                             b'Expect: 100-continue\r\n'))
            elif at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
        return bytes(changed)

    def make(self, rng):
        path, body = rng.choice(BODIES)
        for _ in range(rng.choice((0, 1, 1, 2, 4))):
            body = self.change_value(rng, body)
        text = json.dumps(body).encode()
        if rng.random() < 0.2:
            text = self.change_bytes(rng, text)
        if rng.random() < 0.1:
            method = rng.choice(('GET', 'PUT', 'HEAD', 'OPTIONS', 'POST'))
            odd_path = rng.choice((path, '/', '/status', '/metrics', '/v1/models/x', '/%00', '//', '*'))
            return request_bytes(self.address, method, odd_path, text)
        sent = request_bytes(self.address, 'POST', path, text, keep=rng.random() < 0.5)
        return self.change_bytes(rng, sent) if rng.random() < 0.3 else sent

    # ---- Clients

    def one(self, rng, name):
        sent = self.make(rng)
        began = time.monotonic()
        sock = connect(self.address, 120)
        try:
            try:
                sock.sendall(sent)
                sock.shutdown(1)  # what is cut short ends here
            except OSError:
                pass
            answer = Reader(sock).answer(sent.startswith(b'HEAD'))
            why = '' if answer.status < 400 or not answer.body else why_unclean(answer)
            if why:
                return self.fail(name, sent, why)
            what = str(answer.status)
        except TimeoutError:
            return self.fail(name, sent, f'no answer in {time.monotonic() - began:.0f} s')
        except (OSError, Broken, ValueError):
            what = 'closed'  # an error in the midst of events, or no request at all
        finally:
            close(sock, rng.random() < 0.1)
        with self.lock:
            self.counts[what] += 1

    def client(self, number):
        rng = random.Random(self.options.seed * 1000 + number)
        n = 0
        while time.monotonic() < self.ends_at:
            try:
                self.one(rng, f'{self.options.seed}-{number}-{n}')
            except OSError as error:
                self.fail(f'{self.options.seed}-{number}-{n}', b'', f'the server does not take it: {error!r}')
                return
            n += 1

    def run(self):
        clients = [threading.Thread(target=self.client, args=(i,)) for i in range(self.options.clients)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        until = time.monotonic() + 30
        while (status := exchange(self.address, 'GET', '/status').json())['requests'] and time.monotonic() < until:
            time.sleep(0.5)
        if status['requests']:
            self.fail('end', b'', f"there are requests still: {status['requests']}")
        print(dict(self.counts), f'{sum(self.counts.values())} requests, {self.failures} failures')
        return 1 if self.failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--port', type=int, required=True)
    parser.add_argument('--clients', type=int, default=8)
    parser.add_argument('--seconds', type=float, default=120)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--keep', default='', help='a folder for requests that fail')
    sys.exit(Fuzz(parser.parse_args()).run())


if __name__ == '__main__':
    main()
