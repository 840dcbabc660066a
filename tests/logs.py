"""Logs of code under test, as the service writes them."""

from __future__ import annotations

import logging

import structlog


def plain_logs() -> None:
    """Tracebacks as Python prints them, as `service.logs` has them.

    By default structlog has rich print them with the values of all variables, which takes seconds
    for each if one of them is an application.
    """
    structlog.reset_defaults()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.dev.set_exc_info,
            structlog.dev.ConsoleRenderer(
                colors=False, exception_formatter=structlog.dev.plain_traceback
            ),
        ]
    )
    ours = logging.getLogger("tilewright")
    ours.setLevel(logging.NOTSET)
    ours.handlers = []
