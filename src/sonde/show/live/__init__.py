"""The report's page while runs are trained or watched: served to this machine only, and sent what changes.

The server listens on 127.0.0.1.  A request must have the token and name this host and port.  The second check stops
DNS rebinding: a foreign page whose name resolves to 127.0.0.1 sends another host.

A page is sent the whole state once, then patches, each under an id that a page can go on from.  A patch says how one
JSON value turns into the next, and is small where little changed:

    ["=", value]                       the value is this now
    ["+", n, rest]                     a list: the first n items stay, then the rest
    ["[", {index: patch}, n, rest]     the same, and some of the items that stay are patched
    ["{", {key: patch}, removed]       an object: patched or new keys, and those that are removed

`assets/live.js` applies them.
"""

import hmac
import json
import secrets
import socket
import sys
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sonde.core.errors import SondeError

MOST_PATCH_TEXT = 16_000_000  # characters of patches, for pages that come back

Patch = list[Any]


def patch(old: Any, new: Any) -> Patch | None:
    """What turns `old` into `new`; None where they are equal.  A tuple is a list."""
    if old == new:
        return None
    if isinstance(old, dict) and isinstance(new, dict):
        changed = {key: patch(old[key], value) if key in old else ["=", value] for key, value in new.items()}
        inside = {key: known for key, known in changed.items() if known is not None}
        return ["{", inside, [key for key in old if key not in new]]
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return _of_lists(old, new)
    return ["=", new]


def _of_lists(old: Any, new: Any) -> Patch:
    both = min(len(old), len(new))
    if not any(isinstance(one, dict | list | tuple) for one in (*old[:1], *new[:1])):
        same = next((index for index in range(both) if old[index] != new[index]), both)
        return ["+", same, list(new[same:])]
    changed = {index: patch(old[index], new[index]) for index in range(both)}
    inside = {index: known for index, known in changed.items() if known is not None}
    return ["[", inside, both, list(new[both:])]


# ── feed ────────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Sent:
    """One event of the stream."""

    id: str
    kind: str  # whole or patch
    text: str


class Feed:
    """The latest state of the page and the patches that led to it; every page reads at its own pace."""

    def __init__(self) -> None:
        self._life = secrets.token_hex(4)  # ids of an earlier server are not known
        self._version = 0
        self._state: dict[str, Any] = {}
        self._whole: Sent | None = None
        self._patches: deque[Sent] = deque()
        self._changed = threading.Condition()

    @property
    def begun(self) -> bool:
        """Whether a state was published."""
        return self._version > 0

    def publish(self, state: dict[str, Any]) -> bool:
        """Make this the state of the page, and wake the pages that wait; False where nothing changed."""
        change = patch(self._state, state)
        if change is None:
            return False
        text = _json(change)
        with self._changed:
            self._version += 1
            self._state, self._whole = state, None
            self._patches.append(Sent(self._id(self._version), "patch", text))
            while sum(len(known.text) for known in self._patches) > MOST_PATCH_TEXT:
                self._patches.popleft()
            self._changed.notify_all()
        return True

    def after(self, id: str | None, seconds: float) -> list[Sent]:
        """What a page that knows `id` has to be sent, as soon as there is something; nothing after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._version > 0 and id != self._id(self._version), seconds)
            if self._version == 0 or id == self._id(self._version):
                return []
            later = [known.id for known in self._patches]
            before = [self._id(self._version - len(later)), *later]
            missing = list(self._patches)[before.index(id) :] if id in before else None
            if missing is not None and sum(len(known.text) for known in missing) <= MOST_PATCH_TEXT // 4:
                return missing
            if self._whole is None:
                self._whole = Sent(self._id(self._version), "whole", _json(self._state))
            return [self._whole]

    def _id(self, version: int) -> str:
        return f"{self._life}-{version}"


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


HOST = "127.0.0.1"
KEEP_ALIVE = 5.0  # seconds without an event after which a stream sends a comment
PATIENCE = 10.0  # seconds in which a request has to be complete
UNREAD = 30.0  # seconds after which a page that does not read is disconnected
MOST_CONNECTIONS = 64
FULL = b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"
RETRY = 500  # milliseconds after which a page that lost the server reconnects

HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Server(ThreadingHTTPServer):
    """Listens at once, so that its address is known, and answers after `ready` was called."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, token: str) -> None:
        self.token = token
        self.page: str
        self.feed: Feed
        self._ready = threading.Event()
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            said = getattr(error, "strerror", None) or error
            raise SondeError(f"port {port} cannot be had ({said}): name another, or none for a free one") from None

    @property
    def url(self) -> str:
        """The address of the page, with the token."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    @property
    def hosts(self) -> tuple[str, str]:
        """The hosts that a request may name."""
        return f"{HOST}:{self.server_port}", f"localhost:{self.server_port}"

    def ready(self, page: str, feed: "Feed") -> None:
        """Start to answer requests with this page and this feed."""
        self.page, self.feed = page, feed
        self._ready.set()

    def wait(self) -> None:
        """Block until `ready` was called."""
        self._ready.wait()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle each connection in a thread, up to a limit; further ones get status 503."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with suppress(OSError):
            request.sendall(FULL)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle one connection, then let another one in."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore pages that were closed or do not read; report everything else."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "sonde", ""

    def handle(self) -> None:
        """Handle one request; close the connection if the request is not complete in time."""
        self.patience = threading.Timer(PATIENCE, self._hang_up)
        self.patience.daemon = True
        self.patience.start()
        try:
            super().handle()
        finally:
            self.patience.cancel()

    def _hang_up(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        self.patience.cancel()
        self.connection.settimeout(UNREAD)
        token, _, rest = self.path.partition("?")[0].removeprefix("/").partition("/")
        if self.headers.get("Host", "") not in self.server.hosts:
            self._say(HTTPStatus.FORBIDDEN, f"ask for {self.server.hosts[0]}")
        elif not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self._say(HTTPStatus.FORBIDDEN, "open the whole address that `sonde live` printed: it ends in a token")
        elif rest == "" and self.path.partition("?")[0].endswith("/"):
            self.server.wait()
            self._send(HTTPStatus.OK, "text/html", self.server.page)
        elif rest == "events":
            self.server.wait()
            self._stream()
        else:
            self._say(HTTPStatus.NOT_FOUND, "nothing is here: the address ends in a slash after the token")

    def _stream(self) -> None:
        """Send what changes until the page is closed; a page that reconnects names the last event it has."""
        known = self.headers.get("Last-Event-ID")
        self._head(HTTPStatus.OK, "text/event-stream")
        self._write(f"retry: {RETRY}\n\n")
        while True:
            for sent in self.server.feed.after(known, KEEP_ALIVE):
                known = sent.id
                self._write(f"id: {sent.id}\nevent: {sent.kind}\ndata: {sent.text}\n\n")
            self._write(":\n\n")

    def _write(self, text: str) -> None:
        self.wfile.write(text.encode())
        self.wfile.flush()

    def _say(self, status: HTTPStatus, text: str) -> None:
        self._send(status, "text/plain", f"sonde live: {text}\n")

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        self._head(status, kind, len(text.encode()))
        self._write(text)

    def _head(self, status: HTTPStatus, kind: str, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass
