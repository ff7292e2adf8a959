"""A client of the API that sends each request to any running server, until one answers it."""

import asyncio
import json
import random
import time

REQUEST_TIMEOUT = 30
RETRY_DELAY = 0.2
# The server that handled the request was killed, the database is away, or too much is going on.
REPEATED_STATUSES = {409, 425, 429, 502, 503, 504}


# The server was killed or stopped meanwhile.
LOST = (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError, ValueError)


class GaveUp(Exception):
    """A request was not answered in time."""


class Client:
    def __init__(self, lab):
        self.lab = lab

    async def send(self, server, method, path, body=None, headers=()):
        """Opens a connection and sends a request."""
        reader, writer = await asyncio.open_connection(*server.address)
        data = b"" if body is None else json.dumps(body).encode()
        lines = [
            f"{method} /api/v1{path} HTTP/1.1",
            f"Host: {server.address[0]}:{server.address[1]}",
            f"Authorization: Bearer {self.lab.secret}",
            "Connection: close",
            "Content-Type: application/json",
            f"Content-Length: {len(data)}",
            *[f"{name}: {value}" for name, value in headers],
        ]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        await writer.drain()
        return reader, writer

    async def once(self, server, method, path, body=None, headers=()):
        """Sends a request to one server, and returns status and body."""
        reader, writer = await self.send(server, method, path, body, headers)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            status = int(head.split(" ")[1])
            rest = await reader.read()
        finally:
            writer.close()
        if "transfer-encoding: chunked" in head.lower():
            rest = dechunk(rest)
        return status, rest

    async def request(self, method, path, body=None, key=None, patience=120):
        """Sends a request until a server answers it. A key makes it safe to repeat."""
        headers = [("Idempotency-Key", key)] if key else []
        deadline = time.monotonic() + patience
        last = None
        while time.monotonic() < deadline:
            server = random.choice(self.lab.servers or [None])
            try:
                if server is not None:
                    sent = self.once(server, method, path, body, headers)
                    status, text = await asyncio.wait_for(sent, REQUEST_TIMEOUT)
                    if status not in REPEATED_STATUSES:
                        return status, json.loads(text or b"null")
                    last = (status, text)
            except LOST as error:
                last = error
            await asyncio.sleep(RETRY_DELAY * (1 + random.random()))
        raise GaveUp(f"{method} {path}: {last}")

    async def create_session(self, key):
        status, body = await self.request("POST", "/sessions", {}, key)
        assert status == 201, (status, body)
        return body["id"]

    async def send_message(self, session, text, key):
        """Sends a message, and returns its number when a server has acknowledged it."""
        path = f"/sessions/{session}/messages"
        status, body = await self.request("POST", path, {"text": text}, key)
        assert status == 202, (status, body)
        return body["number"]

    async def answer(self, session, number, patience=180):
        """Waits until the turn of a message has ended, and returns the message."""
        deadline = time.monotonic() + patience
        path = f"/sessions/{session}/messages/{number}?wait_ms=2000"
        while time.monotonic() < deadline:
            status, message = await self.request("GET", path)
            assert status == 200, (session, number, status, message)
            if message["state"] not in ("queued", "claimed"):
                return message
        raise GaveUp(f"message {number} of {session} is not answered")

    async def stored_events(self, session):
        """Returns the stored events of a session with their numbers."""
        path = f"/sessions/{session}/events?follow=false"
        for _ in range(20):
            try:
                server = random.choice(self.lab.servers)
                status, text = await asyncio.wait_for(self.once(server, "GET", path), 60)
            except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
                status = 0
            if status == 200:
                return list(parse_events(text.decode()))
            await asyncio.sleep(RETRY_DELAY)
        raise GaveUp(f"events of {session}")


def parse_events(text):
    for block in text.split("\n\n"):
        number, data = None, None
        for line in block.splitlines():
            if line.startswith("id:"):
                number = int(line[3:])
            elif line.startswith("data:"):
                data = json.loads(line[5:])
        if data is not None:
            yield number, data


def dechunk(data):
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        size = int(size or b"0", 16)
        if size == 0:
            return body
        body, data = body + data[:size], data[size + 2 :]
    raise ValueError("the response is incomplete")


class Follower:
    """Follows the events of a session at changing servers with `Last-Event-ID`."""

    def __init__(self, client, session):
        self.client, self.session = client, session
        self.last = 0
        self.problems = []
        self.connections = 0

    async def run(self):
        while True:
            try:
                await self.follow_once()
            except (OSError, asyncio.IncompleteReadError, ValueError):
                pass
            await asyncio.sleep(RETRY_DELAY)

    async def follow_once(self):
        server = random.choice(self.client.lab.servers)
        path = f"/sessions/{self.session}/events"
        headers = [("Last-Event-ID", str(self.last))]
        reader, writer = await self.client.send(server, "GET", path, None, headers)
        self.connections += 1
        # A stopped or partitioned server would keep the stream open for ever.
        deadline = time.monotonic() + random.uniform(3, 15)
        try:
            number = None
            while (left := deadline - time.monotonic()) > 0:
                try:
                    line = await asyncio.wait_for(reader.readline(), left)
                except asyncio.TimeoutError:
                    return
                if not line:
                    return
                if line.startswith(b"id:"):
                    number = int(line[3:])
                elif line.startswith(b"data:") and number is not None:
                    if number != self.last + 1:
                        self.problems.append(f"{self.session}: {number} after {self.last}")
                    self.last, number = number, None
        finally:
            writer.close()
