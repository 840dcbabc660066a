"""Opens the database and the blob store that the settings name."""

from __future__ import annotations

from tilewright.db.clock import Clock
from tilewright.db.storage import Storage
from tilewright.service.settings import Settings


def open_storage(settings: Settings, clock: Clock | None = None) -> Storage:
    """Open the database of the settings, and upgrade it to this release's schema.

    Raises:
        DatabaseError: if the database cannot be opened, or has the schema of a newer release.
    """
    return Storage.open(
        settings.effective_database_url,
        settings.blob_folder,
        clock,
        blob_url=settings.blob_url,
        worker_lost_seconds=settings.worker_lost_seconds,
        worker_failures=settings.worker_failures,
    )
