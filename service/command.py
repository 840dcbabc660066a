"""Entry point of the program `tilewright`. It also works without the package's extras."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or name the extra that it needs."""
    try:
        from tilewright.service.cli import main as run
    except ModuleNotFoundError as error:
        missing = error.name or str(error)
        print(
            f"error: the command line needs the package '{missing}': "
            "pip install 'tilewright[all]' has it (artifacts and workers run without it)",
            file=sys.stderr,
        )
        sys.exit(1)
    run()


if __name__ == "__main__":
    main()
