"""Tables of models, of blobs, and of the references from other rows to blobs."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from tilewright.db.models.base import Base


class ModelRow(Base):
    __tablename__ = "models"

    digest: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    bytes: Mapped[int] = mapped_column(sa.BigInteger)
    owner: Mapped[str | None]
    created_at: Mapped[float]


class BlobRow(Base):
    """A blob whose bytes are stored, or will be stored soon: the row is written first.

    Attributes:
        touched_at: the last time that a process used it. Recently used blobs are not deleted.
        doomed_until: set while the bytes are being deleted: the time until which no process may
            write them.
    """

    __tablename__ = "blobs"

    digest: Mapped[str] = mapped_column(primary_key=True)
    bytes: Mapped[int] = mapped_column(sa.BigInteger)
    created_at: Mapped[float]
    touched_at: Mapped[float] = mapped_column(index=True)  # a row that refers to it may follow soon
    doomed_until: Mapped[
        float | None
    ]  # a sweep deletes its bytes: no process writes them until then


class BlobReferenceRow(Base):
    """A reference that protects a blob from deletion.

    The row of another table that needs the blob, such as a job, is the holder of the reference. The
    blob is kept as long as its holder exists.
    """

    __tablename__ = "blob_references"

    digest: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str] = mapped_column(primary_key=True)


class ModelUploadRow(Base):
    """An upload of a model by an owner, with the name that the owner gave the model."""

    __tablename__ = "model_uploads"

    digest: Mapped[str] = mapped_column(
        sa.ForeignKey("models.digest", ondelete="CASCADE"), primary_key=True
    )
    owner: Mapped[str] = mapped_column(primary_key=True)  # the name of tokens, "" for no owner
    name: Mapped[str]
    created_at: Mapped[float]


class SampleUploadRow(Base):
    """An upload of sample inputs by an owner, for the owner's jobs."""

    __tablename__ = "sample_uploads"

    digest: Mapped[str] = mapped_column(
        sa.ForeignKey("blobs.digest", ondelete="CASCADE"), primary_key=True
    )
    owner: Mapped[str] = mapped_column(primary_key=True)  # the name of tokens
