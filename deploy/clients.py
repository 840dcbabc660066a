"""The clients that are made of something else: `python -m deploy.clients` writes them.

- `service/client/blocking`, of the coroutines in `service/client/asynchronous`: the same lines
  without `async` and `await`, as httpcore's and psycopg's blocking halves are made.

A test fails where one is not what its source makes.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
COROUTINES = ROOT / "service" / "client" / "asynchronous"
BLOCKING = ROOT / "service" / "client" / "blocking"

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


def main() -> None:
    """Write every client that is made."""
    for path, text in blocking_files().items():
        path.write_text(text)
        print(path.relative_to(ROOT))


def blocking_files() -> dict[Path, str]:
    """The files of the blocking client, formatted."""
    made = {BLOCKING / path.name: blocking_of(path) for path in sorted(COROUTINES.glob("*.py"))}
    return {path: _formatted(path, text) for path, text in made.items()}


def blocking_of(path: Path) -> str:
    """The same module without coroutines."""
    if path.name == "__init__.py":
        return '"""The client that waits: made of the coroutines beside it."""\n'
    note = f"# Made of {path.relative_to(ROOT)} by deploy/clients.py: change that, and run this."
    return f"{note}\n\n{without_coroutines(path.read_text())}"


def without_coroutines(source: str) -> str:
    """`async with a: await b()` -> `with a: b()`, and the names of what waits."""
    lines = source.splitlines(keepends=True)
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    # from the end, so that the places of those before stay
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


def _formatted(path: Path, text: str) -> str:
    """As the repository's formatter and its sorter of imports write it."""
    ruff = [sys.executable, "-m", "ruff"]
    for step in (["check", "--select", "I", "--fix"], ["format"]):
        command = [*ruff, *step, "--quiet", "--stdin-filename", str(path), "-"]
        done = subprocess.run(
            command, input=text, cwd=ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"ruff cannot read {path.name}: {done.stderr}")
        text = done.stdout
    return text


if __name__ == "__main__":
    main()
