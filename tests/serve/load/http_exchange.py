"""HTTP/1.1 by hand, as slow, rude or broken as a test wants it to be."""
import json
import socket
import struct


class Broken(Exception):
    """What came is no answer, or none came."""


class Answer:
    def __init__(self, status, fields, body):
        self.status = status
        self.fields = fields
        self.body = body

    def json(self):
        return json.loads(self.body)


def connect(address, timeout_s, receive_bytes=0):
    sock = socket.socket()
    if receive_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.settimeout(timeout_s)
    try:
        sock.connect(address)
    except OSError:
        sock.close()
        raise
    return sock


def close(sock, with_reset):
    if with_reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    sock.close()


def request_bytes(address, method, path, body=b'', fields=(), keep=False):
    lines = [f'{method} {path} HTTP/1.1', f'Host: {address[0]}:{address[1]}']
    lines += [f'{name}: {value}' for name, value in fields]
    if body:
        lines += ['Content-Type: application/json', f'Content-Length: {len(body)}']
    if not keep:
        lines.append('Connection: close')
    return ('\r\n'.join(lines) + '\r\n\r\n').encode() + body


class Reader:
    """Of one connection. `pause`: called before each receive; `step_bytes`: that it takes at most."""

    def __init__(self, sock, step_bytes=65536, pause=None):
        self.sock = sock
        self.step_bytes = step_bytes
        self.pause = pause
        self.pending = b''

    def more(self):
        if self.pause:
            self.pause()
        got = self.sock.recv(self.step_bytes)
        self.pending += got
        return bool(got)

    def line(self):
        while b'\n' not in self.pending:
            if len(self.pending) > 65536 or not self.more():
                raise Broken(f'no line: {self.pending[:100]!r}')
        line, _, self.pending = self.pending.partition(b'\n')
        return line.rstrip(b'\r')

    def exactly(self, n_bytes):
        while len(self.pending) < n_bytes:
            if not self.more():
                raise Broken('the end came too soon')
        taken, self.pending = self.pending[:n_bytes], self.pending[n_bytes:]
        return taken

    def head(self):
        while True:
            parts = self.line().split(b' ', 2)
            if len(parts) < 2 or not parts[0].startswith(b'HTTP/1.') or not parts[1].isdigit():
                raise Broken(f'no status line: {parts!r}')
            fields = {}
            while line := self.line():
                name, _, value = line.partition(b':')
                fields[name.decode().lower()] = value.strip().decode()
            if parts[1] != b'100':
                return int(parts[1]), fields

    def chunks(self):
        while n_bytes := int(self.line(), 16):
            yield self.exactly(n_bytes)
            self.line()
        self.line()

    def answer(self, of_head=False):
        status, fields = self.head()
        if of_head or status in (204, 304):
            return Answer(status, fields, b'')
        if fields.get('transfer-encoding') == 'chunked':
            return Answer(status, fields, b''.join(self.chunks()))
        if 'content-length' not in fields:
            raise Broken('neither a length nor chunks')
        return Answer(status, fields, self.exactly(int(fields['content-length'])))


def events(body):
    """The data of server-sent events."""
    return [line[6:] for line in body.decode().split('\n') if line.startswith('data: ')]


def exchange(address, method, path, body=b'', fields=(), timeout_s=60):
    with connect(address, timeout_s) as sock:
        sock.sendall(request_bytes(address, method, path, body, fields))
        return Reader(sock).answer(method == 'HEAD')


def why_unclean(answer):
    """Why a refusal is not what a client can work with; '' where it is."""
    if not (400 <= answer.status < 500 or answer.status == 503):
        return f'status {answer.status}: {answer.body[:300]!r}'
    if answer.status == 503 and 'retry-after' not in answer.fields:
        return '503 without Retry-After'
    try:
        message = answer.json()['error']['message']
    except (ValueError, KeyError, TypeError):
        return f'{answer.status} is not in the form of an error: {answer.body[:300]!r}'
    return '' if message else f'{answer.status} says nothing'
