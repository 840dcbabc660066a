"""What is tuned, and for what: the texts behind the keys."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Mapped, mapped_column

from db.models.base import Base, Json


class WorkloadRow(Base):
    __tablename__ = "workloads"

    key: Mapped[str] = mapped_column(primary_key=True)
    text: Mapped[str]
    created_at: Mapped[float]


class WorkloadShapeRow(Base):
    """What a workload is apart from its sizes, and the sizes; found when it is first needed."""

    __tablename__ = "workload_shapes"

    workload_key: Mapped[str] = mapped_column(primary_key=True)
    structure: Mapped[str] = mapped_column(index=True)
    sizes: Mapped[list[Any]]


class TargetRow(Base):
    __tablename__ = "targets"

    key: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    description: Mapped[Json]
    created_at: Mapped[float]
