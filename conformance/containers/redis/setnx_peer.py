"""A program that locks with redis-py's Lock, for tests of the format setnx.

    setnx_peer.py PORT

It serves lines on the port: each is a JSON list, a command and its arguments, and is answered by
one line of JSON. A connection has its own locks, and "work" lasts until the connection ends.
"""

import json
import socket
import socketserver
import sys
import threading
import time

import redis
from redis.exceptions import LockError


class Session(socketserver.StreamRequestHandler):
    def handle(self):
        self.locks, self.client, self.stop = {}, None, threading.Event()
        self.answer("redis-py " + redis.__version__)
        for line in self.rfile:
            command, *args = json.loads(line)
            try:
                self.answer(getattr(self, "do_" + command)(*args))
            except LockError as e:
                self.answer(type(e).__name__)
        self.stop.set()

    def answer(self, value):
        self.wfile.write(json.dumps(value).encode() + b"\n")

    def do_connect(self, host, port):
        self.client = redis.Redis(host=host, port=port)
        return self.client.ping()

    def do_acquire(self, key, seconds):
        lock = self.locks[key] = self.client.lock(key, timeout=seconds)
        return lock.acquire(blocking=False)

    def do_wait(self, key, seconds):
        lock = self.locks[key] = self.client.lock(key, timeout=seconds, sleep=0.02)
        return lock.acquire(blocking_timeout=30)

    def do_locked(self, key):
        return bool(self.client.lock(key).locked())

    def do_owned(self, key):
        return bool(self.locks[key].owned())

    def do_token(self, key):
        return self.locks[key].local.token.decode()

    def do_extend(self, key, seconds):
        return bool(self.locks[key].extend(seconds, replace_ttl=True))

    def do_release(self, key):
        self.locks[key].release()
        return True

    def do_work(self, who, seconds, recorder, *keys):
        """Takes turns on each key until the connection ends, and reports each to the recorder."""
        for key in keys:
            threading.Thread(target=self.turns, args=(who, seconds, recorder, key), daemon=True).start()
        return True

    def turns(self, who, seconds, recorder, key):
        host, port = recorder.rsplit(":", 1)
        record = socket.create_connection((host, int(port)))
        lines = record.makefile("r")
        lock = self.client.lock(key, timeout=seconds, sleep=0.02)
        while not self.stop.is_set():
            asked = time.monotonic()
            if not lock.acquire(blocking_timeout=1):
                continue
            asked = max(asked, time.monotonic() - 1)
            if time.monotonic() - asked < seconds / 2 and lock.owned():
                record.sendall(f"in {who} {key}\n".encode())
                lines.readline()
                time.sleep(0.003)
                record.sendall(f"out {who} {key}\n".encode())
                lines.readline()
            try:
                lock.release()
            except LockError:
                pass


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address, daemon_threads = True, True


Server(("127.0.0.1", int(sys.argv[1])), Session).serve_forever()
