"""The stored words of enumerations: databases outlive a release, and two releases may share one."""

from __future__ import annotations

from enum import StrEnum

import pytest

from tilewright.db.job_states import JobState
from tilewright.db.review_state import ReviewState
from tilewright.db.stores.audit import Action
from tilewright.db.stores.blob_references import BlobKind
from tilewright.db.stores.cost_models import CostModelState
from tilewright.db.stores.requests import Blame, LeaseOutcome, RequestState
from tilewright.db.stores.tasks import TaskStatus
from tilewright.db.stores.tokens import Scope

WORDS: dict[type[StrEnum], str] = {
    JobState: "queued waiting_for_worker paused running verifying succeeded incomplete failed"
    " cancelled",
    TaskStatus: "pending tuning tuned cached failed",
    RequestState: "queued leased done failed expired set_aside cancelled",
    LeaseOutcome: "completed failed refused lost late released cancelled",
    Blame: "candidate worker service",
    ReviewState: "provisional confirmed superseded disputed withdrawn",
    CostModelState: "candidate promoted retired",
    BlobKind: "model artifact cost-model samples request",
    Scope: "submit read measure admin",
    Action: "token.created token.revoked token.rotated job.cancelled job.paused job.resumed"
    " worker.drained worker.resumed cost-model.promoted cost-model.rolled-back"
    " database.restored records.withdrawn records.imported",
}


@pytest.mark.parametrize("kind", WORDS, ids=lambda kind: kind.__name__)
def test_a_word_stays_what_it_is(kind: type[StrEnum]) -> None:
    assert [each.value for each in kind] == WORDS[kind].split()
