"""Threads of modules of WebAssembly in pages of Chromium, isolated from others and not."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
LIMIT_SECONDS = 240.0

pytestmark = pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("ziglang") is None,
    reason="modules are linked by zig and run in Chromium",
)

RUN = """\
import {load} from "./vit.mjs";
const pixels = Float32Array.from({length: 2 * 3 * 32 * 32}, (_, i) => Math.sin(i));
export async function run() {
  const found = [];
  for (const threads of [1, 2]) {
    try {
      const model = await load(undefined, {threads});
      const results = [1, 2, 3].map(() => Object.values(model.run({pixels}, {batch: 2}))[0].join());
      found.push([model.threads, ...new Set(results)]);
      model.close();
    } catch (error) {
      found.push(error.message);
    }
  }
  return [crossOriginIsolated, ...found];
}
"""
WORKER = 'import {run} from "./run.mjs";\npostMessage(await run());\n'
PAGE = """\
<!doctype html><link rel="icon" href="data:,"><script type="module">
import {run} from "./run.mjs";
const inWorker = () => new Promise((resolve) => {
  const worker = new Worker("./worker.mjs", {type: "module"});
  worker.onmessage = ({data}) => resolve(data);
  worker.onerror = () => resolve("no worker");
});
const said = JSON.stringify([await run(), await inWorker()]);
const next = await (await fetch("said", {method: "POST", body: said})).text();
if (next) location = `/${next}/page.html`;
</script>
"""

ISOLATED = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
}
PLACES = ("isolated", "scripts-not", "plain")
"""Folders served with these headers, without them for scripts of threads, and without them."""


class Handler(SimpleHTTPRequestHandler):
    """The same files in each place, and the messages of their pages."""

    def __init__(self, *given: Any, said: Queue[Any], **named: Any) -> None:
        self.said = said
        super().__init__(*given, **named)

    @property
    def place(self) -> str:
        return self.path.split("/")[1]

    def translate_path(self, path: str) -> str:
        return super().translate_path(path.removeprefix(f"/{self.place}"))

    def end_headers(self) -> None:
        of_threads = self.path.endswith("-thread.mjs")
        if self.place == "isolated" or (self.place == "scripts-not" and not of_threads):
            for name, value in ISOLATED.items():
                self.send_header(name, value)
        super().end_headers()

    def do_POST(self) -> None:
        self.said.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(dict(pairwise((*PLACES, ""))).get(self.place, "").encode())

    def log_message(self, *given: object) -> None:
        """Nothing."""


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, Queue[Any]]]:
    """The URL of a folder, and the messages of its pages."""
    said = Queue[Any]()
    handler = partial(Handler, directory=folder, said=said)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", said
        server.shutdown()


def test_a_page_that_is_isolated_runs_threads(threaded_vit: Path, tmp_path: Path) -> None:
    """On its own thread and in a Web Worker; elsewhere the same module runs on one."""
    folder = tmp_path / "made"
    shutil.copytree(threaded_vit, folder)
    for name, text in {"run.mjs": RUN, "worker.mjs": WORKER, "page.html": PAGE}.items():
        folder.joinpath(name).write_text(text)
    with served(folder) as (url, said), (tmp_path / "log").open("wb") as log:
        command = [str(CHROMIUM), *OPTIONS, f"--user-data-dir={tmp_path}/chromium"]
        browser = subprocess.Popen([*command, f"{url}/{PLACES[0]}/page.html"], stderr=log)
        try:
            found = [said.get(timeout=LIMIT_SECONDS) for _ in PLACES]
        finally:
            browser.kill()
            browser.wait()
    result = found[0][0][1][1]
    assert len(result.split(",")) > 2
    one, two = [1, result], [2, result]
    refused = "a thread does not start: its script cannot be fetched"
    in_page = [[True, one, two], [True, one, refused], [False, one, one]]
    assert found == [[each, each] for each in in_page]
