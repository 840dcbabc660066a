"""Redirects the messages of onnxruntime during quantisation to the log of this process."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence

log = logging.getLogger("tilewright.quantize")

_THEIRS = ("root", "onnxruntime")
"""Names of the loggers to which the Python code of onnxruntime writes."""


class _Forwarder(logging.Handler):
    """A log handler that collects onnxruntime's messages in the list `lines`.

    It passes all other log records to the given `handlers`.
    """

    def __init__(self, handlers: Sequence[logging.Handler]) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._others = handlers

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.split(".")[0] in _THEIRS:
            self.lines.append(f"{record.levelname}: {record.getMessage()}")
            return
        for each in self._others:
            if record.levelno >= each.level:
                each.handle(record)


@contextlib.contextmanager
def kept_in_log() -> Iterator[None]:
    """Redirect the messages of onnxruntime to the log at level INFO, while the context is open.

    The C++ code of onnxruntime writes directly to the file descriptor of standard error. This
    descriptor is replaced, so that the output of other threads is redirected, too. The imports of
    onnxruntime change the handlers and the level of the root logger; both are restored at the end.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    forwarder, printed = _Forwarder(handlers), io.StringIO()
    root.handlers[:] = [forwarder]
    written = ""
    try:
        with contextlib.redirect_stdout(printed), _standard_error() as file:
            try:
                yield
            finally:
                if file is not None:
                    file.seek(0)
                    written = file.read().decode(errors="replace")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        for line in (*forwarder.lines, *printed.getvalue().splitlines(), *written.splitlines()):
            log.info("onnxruntime: %s", line)


@contextlib.contextmanager
def _standard_error() -> Iterator[io.BufferedRandom | None]:
    """Redirect standard error to a temporary file, and yield the file.

    Yields None if the process has no standard error.
    """
    sys.stderr.flush()
    try:
        number = os.dup(2)
    except OSError:
        yield None
        return
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield file
        finally:
            sys.stderr.flush()
            os.dup2(number, 2)
            os.close(number)
