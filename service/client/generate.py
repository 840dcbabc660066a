"""Generates the blocking client: the modules of `asynchronous/` without `async` and `await`.

`setup.py` runs this file when it builds or installs the package. In a source checkout, run `python
service/client/generate.py` after a change in `asynchronous/`. The folder `blocking/` is not in git.
httpcore and psycopg generate their blocking code in the same way.

This file imports only the standard library, because it runs before the package is installed.
"""

from __future__ import annotations

import io
import os
import tokenize
from pathlib import Path

COROUTINES = Path(__file__).with_name("asynchronous")
BLOCKING = Path(__file__).with_name("blocking")

WORDS = {
    "AsyncBaseTransport": "BaseTransport",
    "AsyncClient": "Client",
    "AsyncConnection": "Connection",
    "AsyncIterator": "Iterator",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "aclose": "close",
    "aiter_bytes": "iter_bytes",
    "aread": "read",
    "asynchronous": "blocking",
    "asyncio": "time",  # of which nothing but `sleep` is used
}
DROPPED = ("async", "await")


def write_blocking(folder: Path = BLOCKING) -> None:
    """Generate the modules of the blocking client. Write only those that have changed."""
    folder.mkdir(exist_ok=True)
    for source in sorted(COROUTINES.glob("*.py")):
        path, text = folder / source.name, blocking_text(source)
        if path.exists() and path.read_text() == text:
            continue
        # renamed, so that a process that imports meanwhile never reads half of a file
        new = path.with_suffix(f".{os.getpid()}.new")
        new.write_text(text)
        new.replace(path)


def blocking_text(path: Path) -> str:
    """Return the source of the blocking module for a module of `asynchronous/`."""
    if path.name == "__init__.py":
        return '"""The blocking client, generated from `asynchronous/`."""\n'
    note = f"# Generated from asynchronous/{path.name} by generate.py: change the source instead."
    return f"{note}\n\n{without_coroutines(path.read_text())}"


def without_coroutines(source: str) -> str:
    """Remove `async` and `await` from source code, and rename identifiers by the table `WORDS`.

    For example, `async with a: await b()` becomes `with a: b()`, and `AsyncClient` becomes
    `Client`.
    """
    lines = source.splitlines(keepends=True)
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    # from the end, so that the places of earlier tokens stay valid
    for token, after in reversed(list(zip(tokens, [*tokens[1:], tokens[-1]], strict=True))):
        if token.type != tokenize.NAME:
            continue
        (row, start), (_, end) = token.start, token.end
        line = lines[row - 1]
        if token.string in DROPPED:
            lines[row - 1] = line[:start] + line[after.start[1] :]
        elif token.string in WORDS:
            lines[row - 1] = line[:start] + WORDS[token.string] + line[end:]
    return "".join(lines)


if __name__ == "__main__":
    write_blocking()
