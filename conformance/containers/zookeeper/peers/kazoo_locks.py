"""Locks with kazoo for tests that are written in Go.

It listens on the port that is its argument. Each connection is a client of kazoo with a session of
its own. Its first line has the address of the server and the session timeout in ms; the end of the
connection closes the client. Each further line is a call with the path of a lock, and is answered
with a line: "ok", "held", what was asked for, or the error.
"""

import json
import socketserver
import sys

from kazoo.client import KazooClient
from kazoo.version import __version__


class Client(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self):
        hello = self.rfile.readline().decode().split()
        if not hello:
            return
        if hello == ["version"]:
            self.answer("kazoo " + __version__)
            return
        self.client = KazooClient(hosts=hello[0], timeout=int(hello[1]) / 1000)
        self.client.start()
        self.answer("ok")
        self.locks = {}
        try:
            for line in self.rfile:
                try:
                    self.answer(self.call(*line.decode().rstrip("\n").split(" ", 1)))
                except Exception as e:
                    self.answer(repr(e).replace("\n", " "))
        finally:
            self.client.stop()
            self.client.close()

    def call(self, what, path):
        kind, _, verb = what.rpartition("-")
        make = {"": self.client.Lock, "read": self.client.ReadLock, "write": self.client.WriteLock}[kind]
        if verb == "contenders":
            return json.dumps(make(path).contenders())
        if verb == "unlock":
            self.locks.pop((kind, path)).release()
            return "ok"
        lock = make(path, "kazoo at work")
        if not lock.acquire(blocking=verb == "lock"):
            return "held"
        self.locks[kind, path] = lock
        return "ok"

    def answer(self, line):
        self.wfile.write((line + "\n").encode())


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


if __name__ == "__main__":
    with Server(("127.0.0.1", int(sys.argv[1])), Client) as server:
        server.serve_forever()
