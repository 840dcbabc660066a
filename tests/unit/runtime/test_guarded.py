"""Models of several programs: which one runs, and refusals."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from tests.sized_models import sized_model
from tests.waiting import CountingLock, until
from tilewright.compiler.errors import InvalidArgumentError, InvalidInputError
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.guarded import GuardedModel
from tilewright.compiler.runtime.inputs import arrays_in_order
from tilewright.compiler.runtime.ports import ModelPorts, Sizes
from tilewright.compiler.runtime.segments import ModelSegment, SegmentGuard
from tilewright.compiler.sizes import Dimension

PORTS = ModelPorts({"x": ("batch", 3), "mask": ("batch", "sequence")}, {"y": ("batch", "sequence")})
SERVED = tuple((("batch", b), ("sequence", s)) for b in (1, 2) for s in (4, 8))


class Doubling:
    """Stands for an executable: y = 2 * mask."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = dict(sizes)

    def run(
        self, arrays: list[np.ndarray], *, labels: bool = True, stop: Any = None
    ) -> list[np.ndarray]:
        x, mask = arrays
        assert x.shape == (self.sizes["batch"], 3)
        assert mask.shape == (self.sizes["batch"], self.sizes["sequence"])
        return [2 * mask]

    def labelled(self, outputs: list[np.ndarray]) -> list[np.ndarray]:
        return outputs


def make(sizes: Sizes) -> Executable:
    return cast(Executable, Doubling(sizes))


