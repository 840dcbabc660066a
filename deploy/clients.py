"""Generate the types of the TypeScript client: `python -m deploy.clients`, or `make typescript`.

openapi-typescript, which npm installs, generates `clients/typescript/schema.d.ts` from the
service's OpenAPI description. The TypeScript compiler then checks the client. The generated file is
not committed.
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
    """npm is not installed, or cannot install the packages."""


def main() -> None:
    """Write TypeScript types of the service's requests and responses to `schema.d.ts`.

    The file is in `clients/typescript`.
    """
    SCHEMA.write_text(typescript())
    print(SCHEMA.relative_to(ROOT))


def described() -> str:
    """Return the service's OpenAPI description as JSON, simplified for TypeScript.

    All error responses of an operation are replaced by one default response, a `ProblemView`.
    """
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
    """Return the content of `schema.d.ts`, after compiling the client with it.

    Raises:
        NpmError: if npm is missing or cannot install the packages.
        CalledProcessError: if the client does not compile with these types.
    """
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work, "typescript")
        shutil.copytree(TYPESCRIPT, folder, ignore=shutil.ignore_patterns("node_modules"))
        (folder / "openapi.json").write_text(described())
        _fetch(folder)
        made = ["npx", "openapi-typescript", "openapi.json", "-o", "schema.d.ts"]
        made.append("--default-non-nullable=false")  # fields with a default are optional
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
