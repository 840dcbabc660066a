"""The report of models on emulated machines."""

from __future__ import annotations

import argparse

from benchmarks.emulated import Agreement, page, still_good
from benchmarks.report import Origin


def test_a_run_that_was_ended_early_says_what_it_did_not_reach() -> None:
    found = [Agreement("vgg19", "cortex-a72", "cortex-a72", 1e-6, 1e-4)]
    whole, part = (
        page(Origin.of(argparse.Namespace(models=models)), found)
        for models in (["vgg19"], ["vgg19", "alexnet"])
    )
    assert "1 of 1 agree" in whole and "ended" not in whole
    assert "1 of 1 agree: float32 within 1e-04. The run was ended before alexnet." in part


def test_cells_of_several_runs_say_so() -> None:
    found = [
        Agreement("vgg19", name, name, 1e-6, 1e-4, commit=commit)
        for name, commit in (("haswell", ""), ("cortex-a72", "abc"))
    ]
    origin = Origin.of(argparse.Namespace(models=["vgg19"]))
    assert "Cells are of an earlier run, abc." in page(origin, found)
    assert "Cells are of" not in page(origin, found[1:])


def test_what_did_not_run_is_tried_again() -> None:
    right = Agreement("vgg19", "haswell", "haswell", 2e-3, 1e-4)
    killed = Agreement("vgg19", "cortex-a15", "cortex-a15", None, 1e-4, "killed")
    assert still_good([right, killed]) == [right]
