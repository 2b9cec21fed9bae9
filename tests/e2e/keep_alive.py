"""Clients with keep-alive connections, like browsers, proxies and gRPC, and the outcome of each request.

usage: keep_alive.py HOST SECONDS

Clients use HTTP/1 on port 80, and HTTP/2 with prior knowledge on port 81. Some send 20 requests per second, some one in six seconds, some
use a new connection for each. A closed idle connection is detected before it is used. Prints one JSON object: for each kind of client the responses, and

  new       the first request of a connection failed
  used      a request on a used connection got an error response
  closed    a request on a used connection got no response; without a mesh this happens when the server closes the connection while the request is in flight
"""

import json
import select
import socket
import sys
import threading
import time

HOST, SECONDS = sys.argv[1], float(sys.argv[2])
END = time.monotonic() + SECONDS


class Closed(Exception):
    """No response, not even a part of one."""


class Http1:
    PORT = 80

    def __init__(self):
        self.tcp = socket.create_connection((HOST, self.PORT), timeout=10)
        self.used = False
        self.may_be_used = True

    def is_open(self):
        return self.may_be_used and not select.select([self.tcp], [], [], 0)[0]

    def get(self):
        try:
            self.tcp.sendall(b"GET / HTTP/1.1\r\nhost: web\r\n\r\n")
            data = self.tcp.recv(65536)
        except (ConnectionError, TimeoutError):
            raise Closed from None
        if not data:
            raise Closed
        while b"\r\n\r\n" not in data:
            data += self.more()
        head, body = data.split(b"\r\n\r\n", 1)
        fields = head.decode().lower().split("\r\n")
        length = next(int(f.split(":")[1]) for f in fields if f.startswith("content-length:"))
        while len(body) < length:
            body += self.more()
        self.may_be_used = "connection: close" not in fields
        return int(fields[0].split(" ")[1])

    def more(self):
        data = self.tcp.recv(65536)
        if not data:
            raise ConnectionError("closed within a response")
        return data


class Http2:
    PORT = 81
    # GET, http, "/", and the authority "web".
    FIELDS = b"\x82\x86\x84\x41\x03web"

    def __init__(self):
        self.tcp = socket.create_connection((HOST, self.PORT), timeout=10)
        self.tcp.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + self.frame(4, 0, 0, b""))
        self.input = b""
        self.stream = 1
        self.may_be_used = True
        self.used = False

    @staticmethod
    def frame(kind, flags, stream, payload):
        return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload

    def read(self):
        """The next frame: kind, flags, stream, payload."""
        while len(self.input) < 9 or len(self.input) < 9 + int.from_bytes(self.input[:3], "big"):
            data = self.tcp.recv(65536)
            if not data:
                raise Closed
            self.input += data
        length = int.from_bytes(self.input[:3], "big")
        kind, flags = self.input[3], self.input[4]
        stream = int.from_bytes(self.input[5:9], "big") & 0x7FFFFFFF
        payload, self.input = self.input[9 : 9 + length], self.input[9 + length :]
        if kind == 4 and not flags & 1:
            self.tcp.sendall(self.frame(4, 1, 0, b""))
        if kind == 6 and not flags & 1:
            self.tcp.sendall(self.frame(6, 1, 0, payload))
        if kind == 7:
            self.may_be_used = False
            if int.from_bytes(payload[:4], "big") & 0x7FFFFFFF < self.stream:
                raise Closed
        if kind == 3 and stream == self.stream:
            raise Closed
        return kind, flags, stream, payload

    def is_open(self):
        try:
            while self.may_be_used and (self.input or select.select([self.tcp], [], [], 0)[0]):
                self.read()
        except (Closed, ConnectionError, TimeoutError):
            return False
        return self.may_be_used

    def get(self):
        status = 0
        try:
            self.tcp.sendall(self.frame(1, 5, self.stream, self.FIELDS))
            while True:
                kind, flags, stream, payload = self.read()
                if stream == self.stream and kind == 1 and not status:
                    # Indexed `:status` fields of the static table; other encodings count as 599.
                    status = {0x88: 200, 0x8E: 500}.get(payload[0], 599)
                if stream == self.stream and kind in (0, 1) and flags & 1:
                    self.stream += 2
                    return status
        except (ConnectionError, TimeoutError):
            raise Closed from None


def client(kind, pause, keeps, counts):
    connection = None
    while time.monotonic() < END:
        if connection and not (keeps and connection.is_open()):
            connection.tcp.close()
            connection = None
        try:
            if not connection:
                connection = kind()
            status = connection.get()
        except (OSError, Closed) as error:
            which = "closed" if connection and connection.used else "new"
            counts[which] += 1
            counts["why"].append(f"{time.time():.3f} {which} {error!r}")
            if connection:
                connection.tcp.close()
            connection = None
            time.sleep(0.1)
            continue
        if status == 200:
            counts["answered"] += 1
        else:
            which = "used" if connection.used else "new"
            counts[which] += 1
            counts["why"].append(f"{time.time():.3f} {which} {status}")
        connection.used = True
        time.sleep(pause)


KINDS = {
    "http/1 often": (Http1, 0.05, True, 8),
    "http/1 seldom": (Http1, 6, True, 12),
    "http/1 new": (Http1, 0.1, False, 2),
    "http/2 often": (Http2, 0.05, True, 8),
    "http/2 seldom": (Http2, 6, True, 12),
    "http/2 new": (Http2, 0.1, False, 2),
}

all_counts = {}
threads = []
for name, (kind, pause, keeps, number) in KINDS.items():
    counts = all_counts[name] = {"answered": 0, "new": 0, "used": 0, "closed": 0, "why": []}
    for _ in range(number):
        threads.append(threading.Thread(target=client, args=(kind, pause, keeps, counts)))
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for counts in all_counts.values():
    counts["why"] = counts["why"][:5]
print(json.dumps(all_counts))
