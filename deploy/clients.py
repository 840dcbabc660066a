"""Generates the TypeScript client's types: `python -m deploy.clients`, or `make typescript`.

`clients/typescript/schema.d.ts` is generated from the service's OpenAPI description by
openapi-typescript, which npm fetches. The compiler of TypeScript then checks the folder. The file
is not kept in git.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TYPESCRIPT = ROOT / "clients" / "typescript"
SCHEMA = TYPESCRIPT / "schema.d.ts"


class NpmError(Exception):
    """npm is not installed, or cannot fetch the packages."""


def main() -> None:
    """Write the types."""
    SCHEMA.write_text(typescript())
    print(SCHEMA.relative_to(ROOT))


def described() -> str:
    """Return the description for TypeScript: every refusal of an operation is a problem."""
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


def typescript() -> str:
    """Return the types of the interface.

    Raises:
        NpmError: if npm is missing or cannot fetch the packages.
        CalledProcessError: if the folder does not compile with the types.
    """
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work, "typescript")
        shutil.copytree(TYPESCRIPT, folder, ignore=shutil.ignore_patterns("node_modules"))
        (folder / "openapi.json").write_text(described())
        _fetch(folder)
        made = ["npx", "openapi-typescript", "openapi.json", "-o", "schema.d.ts"]
        made.append("--default-non-nullable=false")  # what has a default need not be given
        subprocess.run(made, cwd=folder, check=True, capture_output=True)
        subprocess.run(["npx", "tsc"], cwd=folder, check=True)
        return (folder / "schema.d.ts").read_text()


def _fetch(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise NpmError("npm is needed to generate TypeScript, and is not installed")
    command = [npm, "install", "--no-audit", "--no-fund", "--silent"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NpmError(f"npm cannot fetch openapi-typescript: {done.stderr.strip()}")


if __name__ == "__main__":
    main()
