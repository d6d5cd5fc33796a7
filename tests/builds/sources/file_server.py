"""A small web server for tests: ranges, truncation, redirects, logins."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote


@dataclass
class Reply:
    """What the server does when an address is asked for."""

    body: bytes = b""
    kind: str = "application/octet-stream"
    status: int = 200
    tag: str = ""
    """ETag; with one, ranges are served."""
    cuts: list[int] = field(default_factory=list)
    """For each request in turn: how many bytes to send before hanging up. Used up, then whole."""
    length: bool = True
    """Say how long it is; without, the body is sent in chunks."""
    location: str = ""
    login: str = ""
    """`user:password` that is needed."""


class FileServer:
    """Replies by path, and every request that came."""

    def __init__(self) -> None:
        self.replies: dict[str, Reply] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.address = ""

    def asked(self, path: str) -> list[dict[str, str]]:
        """Headers of the requests for a path."""
        return [headers for asked, headers in self.requests if asked == path]


@contextmanager
def served() -> Iterator[FileServer]:
    """A server on a free port of this machine."""
    server = FileServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(self.path.partition("?")[0])
            headers = {name.lower(): value for name, value in self.headers.items()}
            server.requests.append((path, headers))
            reply = server.replies.get(path, Reply(status=404))
            if reply.login:
                wanted = "Basic " + base64.b64encode(reply.login.encode()).decode()
                if headers.get("authorization") != wanted:
                    reply = Reply(status=401)
            self._answer(reply, headers)

        def _answer(self, reply: Reply, headers: dict[str, str]) -> None:
            body, status, first = reply.body, reply.status, 0
            asked = headers.get("range", "")
            if reply.tag and asked and headers.get("if-range") == reply.tag:
                first = int(asked.removeprefix("bytes=").rstrip("-"))
                body = body[first:]
                status = 206 if body else 416
            self.send_response(status)
            self.send_header("Content-Type", reply.kind)
            if reply.location:
                self.send_header("Location", reply.location)
            if reply.tag:
                self.send_header("ETag", reply.tag)
            if status == 206:
                last = first + len(body) - 1
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(reply.body)}")
            if reply.length:
                self.send_header("Content-Length", str(len(body)))
            else:
                self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            cut = reply.cuts.pop(0) if reply.cuts else None
            sent = body[:cut]
            if reply.length:
                self.wfile.write(sent)
            else:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(sent), sent) if sent else b"")
                self.wfile.write(b"" if cut is not None else b"0\r\n\r\n")
            if cut is not None:
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
            """Say nothing."""

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.daemon_threads = True
    server.address = f"http://127.0.0.1:{listener.server_address[1]}"
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()
