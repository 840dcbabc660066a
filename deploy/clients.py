"""The clients that are made of something else: `python -m deploy.clients` writes them.

- `service/client/blocking`, of the coroutines in `service/client/asynchronous`: the same lines
  without `async` and `await`, as httpcore's and psycopg's blocking halves are made;
- `clients/typescript/schema.d.ts`, of the service's description, by openapi-typescript, which npm
  fetches; then the compiler checks all of that folder.

A test fails where one is not what its source makes. `--python` leaves TypeScript as it is.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
import tempfile
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
COROUTINES = ROOT / "service" / "client" / "asynchronous"
BLOCKING = ROOT / "service" / "client" / "blocking"
TYPESCRIPT = ROOT / "clients" / "typescript"
SCHEMA = TYPESCRIPT / "schema.d.ts"

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
    if "--python" not in sys.argv[1:]:
        SCHEMA.write_text(typescript())
        print(SCHEMA.relative_to(ROOT))


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


def described() -> str:
    """The description that TypeScript is made of: every refusal of an operation is a problem."""
    from tilewright.service.api.app import create_app
    from tilewright.service.settings import Settings

    description = create_app(Settings()).openapi()
    problem = {"schema": {"$ref": "#/components/schemas/ProblemView"}}
    refused = {"description": "Refused", "content": {"application/problem+json": problem}}
    for path in description["paths"].values():
        for operation in path.values():
            known = operation["responses"]
            good = {status: said for status, said in known.items() if status < "4"}
            operation["responses"] = {**good, "default": refused}
    return json.dumps(description, sort_keys=True)


def stamp(description: str) -> str:
    """The first line of what is made of a description: by it a test knows whether it is old."""
    digest = hashlib.sha256(description.encode()).hexdigest()
    return f"// Made by deploy/clients.py of the description with SHA-256 {digest}.\n"


def typescript() -> str:
    """The types of the interface. Raises CalledProcessError if the folder has errors of types."""
    description = described()
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work, "typescript")
        shutil.copytree(TYPESCRIPT, folder, ignore=shutil.ignore_patterns("node_modules"))
        (folder / "openapi.json").write_text(description)
        run = ["npm", "install", "--no-audit", "--no-fund", "--silent"]
        subprocess.run(run, cwd=folder, check=True)
        made = ["npx", "openapi-typescript", "openapi.json", "-o", "schema.d.ts"]
        made.append("--default-non-nullable=false")  # what has a default need not be given
        subprocess.run(made, cwd=folder, check=True, capture_output=True)
        subprocess.run(["npx", "tsc"], cwd=folder, check=True)
        return stamp(description) + (folder / "schema.d.ts").read_text()


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
