"""Errors of the database layer. Every message is one sentence that can be shown to a user."""

from __future__ import annotations

from enum import StrEnum


class StorageKind(StrEnum):
    """The reason why storage failed; the service maps it to an HTTP status code."""

    FULL = "full"  # no space on the disk, or a quota
    LOCKED = "locked"  # another writer held the database for too long: try again
    UNREACHABLE = "unreachable"  # no connection, or it broke: try again
    DENIED = "denied"  # the file or folder may not be written or read
    CORRUPT = "corrupt"  # the file is not a database, or a blob does not match its digest
    OTHER = "other"


class DatabaseError(Exception):
    """Base class of all errors that the stores raise deliberately."""


class StorageError(DatabaseError):
    """The database or the blob store failed. The failed call has saved nothing."""

    def __init__(self, message: str, kind: StorageKind = StorageKind.OTHER) -> None:
        self.kind = kind
        super().__init__(message)

    @property
    def retryable(self) -> bool:
        """Whether the call failed because the database was locked or unreachable.

        The same call may then succeed soon.
        """
        return self.kind in (StorageKind.LOCKED, StorageKind.UNREACHABLE)


class NotFoundError(DatabaseError):
    """No object of the requested kind, such as a job, has the given id or digest."""

    def __init__(self, what: str, key: str) -> None:
        self.what = what
        self.key = key
        super().__init__(f"{what} '{key}' does not exist")


class ShortIdError(NotFoundError):
    """The id is shorter than the shortest allowed prefix, and is not the complete id of any row."""

    def __init__(self, what: str, key: str, least: int) -> None:
        super().__init__(what, key)
        self.args = (f"{self}: the start of an id needs at least {least} characters",)


class AmbiguousIdError(NotFoundError):
    """Several ids start with the given prefix."""

    def __init__(self, what: str, key: str, found: str) -> None:
        super().__init__(what, key)
        self.args = (f"'{key}' is the beginning of several ids of a {what}: {found}",)


class PositionError(DatabaseError):
    """A page was requested after a position that does not fit the list.

    A position has one value per sort column of the list. The position does not fit if the number of
    values, or the type of a value, is wrong.
    """


class KeyMismatchError(DatabaseError):
    """An idempotency key was sent again, but with a different request."""


class KeyInFlightError(DatabaseError):
    """An idempotency key was sent again before the first request with it was answered."""


class QuotaError(DatabaseError):
    """The caller's token has reached a quota.

    Attributes:
        quota: the machine-readable name of the quota, such as "open-jobs".
        limit: the largest allowed number, such as 5 open jobs.
    """

    def __init__(self, quota: str, limit: int, message: str) -> None:
        self.quota = quota
        self.limit = limit
        super().__init__(message)


class StateError(DatabaseError):
    """The object's state does not allow the requested change, such as resuming a finished job."""


class StaleLeaseError(DatabaseError):
    """A worker no longer holds its lease, or a tuner no longer holds its job.

    The caller must stop its work, because nothing that it saves for the lease or job is accepted.
    """


class SchemaVersionError(DatabaseError):
    """The database was never migrated, is from a newer release, or is too old to be migrated."""
