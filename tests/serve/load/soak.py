#!/usr/bin/env python3
"""Many clients of kvrun serve at once: quick, slow, rude, broken. Nothing may be lost, mixed up or leaked.

    kvrun serve -m MODEL --port 8080 ... &
    soak.py --port 8080 --pid $! --sessions ~/.local/state/kvrun/sessions --seconds 300

Each prompt is asked alone first; what any client is answered later must be the same. Exits with 1, and says
why, where something went wrong.
"""
import argparse
import collections
import json
import os
import random
import sys
import threading
import time

from http_exchange import (Broken, Reader, close, connect, events, exchange, request_bytes, why_unclean)

N_PROMPTS = 40
N_LONG = 4
TIMEOUT_S = 280    # a client waits behind all others
WORDS = ('river stone window paper garden engine winter letter candle harbour market silver forest bridge '
         'kitchen mountain travel number yellow teacher morning island bottle thunder pocket history').split()


def words(rng, n):
    return ' '.join(rng.choice(WORDS) for _ in range(n))


class Prompt:
    """They differ from their first word on: what is kept of one is of no use to another."""

    def __init__(self, number, long_words=0):
        rng = random.Random(number)
        self.is_chat = number % 2 == 0
        self.max_tokens = 6 + number % 11
        text = words(rng, long_words or 6 + number % N_PROMPTS)
        self.text = f'{number * 7919} {text}. Tell me about the {WORDS[number % len(WORDS)]}.'
        self.expected = None

    @property
    def path(self):
        return '/v1/chat/completions' if self.is_chat else '/v1/completions'

    def body(self, **more):
        body = {'temperature': 0, 'max_tokens': self.max_tokens, **more}
        if self.is_chat:
            body['messages'] = [{'role': 'user', 'content': self.text}]
        else:
            body['prompt'] = self.text
        return json.dumps(body).encode()

    def texts_of(self, answer, is_streamed):
        """What was answered, by choice, and how many tokens of the prompt were there before."""
        texts = collections.defaultdict(str)
        n_cached = 0
        if not is_streamed:
            whole = answer.json()
            for choice in whole['choices']:
                texts[choice['index']] = choice['message']['content'] if self.is_chat else choice['text']
            return dict(texts), whole['usage']['prompt_tokens_details']['cached_tokens']
        data = events(answer.body)
        if not data or data[-1] != '[DONE]':
            raise Broken(f'the stream does not end: {data[-1:]}')
        for event in map(json.loads, data[:-1]):
            if 'error' in event:
                raise Broken(f'an error in the stream: {event}')
            for choice in event['choices']:
                piece = choice['delta'].get('content') if self.is_chat else choice['text']
                texts[choice['index']] += piece or ''
            if event.get('usage'):
                n_cached = event['usage']['prompt_tokens_details']['cached_tokens']
        return dict(texts), n_cached


