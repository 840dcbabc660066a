"""Settings of the web process, the tuner process and the client.

Only this module reads the environment: the variable of a setting is `TILEWRIGHT_` plus the name of
its field in capitals. The worker, which has no pydantic, reads variables with the same names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


def default_data_folder() -> Path:
    """Return `$XDG_DATA_HOME/tilewright`, or `~/.local/share/tilewright`."""
    base = os.environ.get("XDG_DATA_HOME", "")
    return (Path(base) if base else Path.home() / ".local" / "share") / "tilewright"


class Settings(BaseSettings):
    """The settings of the service and the client.

    An environment variable overrides each default.
    """

    model_config = SettingsConfigDict(
        env_prefix="TILEWRIGHT_", extra="ignore", frozen=True, allow_inf_nan=False
    )

    data_folder: Path = Field(
        default_factory=default_data_folder,
        description="Folder of the embedded database, the blobs and the owner's token.",
    )
    database_url: str = Field(
        default="",
        description="postgresql://user:password@host/name; empty: SQLite in the data folder.",
    )
    blob_url: str = Field(
        default="",
        description="s3://bucket/prefix for the blobs; empty: a folder in the data folder.",
    )
    host: str = Field(default="127.0.0.1", description="Address that `server run` listens on.")
    port: int = Field(
        default=8080, ge=0, le=65535, description="Port that `server run` listens on."
    )
    tls_certificate: Path | None = Field(
        default=None,
        description="PEM file of the certificate of `server run`, which enables TLS.",
    )
    tls_key: Path | None = Field(
        default=None, description="PEM file of the certificate's key; empty: in the same file."
    )
    trusted_proxies: str = Field(
        default="127.0.0.1",
        description="Comma-separated addresses whose X-Forwarded-For is trusted. If set, "
        "`server run` on an address other than loopback counts as behind a proxy.",
    )
    server: str = Field(
        default="http://127.0.0.1:8080", description="URL of the service, for the client commands."
    )
    token: str = Field(
        default="", description="Bearer token of the client; empty: the token in the data folder."
    )
    max_model_bytes: int = Field(
        default=4 << 30, gt=0, description="Largest ONNX file that is accepted."
    )
    max_samples_bytes: int = Field(
        default=64 << 20,
        gt=0,
        description="Largest file of samples, and largest total of a job's samples.",
    )
    max_body_bytes: int = Field(
        default=1 << 20, gt=0, description="Largest request body, except of models and results."
    )
    max_import_bytes: int = Field(
        default=64 << 20, gt=0, description="Largest body of signed records for import."
    )
    max_result_bytes: int = Field(
        default=32 << 20,
        gt=0,
        description="Largest result of a worker. Its outputs may take 16 MiB, in base64.",
    )
    body_start_seconds: float = Field(
        default=10.0, gt=0, description="Time before a request body's minimum rate applies."
    )
    body_bytes_per_second: float = Field(
        default=16384.0, gt=0, description="Minimum rate of a request body."
    )
    body_seconds: float = Field(
        default=3600.0, gt=0, description="Longest time for a request body."
    )
    planning_seconds: float = Field(
        default=120.0, gt=0, description="Longest time for reading and planning a model."
    )
    planning_memory_bytes: int = Field(
        default=0,
        ge=0,
        description="Memory limit for reading and planning a model; 0: half of the memory "
        "of the machine or of its container.",
    )
    verification_seconds: float = Field(
        default=600.0,
        gt=0,
        description="Longest time for computing the reference outputs with which an artifact is "
        "verified, at one size.",
    )
    planning_processes: int = Field(
        default=2,
        ge=1,
        le=64,
        description="Models that the service reads and plans at a time. With several, one token "
        "occupies all but one at most.",
    )
    header_seconds: float = Field(
        default=10.0, gt=0, description="Longest time for the head of a request."
    )
    max_connections: int = Field(
        default=8192,
        gt=0,
        description="Maximum number of open connections. Further requests are answered 503.",
    )
    lease_seconds: float = Field(
        default=30.0, gt=0, description="Time a worker has to renew the lease of a measurement."
    )
    heartbeat_seconds: float = Field(
        default=5.0, gt=0, description="Interval of a worker's heartbeats, which renew its leases."
    )
    worker_lost_seconds: float = Field(
        default=60.0, gt=0, description="Silence after which a worker counts as lost."
    )
    worker_failures: int = Field(
        default=5,
        ge=1,
        description="Failures caused by a worker within an hour that quarantine it.",
    )
    uploads_per_minute: int = Field(
        default=120, ge=0, description="Uploads of models by one token; 0: no limit."
    )
    jobs_per_minute: int = Field(
        default=600, ge=0, description="Jobs that one token creates; 0: no limit."
    )
    model_lookups_per_minute: int = Field(
        default=1200,
        ge=0,
        description="Lookups by one token of models that need planning; 0: no limit.",
    )
    explanations_per_minute: int = Field(
        default=600,
        ge=0,
        description="Questions by one token for the schedule of a workload; 0: no limit.",
    )
    spellings_per_minute: int = Field(
        default=600,
        ge=0,
        description="Leases that are expanded for workers of one token; 0: no limit.",
    )
    housekeeping_seconds: float = Field(
        default=300.0, gt=0, description="Interval at which the service removes unused data."
    )
    keep_finished_seconds: float = Field(
        default=3600.0,
        ge=60,
        description="How long finished measurement requests are kept.",
    )
    keep_answers_seconds: float = Field(
        default=86400.0,
        ge=60,
        description="How long requests with an `Idempotency-Key` are remembered.",
    )
    keep_blobs_seconds: float = Field(
        default=900.0,
        ge=60,
        description="How long unreferenced blobs are kept, as a later row may refer to one.",
    )
    keep_workers_seconds: float = Field(
        default=7 * 86400.0, ge=60, description="Silence after which a worker is removed."
    )
    keep_trials_days: float = Field(
        default=0.0,
        ge=0,
        description="Days that trials are kept, except of records and open jobs; 0: for ever.",
    )
    keep_jobs_days: float = Field(
        default=0.0,
        ge=0,
        description="Days that ended jobs are kept, with events, tasks and runs; 0: for ever.",
    )
    keep_artifacts_days: float = Field(
        default=0.0,
        ge=0,
        description="Days that artifacts are kept, except the newest of each kind; 0: for ever.",
    )
    keep_models_days: float = Field(
        default=0.0, ge=0, description="Days that models without a job are kept; 0: for ever."
    )
    keep_audit_days: float = Field(
        default=0.0, ge=0, description="Days that entries of the audit log are kept; 0: for ever."
    )
    long_poll_seconds: float = Field(
        default=20.0, gt=0, description="Longest time that a claim waits for work."
    )
    job_lease_seconds: float = Field(
        default=30.0, gt=0, description="Time a tuner has to renew its claim on a job."
    )
    tuner_jobs: int = Field(
        default=4, ge=1, le=64, description="Jobs that one tuner works on at a time."
    )
    job_wait_seconds: float = Field(
        default=86400.0,
        ge=0,
        description="How long a job waits for a worker, unless its own option states it. The job "
        "then ends with the known schedules.",
    )
    job_stall_seconds: float = Field(
        default=3600.0,
        gt=0,
        description="Time without progress (a trial, phase or task) after which a job is taken "
        "from its tuner.",
    )
    max_open_jobs: int = Field(
        default=1000, ge=1, description="Open jobs of one token, unless it has its own quota."
    )
    max_running_jobs: int = Field(
        default=1000,
        ge=1,
        description="Running jobs of one token, unless it has its own quota.",
    )
    tuner_poll_seconds: float = Field(
        default=0.5, gt=0, description="How often an idle tuner looks for a job."
    )
    builders: str = Field(
        default="0",
        pattern=r"^([0-9]{1,4}|dask(\+tls)?://[^\s/]+:[0-9]{1,5})$",
        description="Processes that compile candidates (0: one per core), or a Dask scheduler:"
        " dask://HOST:PORT, dask+tls://HOST:PORT.",
    )
    cost_model_trials: int = Field(
        default=500,
        ge=0,
        description="New trials of a target after which a cost model is trained; 0: never.",
    )
    signing_key: Path | None = Field(
        default=None,
        description="PEM file of the key that signs exported records;"
        " empty: a key that is generated in the data folder.",
    )
    trusted_keys: tuple[str, ...] = Field(
        default=(),
        description="Public keys whose records are imported, as a JSON list, next to the own key.",
    )
    log_level: LogLevel = Field(default="info", description="Minimum severity of logged messages.")
    log_format: LogFormat = Field(
        default="text", description="Format of log lines: for people or for machines."
    )

    @property
    def effective_database_url(self) -> str:
        """The URL of the database to open: the setting, or a SQLite file in the data folder."""
        return self.database_url or f"sqlite:///{self.data_folder.absolute() / 'tilewright.db'}"

    def environment(self) -> dict[str, str]:
        """Return the environment for a child process, so that it opens the same database."""
        ours = {"TILEWRIGHT_DATA_FOLDER": str(self.data_folder)}
        if self.database_url:
            ours["TILEWRIGHT_DATABASE_URL"] = self.database_url
        return {**os.environ, **ours}

    @property
    def blob_folder(self) -> Path:
        return self.data_folder / "blobs"

    @property
    def token_file(self) -> Path:
        """The file of the owner's token, which the embedded mode creates in the data folder."""
        return self.data_folder / "token"

    @property
    def worker_token_file(self) -> Path:
        """The file of the token with which the service's own worker connects."""
        return self.data_folder / "worker-token"

    @property
    def signing_key_file(self) -> Path:
        """The file of the private key that signs exported records."""
        return self.signing_key or self.data_folder / "signing-key.pem"
