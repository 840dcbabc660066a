"""Structured logs on standard error, as text or JSON, including the compiler's warnings."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import TextIO

import structlog

from tilewright.service.settings import LogFormat, LogLevel


def set_up(level: LogLevel, log_format: LogFormat) -> None:
    """Configure this process's logs: structlog, and the `logging` loggers under `tilewright`."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),  # that of each moment
    )
    ours = logging.getLogger("tilewright")
    ours.setLevel(number)
    ours.handlers = [_Forward()]


def log_warnings() -> None:
    """Write Python warnings to the log, instead of standard error."""
    warnings.showwarning = _warn


class _Forward(logging.Handler):
    """A handler that passes log records of the module `logging` to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger()
        log.log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info)


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    structlog.get_logger().warning(str(message), kind=category.__name__)