class Soak:
    def __init__(self, options):
        self.options = options
        self.address = ('127.0.0.1', options.port)
        self.prompts = [Prompt(i, options.long_words if i < N_LONG else 0) for i in range(N_PROMPTS)]
        self.lock = threading.Lock()
        self.counts = collections.Counter()
        self.failures = []
        self.peak_rss_kib = 0
        self.most_fds = 0
        self.slowest_s = 0.0
        self.ends_at = 0.0

    # ---- What is noted

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def fail(self, what):
        with self.lock:
            self.failures.append(what)
            if len(self.failures) <= 20:
                print('FAILED:', what, flush=True)

    def check(self, prompt, answer, kind, is_streamed=False, n=1):
        if answer.status != 200:
            why = why_unclean(answer)
            if why or answer.status != 503:
                return self.fail(f'{kind}: refused: {why or answer.body[:200]!r}')
            self.count('503')
            return time.sleep(1)  # as a client that was told to come back later
        texts, n_cached = prompt.texts_of(answer, is_streamed)
        if texts != {i: prompt.expected for i in range(n)}:
            if self.options.loose and (n_cached or n > 1):
                return self.count('answered otherwise from what was kept')
            return self.fail(f'{kind}: {prompt.text[:20]!r} was answered {texts} ({n_cached} cached), '
                             f'alone {prompt.expected!r}')
        return self.count('answered: ' + kind)

    # ---- Clients

    def ask(self, rng, prompt, kind, is_streamed=False, n=1, reader=None, half_close=False):
        more = {'stream_options': {'include_usage': True}} if is_streamed else {}
        body = prompt.body(stream=is_streamed, n=n, **more)
        with connect(self.address, TIMEOUT_S, 4096 if reader else 0) as sock:
            sock.sendall(request_bytes(self.address, 'POST', prompt.path, body, keep=rng.random() < 0.3))
            if half_close:
                sock.shutdown(1)
            answer = Reader(sock, **(reader or {})).answer()
        self.check(prompt, answer, kind, is_streamed, n)

    def any_prompt(self, rng):
        return rng.choice(self.prompts if rng.random() < 0.08 else self.prompts[N_LONG:])

    def plain(self, rng):
        self.ask(rng, self.any_prompt(rng), 'plain')

    def streamed(self, rng):
        self.ask(rng, self.any_prompt(rng), 'streamed', is_streamed=True)

    def slow(self, rng):
        reader = {'step_bytes': 150, 'pause': lambda: time.sleep(0.1)}
        self.ask(rng, self.any_prompt(rng), 'slow', is_streamed=True, reader=reader)

    def twice(self, rng):
        self.ask(rng, self.any_prompt(rng), 'two answers', is_streamed=rng.random() < 0.5, n=2)

    def half_closed(self, rng):
        self.ask(rng, self.any_prompt(rng), 'half closed', half_close=True, is_streamed=rng.random() < 0.5)

    def kept_alive(self, rng):
        with connect(self.address, TIMEOUT_S) as sock:
            reader = Reader(sock)
            for _ in range(3):
                prompt = self.any_prompt(rng)
                sock.sendall(request_bytes(self.address, 'POST', prompt.path, prompt.body(), keep=True))
                answer = reader.answer()
                self.check(prompt, answer, 'kept alive')
                if answer.fields.get('connection') == 'close':
                    return

    def gone_in_prompt(self, rng):
        prompt = rng.choice(self.prompts[:N_LONG]) if rng.random() < 0.5 else Prompt(
            rng.randrange(10**6, 10**7), self.options.long_words if rng.random() < 0.5 else 0)
        sock = connect(self.address, TIMEOUT_S)
        sock.sendall(request_bytes(self.address, 'POST', prompt.path, prompt.body(stream=rng.random() < 0.5)))
        time.sleep(rng.choice((0, 0, 0.05, 0.5, 3)))
        close(sock, rng.random() < 0.5)
        self.count('gone in the prompt')

    def gone_in_answer(self, rng):
        prompt = self.any_prompt(rng)
        body = prompt.body(stream=True, max_tokens=200)
        sock = connect(self.address, TIMEOUT_S)
        try:
            sock.sendall(request_bytes(self.address, 'POST', prompt.path, body))
            reader = Reader(sock)
            status, _ = reader.head()
            for _ in range(rng.randrange(1, 4) if status == 200 else 0):
                reader.line()
        finally:
            close(sock, rng.random() < 0.5)
        self.count('gone in the answer')

    def garbage(self, rng):
        body = self.prompts[10].body()
        chat = '/v1/chat/completions'
        host = f'Host: {self.address[0]}:{self.address[1]}\r\n'
        request = lambda *given, **more: request_bytes(self.address, *given, **more)
        cases = [
            ('noise', rng.randbytes(rng.randrange(1, 2000)) + b'\r\n\r\n'),
            ('no HTTP', b'HELLO\r\n\r\n'),
            ('bad version', b'GET / HTTP/9.9\r\n\r\n'),
            ('cut JSON', request('POST', chat, body[:rng.randrange(1, len(body))])),
            ('noise as JSON', request('POST', chat, rng.randbytes(300))),
            ('deep JSON', request('POST', chat, b'[' * 100000)),
            ('wrong type', request('POST', chat, b'{"messages": 5}')),
            ('unknown token', request('POST', '/v1/completions', b'{"prompt": [99999999]}')),
            ('wrong method', request('DELETE', chat)),
            ('no such path', request('GET', '/etc/passwd')),
            ('out of the page', request('GET', '/../../etc/passwd')),
            ('other host', f'GET /status HTTP/1.1\r\nHost: evil.example\r\n\r\n'.encode()),
            ('other origin', request('POST', chat, body, fields=(('Origin', 'http://evil.example'),))),
            ('too large', f'POST {chat} HTTP/1.1\r\n{host}Content-Length: 999999999999\r\n\r\n'.encode()),
            ('long header', request('GET', '/health', fields=(('X', 'x' * 70000),))),
            ('two lengths', f'POST {chat} HTTP/1.1\r\n{host}Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef'
             .encode()),
            ('too long a prompt', request('POST', '/v1/completions',
                                          json.dumps({'prompt': words(rng, 20000)}).encode())),
        ]
        kind, sent = rng.choice(cases)
        with connect(self.address, TIMEOUT_S) as sock:
            try:
                sock.sendall(sent)
                sock.shutdown(1)
            except OSError:
                pass  # it has answered already
            answer = Reader(sock).answer()
        why = why_unclean(answer)
        if why:
            return self.fail(f'garbage ({kind}): {why}')
        return self.count(f'garbage: {answer.status}')

    def looks(self, rng):
        path = rng.choice(('/status', '/metrics', '/health', '/v1/models', '/'))
        answer = exchange(self.address, 'GET', path)
        if answer.status != 200:
            return self.fail(f'GET {path}: {answer.status}')
        return self.count('looked')

    def client(self, number):
        rng = random.Random(self.options.seed * 1000 + number)
        kinds = [self.plain] * 4 + [self.streamed] * 4 + [self.slow] * 2 + [self.gone_in_prompt] * 2 + [
            self.gone_in_answer] * 2 + [self.garbage] * 4 + [
                self.looks, self.twice, self.half_closed, self.kept_alive]
        while time.monotonic() < self.ends_at:
            kind = rng.choice(kinds)
            began = time.monotonic()
            try:
                kind(rng)
            except (OSError, Broken, ValueError, KeyError) as error:
                self.fail(f'{kind.__name__}, after {time.monotonic() - began:.1f} s: {error!r}')
            with self.lock:
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            time.sleep(rng.random() * 0.3)

    # ---- The server

    def status(self):
        return exchange(self.address, 'GET', '/status').json()

    def rss_kib(self, which='VmRSS'):
        with open(f'/proc/{self.options.pid}/status', encoding='ascii') as status:
            return next(int(line.split()[1]) for line in status if line.startswith(which + ':'))

    def fds(self):
        """What is open: sockets and pipes by their kind, files by their name."""
        folder = f'/proc/{self.options.pid}/fd'
        found = collections.Counter()
        for fd in os.listdir(folder):
            try:
                found[os.readlink(f'{folder}/{fd}').split(':[')[0]] += 1
            except OSError:
                pass
        return found

    def watch(self, ended):
        while not ended.wait(0.2):
            self.peak_rss_kib = max(self.peak_rss_kib, self.rss_kib())
            self.most_fds = max(self.most_fds, sum(self.fds().values()))

    def settle(self):
        """Until nothing is under way; the work of those that are gone ends within a step."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            status = self.status()
            if not status['requests'] and not status['n_queued']:
                time.sleep(1)
                return self.status()
            time.sleep(0.5)
        self.fail(f"a minute later there are requests still: {status['requests']}")
        return status

    def check_left(self, fds_before):
        status = self.settle()
        fds = self.fds()
        # This connection's own is gone in a moment.
        until = time.monotonic() + 15
        while fds - fds_before and time.monotonic() < until:
            time.sleep(0.5)
            fds = self.fds()
        if fds - fds_before:
            self.fail(f'descriptors that were not there before: {dict(fds - fds_before)}')
        folder = self.options.sessions
        on_disk = {name[:-len('.session')] for name in os.listdir(folder) if name.endswith('.session')}
        listed = {session['name'] for session in status['sessions']}
        if on_disk != listed:
            self.fail(f'sessions on the disk but not listed: {on_disk - listed}; only listed: {listed - on_disk}')
        stray = [name for name in os.listdir(folder) if name.endswith(('.kv', '.rows'))
                 and name.rsplit('.', 2)[0] not in on_disk]
        if stray:
            self.fail(f'files without a session: {stray}')
        print(f'sessions: {len(listed)}, {sum(s["bytes"] for s in status["sessions"]) >> 20} MiB; '
              f'descriptors: {sum(fds.values())}, at most {self.most_fds}')

    # ---- All of it

    def ask_alone(self):
        for prompt in self.prompts:
            answer = exchange(self.address, 'POST', prompt.path, prompt.body(), timeout_s=TIMEOUT_S)
            if answer.status != 200:
                sys.exit(f'a prompt alone is refused: {answer.body!r}')
            prompt.expected = prompt.texts_of(answer, False)[0][0]

    def run(self):
        began = time.monotonic()
        self.ask_alone()
        print(f'{N_PROMPTS} prompts alone: {time.monotonic() - began:.0f} s', flush=True)
        self.settle()
        fds_before = self.fds()
        rss_before = self.rss_kib()
        peak_alone = self.rss_kib('VmHWM')
        ended = threading.Event()
        watcher = threading.Thread(target=self.watch, args=(ended,))
        watcher.start()
        self.ends_at = time.monotonic() + self.options.seconds
        clients = [threading.Thread(target=self.client, args=(i,)) for i in range(self.options.clients)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        ended.set()
        watcher.join()
        self.check_left(fds_before)
        for what, n in sorted(self.counts.items()):
            print(f'{n:6d} {what}')
        print(f'memory: {rss_before >> 10} MiB before, {peak_alone >> 10} at most for one client, '
              f'{self.peak_rss_kib >> 10} for all, '
              f'{self.rss_kib() >> 10} after; slowest: {self.slowest_s:.0f} s')
        if self.options.most_mib and self.peak_rss_kib >> 10 > self.options.most_mib:
            self.fail(f'the process took more than {self.options.most_mib} MiB')
        if not any(what.startswith('answered') for what in self.counts):
            self.fail('nothing was answered')
        print(f'{len(self.failures)} failures')
        return 1 if self.failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--port', type=int, required=True)
    parser.add_argument('--pid', type=int, required=True, help="the server's process")
    parser.add_argument('--sessions', required=True, help='the folder of its sessions')
    parser.add_argument('--clients', type=int, default=64)
    parser.add_argument('--seconds', type=float, default=300)
    parser.add_argument('--long-words', type=int, default=1500, help='of a long prompt; 1500 are about 2,000 tokens')
    parser.add_argument('--most-mib', type=int, default=0, help='that the process may take; 0: any')
    parser.add_argument('--loose', action='store_true',
                        help='with a budget for KV: what was kept may be selected from otherwise than what is new')
    parser.add_argument('--seed', type=int, default=1)
    sys.exit(Soak(parser.parse_args()).run())


if __name__ == '__main__':
    main()
