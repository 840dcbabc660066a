"""The JSON form of the kernel ABI."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.layout import Factor, Layout
from tilewright.compiler.runtime.kernel import (
    ABI_VERSION,
    BufferRole,
    BufferSpec,
    KernelSpec,
    StageSpec,
)

sizes = st.integers(0, 2**40)
factors = st.builds(
    Factor, st.integers(0, 3), st.integers(1, 64), st.none() | st.integers(1, 64), sizes
)


@st.composite
def buffers(draw: st.DrawFn) -> BufferSpec:
    shape = tuple(draw(st.lists(sizes, max_size=5)))
    halo = tuple((draw(sizes), draw(sizes)) for _ in shape) if draw(st.booleans()) else ()
    matrix = st.lists(
        st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3).map(tuple)
    ).map(tuple)
    return BufferSpec(
        draw(st.text()),
        draw(st.sampled_from(BufferRole)),
        draw(st.sampled_from(DType)),
        shape,
        str(Layout(tuple(draw(st.lists(factors, max_size=4))))),
        halo,
        draw(sizes),
        draw(st.integers(-1, 9)),
        draw(st.sampled_from(["", "xk,oikl,yl->xyoi"])),
        tuple(draw(st.lists(matrix, max_size=2))),
    )


@st.composite
def kernels(draw: st.DrawFn) -> KernelSpec:
    members = draw(st.lists(buffers(), max_size=4))
    if members:
        alias = draw(st.integers(0, len(members) - 1))
        members[0] = replace(members[0], may_alias=(alias,))
    stages = draw(st.lists(st.builds(StageSpec, st.text(), sizes), max_size=3))
    return KernelSpec(ABI_VERSION, draw(st.text()), tuple(stages), tuple(members), draw(sizes))


@given(kernels())
def test_a_kernel_reads_back_to_an_equal_value(kernel: KernelSpec) -> None:
    assert KernelSpec.from_json(json.loads(json.dumps(kernel.to_json()))) == kernel


GOOD = KernelSpec(
    ABI_VERSION,
    "k",
    (StageSpec("f", 4),),
    (BufferSpec("x", BufferRole.INPUT, DType.FLOAT32, (4, 4), "0 1", ((1, 1), (0, 0)), 96, 0),),
    64,
).to_json()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"abi": ABI_VERSION + 1}, "kernel ABI"),
        ({"stages": [["f", -1]]}, "expected a size"),
        ({"stages": [["f", True]]}, "expected a size"),
        ({"scratch_bytes": 0.5}, "expected a size"),
        ({"buffers": [{**GOOD["buffers"][0], "may_alias": [1]}]}, "does not exist"),
        ({"buffers": [{**GOOD["buffers"][0], "halo": [[1, 1]]}]}, "differ in rank"),
        ({"buffers": [{**GOOD["buffers"][0], "dtype": "float31"}]}, "float31"),
        ({"buffers": [{"name": "x"}]}, r"buffers\[0\].role: is missing"),
        ({"buffers": None}, "malformed kernel"),
    ],
)
def test_malformed_kernels_are_refused(change: dict[str, object], reason: str) -> None:
    assert KernelSpec.from_json(GOOD)
    with pytest.raises(ValueError, match=reason):
        KernelSpec.from_json({**GOOD, **change})


def test_a_missing_field_is_refused() -> None:
    for field in GOOD:
        with pytest.raises(ValueError, match="malformed kernel"):
            KernelSpec.from_json({k: v for k, v in GOOD.items() if k != field})
