"""The application of the tests of routes and policies: servers and a client that count.

    app.py serve NAME [CERTIFICATE]
    app.py load URL COUNT [--connections N] [--until FILE] [--host NAME]
    app.py connect HOST PORT COUNT

A server answers HTTP on the ports 8080, 8081 and 8082 with its name as body, with a certificate
also over TLS on 8443, and writes its name to each TCP connection to 9000. On 127.0.0.1:8000 a test
controls it: /records, /reset, /fail, /heal.
"""

import argparse
import asyncio
import collections
import http.client
import itertools
import json
import os
import socket
import ssl
import threading
import time
import urllib.parse

HTTP_PORTS = (8080, 8081, 8082)
WINDOW = 500


class Server:
    def __init__(self, name):
        self.name = name
        self.fails = False
        self.reset()

    def reset(self):
        self.requests = collections.Counter()
        self.hosts = collections.Counter()
        self.attempts = collections.Counter()
        self.statuses = collections.Counter()
        # When requests came, by a monotonic clock: what a circuit breaker lets through is little.
        self.times = []
        self.connections = 0
        self.server_names = collections.Counter()

    def records(self):
        return {
            "requests": self.requests,
            "hosts": self.hosts,
            "statuses": self.statuses,
            "times": self.times[:100],
            "connections": self.connections,
            "server_names": self.server_names,
        }

    def respond(self, path, headers):
        self.requests[path] += 1
        self.hosts[headers.get("host", "")] += 1
        self.times.append(time.monotonic())
        status, body = 200, self.name
        if self.fails:
            status = 503
        elif path == "/half":
            # Of 16 numbers in a row, half fail at each attempt, whatever became of the others.
            number = int(headers.get("x-number", "0"))
            if not number >> self.attempts[number] & 1:
                status = 503
            self.attempts[number] += 1
        elif path == "/headers":
            body = json.dumps(headers)
        self.statuses[status] += 1
        return status, body

    def control(self, path, headers):
        match path:
            case "/reset":
                self.reset()
            case "/fail":
                self.fails = True
            case "/heal":
                self.fails = False
        return 200, json.dumps(self.records())

    def http(self, respond):
        async def serve(reader, writer):
            try:
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    request, *fields = head.decode().split("\r\n")
                    fields = (field.split(": ", 1) for field in fields if field)
                    headers = {name.lower(): value for name, value in fields}
                    path = request.split(" ")[1]
                    if path == "/slow":
                        await asyncio.sleep(3)
                    status, body = respond(path, headers)
                    lines = f"HTTP/1.1 {status} -\r\ncontent-length: {len(body)}\r\n"
                    writer.write(f"{lines}x-server: {self.name}\r\n\r\n{body}".encode())
                    await writer.drain()
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()

        return serve

    async def tcp(self, reader, writer):
        self.connections += 1
        writer.write(f"{self.name}\n".encode())
        writer.close()

    async def run(self, certificate):
        for port in HTTP_PORTS:
            await asyncio.start_server(self.http(self.respond), None, port, backlog=1024)
        await asyncio.start_server(self.tcp, None, 9000, backlog=1024)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(f"{certificate}/tls.crt", f"{certificate}/tls.key")

            def note(_socket, name, _context):
                self.server_names[name or ""] += 1

            context.sni_callback = note
            await asyncio.start_server(self.http(self.respond), None, 8443, ssl=context)
        control = await asyncio.start_server(self.http(self.control), "127.0.0.1", 8000)
        await control.serve_forever()


class Load:
    def __init__(self, options):
        self.url = urllib.parse.urlsplit(options.url)
        self.options = options
        self.numbers = itertools.count()
        self.outcomes = collections.Counter()
        self.servers = []

    def goes_on(self, number):
        until = self.options.until
        return not os.path.exists(until) if until else number < self.options.count

    def connection(self):
        connection = http.client.HTTPConnection(self.url.hostname, self.url.port or 80, timeout=30)
        while self.goes_on(number := next(self.numbers)):
            try:
                headers = {"x-number": str(number), "host": self.options.host or self.url.hostname}
                connection.request("GET", self.url.path, headers=headers)
                response = connection.getresponse()
                response.read()
                self.outcomes[str(response.status)] += 1
                self.servers.append(response.headers.get("x-server", ""))
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self.outcomes[repr(error)] += 1
            if self.options.until:
                time.sleep(0.05)

    def run(self):
        start = time.monotonic()
        number = self.options.connections
        threads = [threading.Thread(target=self.connection) for _ in range(number)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        windows = range(0, len(self.servers) - WINDOW + 1, WINDOW)
        count = collections.Counter
        report = {
            "outcomes": self.outcomes,
            "servers": count(self.servers),
            "windows": [count(self.servers[at : at + WINDOW]) for at in windows],
            "seconds": time.monotonic() - start,
        }
        print(json.dumps(report))


def connect(options):
    answers = collections.Counter()
    for _ in range(options.count):
        try:
            with socket.create_connection((options.host, options.port), timeout=30) as connection:
                answers[connection.makefile().readline().strip()] += 1
        except OSError as error:
            answers[repr(error)] += 1
    print(json.dumps(answers))


parser = argparse.ArgumentParser()
commands = parser.add_subparsers(required=True)
command = commands.add_parser("serve")
command.add_argument("name")
command.add_argument("certificate", nargs="?")
command.set_defaults(run=lambda options: asyncio.run(Server(options.name).run(options.certificate)))
command = commands.add_parser("load")
command.add_argument("url")
command.add_argument("count", type=int)
command.add_argument("--connections", type=int, default=4)
command.add_argument("--until")
command.add_argument("--host")
command.set_defaults(run=lambda options: Load(options).run())
command = commands.add_parser("connect")
command.add_argument("host")
command.add_argument("port", type=int)
command.add_argument("count", type=int)
command.set_defaults(run=connect)
options = parser.parse_args()
options.run(options)