def arrays(batch: int, sequence: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(batch * 100 + sequence)
    return {"mask": rng.standard_normal((batch, sequence)), "x": np.ones((batch, 3))}


def test_sizes_are_made_once_and_kept() -> None:
    executable = sized_model(PORTS, make)
    for batch, sequence in ((1, 5), (2, 5), (1, 5)):
        feeds = arrays(batch, sequence)
        np.testing.assert_array_equal(executable.run(feeds)[0], 2 * feeds["mask"])
    assert [dict(sizes)["batch"] for sizes in executable.made] == [1, 2]
    again = executable.executable({"sequence": 5, "batch": 1})
    assert again is executable.executable({"batch": 1, "sequence": 5})


def test_a_program_is_made_once_by_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Sizes] = []

    def slowly(sizes: Sizes) -> Executable:
        calls.append(sizes)
        until(lambda: lock.callers == len(threads))
        return make(sizes)

    executable, lock = sized_model(PORTS, slowly), CountingLock()
    monkeypatch.setattr(executable, "_lock", lock)
    threads = [threading.Thread(target=executable.run, args=(arrays(1, 4),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1


def test_a_closed_list_refuses_by_name() -> None:
    executable = sized_model(PORTS, make, SERVED)
    executable.run(arrays(2, 8))
    with pytest.raises(InvalidInputError, match=r"batch=2, sequence=7 is not served, only batch=1"):
        executable.run(arrays(2, 7))


def test_padding_takes_the_next_sizes_and_cuts_back() -> None:
    executable = sized_model(replace(PORTS, pad=True), make, SERVED)
    feeds = arrays(2, 3)
    (y,) = executable.run(feeds)
    np.testing.assert_array_equal(y, 2 * feeds["mask"])
    assert y.flags.c_contiguous
    assert executable.made == ((("batch", 2), ("sequence", 4)),)
    with pytest.raises(InvalidInputError, match="batch=3, sequence=4 is not served"):
        executable.run(arrays(3, 4))


def test_padding_is_refused_where_it_cannot_be_undone() -> None:
    with pytest.raises(InvalidArgumentError, match="output 'y': dimension 1 depends"):
        sized_model(ModelPorts(PORTS.inputs, {"y": ("batch", -1)}, pad=True), make, SERVED)


@pytest.mark.parametrize(
    ("x", "mask", "message"),
    [
        ((2, 3), (3, 4), r"input 'mask': dimension 0 \('batch'\) is 3, input 'x' has 2"),
        ((2, 4), (2, 4), r"input 'x' has shape \(2, 4\), expected \(batch, 3\)"),
        ((2, 3), (2,), r"input 'mask' has shape \(2,\), expected \(batch, sequence\)"),
    ],
)
def test_contradictions_are_named(x: tuple[int, ...], mask: tuple[int, ...], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        sized_model(PORTS, make, SERVED).run({"x": np.ones(x), "mask": np.ones(mask)})


def test_what_are_no_arrays_or_sizes_is_said() -> None:
    executable = sized_model(PORTS, make)
    for wrong in ([[1.0], [1.0, 2.0]], None, 3.0):
        with pytest.raises(InvalidInputError, match=r"input 'mask' is of type .*expected an array"):
            executable.run({"x": np.ones((2, 3)), "mask": wrong})  # type: ignore[dict-item]
    for sizes, message in (
        ({"batch": "4", "sequence": 4}, "dimension 'batch': '4' is not an integer"),
        ({"batch": 4.0, "sequence": 4}, "dimension 'batch': 4.0 is not an integer"),
        ({3: 4}, "3 is not the name of a dimension"),
        ([("batch", 4)], "sizes are a mapping"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            executable.executable(sizes)  # type: ignore[arg-type]
    for states, initial in (([("y", "x")], {}), ("y", {}), ({"y": ["x"]}, {}), ({"y": "x"}, [3])):
        with pytest.raises(InvalidArgumentError, match=r"mapping|there is no input"):
            executable.bind(states, initial)  # type: ignore[arg-type]


def test_ports_read_back() -> None:
    assert ModelPorts.from_json(PORTS.to_json()) == PORTS
    with pytest.raises(ValueError, match="malformed ports"):
        ModelPorts.from_json({"inputs": {"x": 3}, "outputs": {}, "pad": False})


def test_a_size_outside_of_its_range_is_refused_by_name() -> None:
    ranges = {"batch": Dimension("batch", 1, 8), "sequence": Dimension("sequence", 1, 4, 32)}
    executable = sized_model(PORTS, make, ranges=ranges)
    feeds = arrays(8, 128)
    np.testing.assert_array_equal(executable.run(feeds)[0], 2 * feeds["mask"])
    with pytest.raises(
        InvalidInputError, match=r"'x': dimension 0 \('batch'\) is 9, expected 1..8"
    ):
        executable.run(arrays(9, 32))
    for wrong in (0, 33, 160):
        text = rf"'mask': dimension 1 \('sequence'\) is {wrong}, expected 32..128:32"
        with pytest.raises(InvalidInputError, match=text):
            executable.run(arrays(1, wrong))
    with pytest.raises(InvalidInputError, match=r"dimension 'batch' is 9, expected 1\.\.8"):
        executable.executable({"batch": 9, "sequence": 32})
    assert len(executable.made) == 1


class Ranged(Doubling):
    """Stands for an executable of all batches up to 4 and sequences up to 8."""

    def __init__(self) -> None:
        super().__init__(())
        self.runs = 0

    def takes(self, arrays: list[np.ndarray]) -> bool:
        x, mask = arrays
        return 1 <= len(x) == len(mask) <= 4 and mask.shape[1] <= 8

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        return Dimension("batch", 1, 4), Dimension("sequence", 1, 8)

    def run_into(self, arrays: list[np.ndarray], given: dict[int, np.ndarray]) -> list[np.ndarray]:
        if not self.takes(arrays):
            raise InvalidInputError("not for these sizes")
        self.runs += 1
        return [2 * arrays[1]]

    def run(self, inputs: Any, *, labels: bool = True, stop: Any = None) -> list[np.ndarray]:
        return self.run_into([*arrays_in_order(inputs, ("x", "mask"))], {})


def test_one_program_serves_its_ranges_and_others_are_made() -> None:
    ranged = Ranged()
    executable = sized_model(PORTS, make, ranged=cast(Executable, ranged))
    for batch, sequence in ((1, 5), (4, 8), (3, 1)):
        feeds = arrays(batch, sequence)
        np.testing.assert_array_equal(executable.run(feeds)[0], 2 * feeds["mask"])
    assert ranged.runs == 3 and executable.made == () and executable.reason == ""
    feeds = arrays(5, 8)  # the range is not given: a size outside is compiled
    np.testing.assert_array_equal(executable.run(feeds)[0], 2 * feeds["mask"])
    assert executable.made == ((("batch", 5), ("sequence", 8)),)
    executable.run(arrays(2, 2))
    assert ranged.runs == 4 and len(executable.made) == 1


def test_the_range_of_the_last_run_is_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    class Long(Ranged):
        def takes(self, arrays: list[np.ndarray]) -> bool:
            return arrays[1].shape[1] > 8

    programs = Ranged(), Long()
    executable = sized_model(PORTS, make, ranged=cast(Executable, programs[0]))
    batch = Dimension("batch", 1, 4)
    longer = SegmentGuard(open=(batch, Dimension("sequence", 9)))
    stage = ModelSegment(cast(Executable, programs[1]), ("y",), None)
    executable._first.made[longer] = stage
    looked: list[object] = []
    checked = GuardedModel._values
    monkeypatch.setattr(
        GuardedModel, "_values", lambda self, arrays: looked.append(arrays) or checked(self, arrays)
    )
    for sequence, looks in ((5, 0), (12, 1), (13, 1), (5, 2), (6, 2), (20, 3)):
        feeds = arrays(2, sequence)
        np.testing.assert_array_equal(executable.run(feeds)[0], 2 * feeds["mask"])
        assert len(looked) == looks
    assert [program.runs for program in programs] == [3, 3]
    executable.executable({"batch": 2, "sequence": 5})  # a separate program for these sizes is used
    executable.run(arrays(2, 5))
    assert programs[0].runs == 3


def test_a_range_of_a_dimension_that_the_program_expresses_by_others_holds() -> None:
    class OfBatch(Ranged):
        @property
        def dimensions(self) -> tuple[Dimension, ...]:
            return (Dimension("batch", 1, 4),)

    ranged = OfBatch()
    ranges = {"batch": Dimension("batch", 1, 4), "sequence": Dimension("sequence", 1, 6)}
    executable = sized_model(PORTS, make, ranges=ranges, ranged=cast(Executable, ranged))
    executable.run(arrays(2, 6))
    message = r"'mask': dimension 1 \('sequence'\) is 7, expected 1\.\.6"
    with pytest.raises(InvalidInputError, match=message):
        executable.run(arrays(2, 7))
    with pytest.raises(InvalidInputError, match=r"'x' has shape \(3,\)"):
        executable.run({**arrays(2, 6), "x": np.ones(3)})
    executable.executable({"batch": 2, "sequence": 4})  # a separate one for these sizes
    with pytest.raises(InvalidInputError, match=message):
        executable.run(arrays(2, 7))
    assert ranged.runs == 1


def test_a_size_that_was_made_for_its_own_sake_is_used() -> None:
    ranged = Ranged()
    executable = sized_model(PORTS, make, ranged=cast(Executable, ranged))
    executable.executable({"batch": 2, "sequence": 4})
    executable.run(arrays(2, 4))
    assert ranged.runs == 0
    executable.run(arrays(2, 5))
    assert ranged.runs == 1


def test_what_is_wrong_besides_sizes_is_said_as_it_is() -> None:
    class Picky(Ranged):
        def run_into(self, arrays: list[np.ndarray], given: object) -> list[np.ndarray]:
            raise InvalidInputError("input 'x' has dtype int8")

    executable = sized_model(PORTS, make, ranged=cast(Executable, Picky()))
    with pytest.raises(InvalidInputError, match="dtype int8"):
        executable.run(arrays(2, 4))
    assert executable.made == ()


def test_why_nothing_serves_a_range_is_kept() -> None:
    executable = sized_model(PORTS, make, reason="what it gathers depends on n")
    assert executable.reason == "what it gathers depends on n"
    executable.run(arrays(2, 4))
    assert len(executable.made) == 1


@pytest.mark.parametrize("pad", [False, True])
def test_a_size_outside_of_the_range_may_have_a_program_of_its_own(pad: bool) -> None:
    ranges = {"batch": Dimension("batch", 1, 4), "sequence": Dimension("sequence", 1, 8)}
    served = [(("batch", 8), ("sequence", 16))]
    ranged = cast(Executable, Ranged())
    executable = sized_model(replace(PORTS, pad=pad), make, served, ranges, ranged)
    feeds = arrays(8, 16)
    np.testing.assert_array_equal(executable.run(feeds)[0], 2 * feeds["mask"])
    feeds = arrays(6, 3)
    message = "'batch'.* is 6, expected 1..4, or batch=8, sequence=16"
    with pytest.raises(InvalidInputError, match=message):
        executable.executable({"batch": 6, "sequence": 3})
    if pad:
        np.testing.assert_array_equal(executable.run(feeds)[0], 2 * feeds["mask"])
        assert executable.made == tuple(served)
        feeds = arrays(9, 3)
        message = "not served, only batch=8, sequence=16; batch 1..4"
    with pytest.raises(InvalidInputError, match=message):
        executable.run(feeds)


def test_nothing_is_padded_that_the_range_serves() -> None:
    ranged = Ranged()
    ports = replace(PORTS, pad=True)
    served = [(("batch", 4), ("sequence", 16))]
    executable = sized_model(ports, make, served, ranged=cast(Executable, ranged))
    for batch, sequence in ((2, 7), (4, 12), (4, 16)):
        feeds = arrays(batch, sequence)
        np.testing.assert_array_equal(executable.run(feeds)[0], 2 * feeds["mask"])
    assert ranged.runs == 1
    assert executable.made == tuple(served)
