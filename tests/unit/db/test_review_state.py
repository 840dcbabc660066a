"""The rules of trust."""

from __future__ import annotations

import itertools

import pytest

from tilewright.db.review_state import (
    TRANSITIONS,
    Attestation,
    ClaimReporter,
    ReviewState,
    before,
    initial,
    reviewable,
)


def test_every_state_has_its_steps_and_withdrawn_is_final() -> None:
    assert set(TRANSITIONS) == set(ReviewState)
    assert TRANSITIONS[ReviewState.WITHDRAWN] == frozenset()
    assert before(ReviewState.DISPUTED) == ["provisional", "confirmed"]
    assert before(ReviewState.SUPERSEDED) == ["provisional", "confirmed"]
    assert set(before(ReviewState.WITHDRAWN)) == set(ReviewState) - {ReviewState.WITHDRAWN}


def test_a_claim_is_confirmed_at_once_only_if_our_own_machine_measured() -> None:
    assert initial(ours=True) == (ReviewState.CONFIRMED, Attestation.OWN)
    assert initial(ours=False) == (ReviewState.PROVISIONAL, Attestation.ONCE)


@pytest.mark.parametrize(
    ("other", "attestation"),
    [
        (ClaimReporter("a", "x"), Attestation.ONE_WORKER),
        (ClaimReporter("a", "y"), Attestation.ONE_WORKER),
        (ClaimReporter("b", "x"), Attestation.ONE_OWNER),
        (ClaimReporter("b", "y"), Attestation.TWO_OWNERS),
    ],
)
def test_a_second_reporter_attests_more_the_less_it_shares(
    other: ClaimReporter, attestation: Attestation
) -> None:
    assert ClaimReporter("a", "x").second(other) is attestation


def test_a_review_decides_about_provisional_claims_and_weakly_attested_served_ones() -> None:
    open_ = {
        (state, attestation)
        for state, attestation in itertools.product(ReviewState, Attestation)
        if reviewable(state, attestation)
    }
    weak = {Attestation.ONCE, Attestation.ONE_WORKER, Attestation.ONE_OWNER}
    assert {one for one in Attestation if one.weak} == weak
    assert open_ == {(ReviewState.PROVISIONAL, one) for one in Attestation} | {
        (ReviewState.CONFIRMED, one) for one in weak
    }
    following = {ReviewState.CONFIRMED, ReviewState.DISPUTED}
    assert all(following <= TRANSITIONS[state] for state, _ in open_)
