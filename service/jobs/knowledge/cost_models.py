"""Trains and selects the cost models of targets, from the trials in the database.

Some tasks are held out from training. A new version is promoted, so that tuning runs start from it,
only if it ranks the candidates of the held-out tasks better than the version promoted before. Both
versions are evaluated on the same trials.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

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

_Stored = TypeVar("_Stored")
_Parsed = TypeVar("_Parsed")


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


@dataclass(frozen=True, slots=True)
class Untrained:
    """Training that ended early because the database or the disk failed.

    Attributes:
        reason: the message of the error.
    """

    reason: str


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

    Trials are left out if the database lacks their target or workload, or if this release cannot
    read it.

    Returns:
        the version and its scores; None if the target has too few tasks, or if this release cannot
        read its description.

    Raises:
        StorageError: if the disk is full.
    """
    known = _targets(storage)
    own = known.get(target_key)
    if own is None:
        return None
    counts = storage.records.count_by_target(CODEGEN_VERSION)
    targets = {key: target for key, target in known.items() if target.arch == own.arch}
    trials = storage.records.newest_trials(list(targets), CODEGEN_VERSION, MOST_TRIALS)
    texts = storage.workloads.workloads(list({trial.key.workload_key for trial in trials}))
    workloads = _readable(texts, Workload.parse)
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

    A target is due if at least `new_trials` trials were stored since its last training. Targets
    that the database does not describe, or whose description this release cannot read, are left
    out.
    """
    seen: dict[str, int] = {}
    for model in storage.cost_models.list():
        seen[model.target_key] = max(seen.get(model.target_key, 0), model.trials)
    counts = storage.records.count_by_target(CODEGEN_VERSION)
    return sorted(
        key
        for key in _targets(storage).keys() & counts.keys()
        if counts[key] - seen.get(key, 0) >= new_trials
    )


def train_due(storage: Storage, new_trials: int) -> list[Trained | Untrained]:
    """Train a new cost model for each target of `due_targets`, and return the new versions.

    Nothing is trained if `new_trials` is 0. If the database or the disk fails, the training ends
    and the last result is an `Untrained`: a cost model is optional, so the caller continues.
    """
    if not new_trials:
        return []
    found: list[Trained | Untrained] = []
    try:
        for key in due_targets(storage, new_trials):
            trained = train_cost_model(storage, key)
            if trained is not None:
                _log().info("cost model", target=key, result=describe(trained))
                found.append(trained)
    except StorageError as error:
        found.append(Untrained(str(error)))
    return found


def describe(trained: Trained | Untrained) -> str:
    """Return a line of text about a new version: its training data, scores and promotion.

    For an `Untrained`, the line has the reason.
    """
    if isinstance(trained, Untrained):
        return f"no cost model was trained: {trained.reason}"
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


def _targets(storage: Storage) -> Mapping[str, Target]:
    """Return the stored targets whose description this release can read, by key."""
    descriptions = {key: storage.workloads.target(key)[1] for key in storage.workloads.targets()}
    return _readable(descriptions, Target.from_json)


def _readable(
    stored: Mapping[str, _Stored], parse: Callable[[_Stored], _Parsed]
) -> dict[str, _Parsed]:
    """Parse the values of a mapping. Leave out the values that `parse` rejects."""
    found = {}
    for key, value in stored.items():
        try:
            found[key] = parse(value)
        except CompilerError:
            continue  # stored by another release
    return found
