"""Trains and selects the cost models of targets, from the trials in the database.

Some tasks are held out from training. A new version is promoted, so that tuning runs start from it,
only if it ranks the candidates of the held-out tasks better than the version promoted before. Both
versions are evaluated on the same trials.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.compiler.targets.target import Target
from tilewright.db.errors import NotFoundError, StorageError
from tilewright.db.storage import Storage
from tilewright.db.stores.cost_models import StoredCostModel
from tilewright.tuner.analysis.features import FEATURE_VERSION
from tilewright.tuner.cost_model.dataset import samples_of
from tilewright.tuner.cost_model.metrics import Scores
from tilewright.tuner.cost_model.training import judge, train_base_model
from tilewright.tuner.cost_model.xgboost import XGBoostModel


def _log() -> Any:
    """Return the tuner's logger.

    It is imported lazily, because the import loads asyncio, which many commands do not need.
    """
    import structlog

    return structlog.get_logger("tilewright.tuner")


MOST_TRIALS = 20_000
"""Number of the newest trials on which a version of a cost model is trained. Their features take
half a minute to compute."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A newly trained version of a target's cost model.

    Attributes:
        model: the stored version.
        scores: its scores on the held-out tasks.
        before: the scores of the previously promoted version on the same tasks; None if no usable
            version was promoted.
    """

    model: StoredCostModel
    scores: Scores
    before: Scores | None

    @property
    def promoted(self) -> bool:
        """Whether tuning runs start from this version."""
        return self.model.promoted_at is not None


def base_model(storage: Storage, target_key: str) -> bytes:
    """Return the bytes of a target's promoted cost model, from which tuning runs start.

    The result is empty if no version is promoted, if the promoted version belongs to an earlier
    release, or if its bytes are missing. A tuning run then starts without a model.
    """
    stored = storage.cost_models.promoted(target_key)
    if stored is None:
        return b""
    try:
        data = storage.cost_models.data(stored)
        XGBoostModel(0).load(data)
    except (ValueError, NotFoundError, StorageError) as error:
        _log().warning(
            "cost model not used", target=target_key, version=stored.version, error=str(error)
        )
        return b""
    return data


def train_cost_model(storage: Storage, target_key: str, seed: int = 0) -> Trained | None:
    """Train a new version of a target's cost model, evaluate and store it.

    The version is promoted if it ranks the candidates of held-out tasks better than the version
    promoted before.

    Returns:
        the version and its scores; None if the target has too few tasks.

    Raises:
        NotFoundError: if nothing was ever tuned for the target.
        StorageError: if the disk is full.
    """
    counts = storage.records.count_by_target(CODEGEN_VERSION)
    targets = _relatives(storage, target_key)
    trials = storage.records.newest_trials(list(targets), CODEGEN_VERSION, MOST_TRIALS)
    texts = storage.workloads.workloads(list({trial.key.workload_key for trial in trials}))
    workloads = {key: Workload.parse(text) for key, text in texts.items()}
    samples = samples_of(trials, workloads.get, targets.get)
    trained = train_base_model(samples, target_key, seed)
    if trained is None:
        return None
    stored = storage.cost_models.add(
        target_key,
        trained.data,
        feature_version=FEATURE_VERSION,
        objective=trained.objective.value,
        rows=trained.rows,
        tasks=trained.tasks,
        trials=counts.get(target_key, 0),
        scores=trained.scores.to_json(),
        chance=trained.chance.to_json(),
    )
    data = base_model(storage, target_key)
    before = judge(data, samples, target_key) if data else None
    to_beat = before.quality if before is not None else trained.chance.quality
    if trained.scores.quality > to_beat:
        stored = storage.cost_models.promote(target_key, stored.version)
    return Trained(stored, trained.scores, before)


def due_targets(storage: Storage, new_trials: int) -> list[str]:
    """Return the keys of the targets whose cost model should be trained again.

    A target is due if at least `new_trials` trials were stored since its last training.
    """
    seen: dict[str, int] = {}
    for model in storage.cost_models.list():
        seen[model.target_key] = max(seen.get(model.target_key, 0), model.trials)
    counts = storage.records.count_by_target(CODEGEN_VERSION)
    return sorted(key for key, count in counts.items() if count - seen.get(key, 0) >= new_trials)


def train_due(storage: Storage, new_trials: int) -> list[Trained]:
    """Train a new cost model for each target of `due_targets`, and return the new versions.

    Nothing is trained if `new_trials` is 0.
    """
    if not new_trials:
        return []
    found = []
    for key in due_targets(storage, new_trials):
        trained = train_cost_model(storage, key)
        if trained is not None:
            _log().info("cost model", target=key, result=describe(trained))
            found.append(trained)
    return found


def describe(trained: Trained) -> str:
    """Return a line of text about a new version: its training data, scores and promotion."""
    scores, chance = trained.scores, trained.model.chance
    text = (
        f"cost model, version {trained.model.version}: {trained.model.rows} rows of "
        f"{trained.model.tasks} tasks; on {scores.tasks} others {scores.pairwise:.3f} of the "
        f"pairs in order (by chance {chance['pairwise']:.3f}), the first pick at {scores.top1:.1%} "
        "of the best"
    )
    if trained.before is not None:
        text += f"; before {trained.before.pairwise:.3f}, {trained.before.top1:.1%}"
    return f"{text}; {'promoted' if trained.promoted else 'not promoted'}"


def _relatives(storage: Storage, target_key: str) -> Mapping[str, Target]:
    """Return all stored targets of the same architecture, such as x86-64, by key.

    Targets of earlier releases are left out.
    """
    own = _target(storage, target_key)
    found = {key: _target(storage, key) for key in storage.workloads.targets()}
    return {
        key: target
        for key, target in found.items()
        if target is not None and (own is None or target.arch == own.arch)
    }


def _target(storage: Storage, key: str) -> Target | None:
    """Return the stored target with a key; None if this release cannot read its description."""
    _, description = storage.workloads.target(key)
    try:
        return Target.from_json(description)
    except CompilerError:
        return None
