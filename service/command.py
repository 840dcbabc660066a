"""Entry point of the program `tilewright`, which also starts if packages are missing."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line.

    If a package is missing, print the `pip` command that installs it, and exit with status 1.
    """
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
