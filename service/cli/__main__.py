"""Runs the command line for `python -m tilewright.service.cli`."""

from tilewright.service.cli import main

if __name__ == "__main__":
    main()
