"""An HTTP server on loopback that hands requests on to another, except for those it spoils."""

import contextlib
import http.client
import random
import socket
import struct
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

FAULTS = ("reset", "lost", "half", "503", "500", "429")
CODES = {"503": "SlowDown", "500": "InternalError", "429": "TooManyRequests"}
HOP_BY_HOP = {"connection", "transfer-encoding", "keep-alive", "content-length"}


class FaultyProxy:
    """Spoils a part of the requests, chosen by a seeded generator.

    reset: the connection breaks before the request is handed on; lost: after it was carried out; half: in the middle
    of the answer; a number: that status instead of an answer.
    """

    def __init__(self, target: str, part: float, seed: int = 0) -> None:
        self.target, self.part = urlsplit(target), part
        self.chance, self.lock = random.Random(seed), threading.Lock()
        self.requests, self.spoiled = 0, Counter[str]()
        handler = type("Handler", (_Handler,), {"proxy": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> "FaultyProxy":
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def fate(self) -> str | None:
        """What becomes of the next request."""
        with self.lock:
            self.requests += 1
            if self.chance.random() >= self.part:
                return None
            fault = self.chance.choice(FAULTS)
            self.spoiled[fault] += 1
            return fault


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultyProxy

    def handle_one(self) -> None:
        body = self._body()
        fate = self.proxy.fate()
        if fate == "reset":
            self._break()
        elif fate in CODES:
            text = f"<Error><Code>{CODES[fate]}</Code><Message>Try again.</Message></Error>".encode()
            self._answer(int(fate), [], b"" if self.command == "HEAD" else text, len(text))
        else:
            self._hand_on(body, fate)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_one

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _hand_on(self, body: bytes, fate: str | None) -> None:
        to = http.client.HTTPConnection(self.proxy.target.hostname or "", self.proxy.target.port, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
        headers.pop("Expect", None)
        to.request(self.command, self.path, body, headers | {"Content-Length": str(len(body))})
        answer = to.getresponse()
        content = answer.read()
        length = int(answer.headers.get("Content-Length") or len(content))
        to.close()
        if fate == "lost":
            self._break()
        elif fate == "half":
            self._answer(answer.status, answer.getheaders(), content[: len(content) // 2], length)
            self._break()
        else:
            self._answer(answer.status, answer.getheaders(), content, length)

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes, length: int) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def _break(self) -> None:
        """End the connection as a machine that went away would: with a reset."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, *_: Any) -> None:
        pass
