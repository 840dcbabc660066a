"""A proxy between workers and the service, with the answers that a test sets."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, dict[str, str], bytes]

PAGE: Answer = (404, {"Content-Type": "text/html"}, b"<h1>404 Not Found</h1>")


class Proxy:
    """Passes requests on to the service, unless `instead` has an answer of its own for a path."""

    def __init__(self, upstream: str) -> None:
        self.instead: Callable[[str], Answer | None] = lambda path: None
        self.loses: Callable[[str, bytes], bool] = lambda path, answer: False
        self.answered: list[str] = []  # paths that the proxy answered without the service
        self.tokens: list[str | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.tokens.append(self.headers.get("Authorization"))
                answer = outer.instead(self.path)
                if answer is not None:
                    outer.answered.append(self.path)
                else:
                    answer = self._pass_on(body)
                    if outer.loses(self.path, answer[2]):
                        answer = PAGE
                status, headers, data = answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                with suppress(BrokenPipeError):  # a worker that ends waits for no answer
                    self.wfile.write(data)

            def _pass_on(self, body: bytes) -> Answer:
                kept = {n: self.headers[n] for n in ("Authorization", "Content-Type", "Range")}
                headers = {name: value for name, value in kept.items() if value}
                request = urllib.request.Request(
                    upstream + self.path, body or None, headers, method=self.command
                )
                try:
                    with urllib.request.urlopen(request, timeout=30) as answer:
                        return answer.status, dict(answer.headers.items()), answer.read()
                except urllib.error.HTTPError as error:
                    return error.code, {"Content-Type": error.headers["Content-Type"]}, error.read()
                except OSError:
                    return 502, {}, b""

            do_GET = do_POST = do_DELETE = _serve

            def log_message(self, format: str, *args: Any) -> None:
                """Prints nothing: the requests are kept."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
