"""Stores the tokens of the embedded mode.

In this mode, one user runs the service from one data folder.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from tilewright.db.errors import StorageError, StorageKind
from tilewright.db.storage import Storage
from tilewright.db.stores.tokens import Scope, new_secret
from tilewright.service.bearer import is_token
from tilewright.service.settings import Settings

log = structlog.get_logger("tilewright.embedded")


def owner_token(settings: Settings, storage: Storage) -> str:
    """Return the owner's token from its file in the data folder.

    If the file is missing, create a token and store it in a file with mode 0600. If the token in
    the file was revoked or rotated, replace it with a new token and log this.

    Raises:
        StorageError: if the folder cannot be written, or its token file cannot be used.
    """
    return _kept_token(settings.token_file, "owner", Scope.ADMIN, storage)


def worker_token(settings: Settings, storage: Storage) -> str:
    """Return the token with which the service's own worker connects, from the data folder.

    If its file is missing, create a token and store it there. The token's only scope is "measure".
    """
    return _kept_token(settings.worker_token_file, "local-worker", Scope.MEASURE, storage)


def _kept_token(file: Path, name: str, scope: Scope, storage: Storage) -> str:
    with _alone(file.parent):
        secret = _read(file) or _make(file)
        known = storage.tokens.find(secret)
        if known is not None and not storage.tokens.holds(secret):
            file.unlink(missing_ok=True)
            secret = _make(file)
            log.warning(
                "a token was revoked or rotated; there is a new one", token=name, file=str(file)
            )
        storage.tokens.create(name, [scope], secret=secret)
    return secret


def is_owner_token(settings: Settings, storage: Storage, token_id: str) -> bool:
    """Return whether `token_id` is the id of the owner's token in the data folder.

    Raises StorageError if the token file cannot be used.
    """
    secret = read_token(settings)
    known = storage.tokens.find(secret) if secret else None
    return known is not None and known.id == token_id


def keep_owner_token(settings: Settings, secret: str) -> None:
    """Store `secret` as the owner's token in the data folder, in place of the previous one.

    Raises StorageError if the file cannot be written.
    """
    with _alone(settings.data_folder):
        settings.token_file.unlink(missing_ok=True)
        _make(settings.token_file, secret)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a lock on the data folder. Processes that start together then create only one token."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise StorageError(
            f"the data folder '{folder}' cannot be used: {error.strerror}", StorageKind.DENIED
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def read_token(settings: Settings) -> str:
    """Return the owner's token from the data folder, or "" without a token file.

    Raises:
        StorageError: if the file cannot be read, or does not contain a token.
    """
    return _read(settings.token_file)


def _read(path: Path) -> str:
    try:
        secret = path.read_text(encoding="ascii").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise StorageError(
            f"the token file '{path}' cannot be read: {error.strerror}", StorageKind.DENIED
        ) from error
    except UnicodeDecodeError:
        secret = ""
    if not is_token(secret):
        # an empty token would give access to everybody
        raise StorageError(
            f"the token file '{path}' holds no token: remove it, and a new one is made",
            StorageKind.CORRUPT,
        )
    return secret


def client_token(settings: Settings) -> str:
    """Return the token that client commands send to the service.

    It is the token of the settings, or else the owner's token from the data folder.

    Raises:
        StorageError: if the token file exists and cannot be used.
    """
    return settings.token or read_token(settings)


def _make(path: Path, secret: str | None = None) -> str:
    secret = secret or new_secret()
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # created with its final mode, so that other users can never read it
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secret + "\n")
        try:
            os.link(temporary, path)
        except FileExistsError:  # another process was first: use its token
            secret = path.read_text(encoding="ascii").strip()
        finally:
            temporary.unlink()
    except OSError as error:
        raise StorageError(
            f"the token file '{path}' cannot be written: {error.strerror}", StorageKind.DENIED
        ) from error
    return secret
