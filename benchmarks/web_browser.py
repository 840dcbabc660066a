"""Runs a race in a page of headless Chromium: serves the page's files, and receives its results."""

from __future__ import annotations

import subprocess
import threading
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
ENDED = "ended"
LIMIT_SECONDS = 600.0

ISOLATED = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
}
"""Headers with which a page's clock has a resolution of 5 microseconds, instead of 100."""


class Handler(SimpleHTTPRequestHandler):
    """HTTP server of a race: serves files of the race's folder, of benchmarks/ and of node_modules.

    The page uploads its results to the race's folder by PUT; a file named "ended" ends the race.
    """

    def __init__(
        self, *given: Any, folder: Path, packages: Path, ended: threading.Event, **named: Any
    ) -> None:
        self.folder, self.ended = folder, ended
        here = Path(__file__).parent
        self.roots = {"benchmarks": here, "packages": packages / "node_modules"}
        super().__init__(*given, **named)

    def translate_path(self, path: str) -> str:
        first, _, rest = path.split("?")[0].removeprefix("/").partition("/")
        root = self.roots.get(first)
        return str(root / rest if root else self.folder / first / rest)

    def end_headers(self) -> None:
        for name, value in ISOLATED.items():
            self.send_header(name, value)
        super().end_headers()

    def do_PUT(self) -> None:
        name = Path(self.path).name
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.folder.joinpath(name).write_bytes(body)
        self.send_response(HTTPStatus.NO_CONTENT)
        self.end_headers()
        if name == ENDED:
            self.ended.set()

    def log_message(self, *given: object) -> None:
        """Discard the log of requests."""


def race_in_page(folder: Path, packages: Path, browser: str) -> None:
    """Open the race's page in a browser, and wait until it has ended.

    The results are then in `folder`, in the file found.json.

    Raises:
        SystemExit: if the page fails, or does not end within ten minutes.
    """
    ended = threading.Event()
    handler = partial(Handler, folder=folder, packages=packages, ended=ended)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = f"http://127.0.0.1:{server.server_port}/benchmarks/web_page.html"
        command = [browser, *OPTIONS, f"--user-data-dir={folder}/browser", page]
        with folder.joinpath("log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                came = ended.wait(LIMIT_SECONDS)
            finally:
                process.kill()
                process.wait()
                server.shutdown()
    error = folder / "error.txt"
    if not came or error.exists():
        said = error if error.exists() else folder / "log"
        raise SystemExit(f"the page of the race: {said.read_text()[-2000:]}")
