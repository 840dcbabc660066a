from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import UnknownTargetError
from tilewright.compiler.targets.families import x86_64
from tilewright.compiler.targets.host import host_target, resolve_target
from tilewright.compiler.targets.target import Target, known_targets

ALL = sorted(known_targets())


@pytest.mark.parametrize("name", ALL)
def test_described_target_resolves_and_reads_back(name: str) -> None:
    target = resolve_target(name)
    assert target.name == name
    assert Target.from_json(json.loads(json.dumps(target.to_json()))) == target
    assert target.lanes(DType.FLOAT32) == target.vector_bits // 32
    assert target.lanes(DType.INT8) == target.vector_bits // 8


@pytest.mark.parametrize(
    ("name", "unsigned", "signed"),
    [
        ("znver4", DType.UINT8, DType.UINT8),
        ("neoverse-n1", DType.INT8, DType.INT8),
        ("neoverse-v1", DType.UINT8, DType.INT8),
        ("cortex-a72", DType.UINT8, DType.INT8),
        ("x86-64-v2", DType.INT16, DType.INT16),
        ("haswell", DType.INT16, DType.INT16),
        ("x86-64-v4", DType.UINT8, DType.INT8),  # 512 bits of pairs are no faster than floats
        ("wasm32", DType.UINT8, DType.INT8),
    ],
)
def test_bytes_are_multiplied_as_an_instruction_takes_them(
    name: str, unsigned: DType, signed: DType
) -> None:
    target = resolve_target(name)
    assert (target.factor(DType.UINT8), target.factor(DType.INT8)) == (unsigned, signed)
    assert target.multiplies_bytes == (target.has_int8_dot or unsigned is DType.INT16)


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("cascadelake", DType.INT16),
        ("znver4", DType.INT16),
        ("sapphirerapids", DType.INT16),
        ("x86-64-v3", None),  # sums of pairs are added by an instruction of their own
        ("neoverse-v1", None),
    ],
)
def test_16_bits_are_multiplied_where_an_instruction_adds_their_products(
    name: str, factor: DType | None
) -> None:
    target = resolve_target(name)
    assert target.factor(DType.UINT16) is target.factor(DType.INT16) is factor


@pytest.mark.parametrize(
    ("name", "bits", "registers", "fma"),
    [
        ("x86-64-v1", 128, 16, False),
        ("x86-64-v2", 128, 16, False),
        ("x86-64-v3", 256, 16, True),
        ("x86-64-v4", 512, 32, True),
        ("znver4", 512, 32, True),
        ("aarch64", 128, 32, True),
        ("riscv64", 512, 8, True),
        ("wasm32", 128, 12, False),
    ],
)
def test_vectors(name: str, bits: int, registers: int, fma: bool) -> None:
    target = resolve_target(name)
    assert (target.vector_bits, target.vector_registers, target.fma) == (bits, registers, fma)


def test_the_weakest_x86_runs_on_all_others() -> None:
    weakest = resolve_target("x86-64-v1")
    for other in (target for target in known_targets().values() if target.arch == weakest.arch):
        assert weakest.runs_on(other)


def test_keys_differ_and_do_not_depend_on_the_name() -> None:
    keys = {target.key for target in known_targets().values()}
    assert len(keys) == len(ALL)
    target = resolve_target("x86-64-v4")
    assert replace(target, name="other").key == target.key
    for change in ({"cpu": "x"}, {"triple": "x"}, {"features": ()}, {"vector_bits": 64}):
        assert replace(target, **change).key != target.key


def test_key_is_stable() -> None:
    # records in databases carry this key: a change orphans them and needs another KEY_VERSION
    target = Target("t", "x86_64-unknown-linux-gnu", "x86-64-v3", ("+avx2", "+fma"), 256, 16)
    assert target.key == "afbd59a0ded585fa1b4f228ba5ec50db92a6d4b60df7cddbc91977c542c71fc0"


def test_narrowed_vectors_keep_the_instruction_set() -> None:
    target = resolve_target("znver4:256")
    assert target.name == "znver4:256"
    assert target.vector_bits == 256
    assert target.vector_registers == 32
    assert target.features == resolve_target("znver4").features
    assert target.key != resolve_target("znver4").key
    assert resolve_target("znver4:512") == resolve_target("znver4")


@pytest.mark.parametrize(
    ("name", "offender"),
    [
        ("z80", "unknown target 'z80'"),
        ("znver4:1024", "'znver4' has no vectors of 1024 bits"),
        ("znver4:100", "no vectors of 100 bits"),
        ("znver4:wide", "'wide' is not a number"),
        ("znver4:", "is not a number"),
        ("", "unknown target ''"),
        (
            "native",
            r"'native': 'host' is this machine, and `tilewright show targets` lists all \d+$",
        ),
        ("m1", r"; did you mean 'apple-m1'\?"),
        ("zen4", r"lists all \d+; did you mean 'znver4'\?"),
        ("ZEN9", r"; did you mean 'znver2' or .*'znver5'\?"),
        ("zen9", r"; did you mean 'znver2' or .*'znver5'\?"),  # as if it were any digit
        ("avx2", r"; did you mean 'x86-64-v3'\?"),  # the least target with the feature
        ("NEON", r"; did you mean 'aarch64' or 'armv7'\?"),
        ("cortexa76:64", "'cortexa76': .* did you mean 'cortex-a76' or "),
    ],
)
def test_unknown_names(name: str, offender: str) -> None:
    with pytest.raises(UnknownTargetError, match=offender):
        resolve_target(name)


def test_host() -> None:
    host = resolve_target("host")
    assert host == host_target()
    assert host.vector_bits in (128, 256, 512)
    assert host.runs_on(host)
    assert resolve_target(f"host:{host.vector_bits // 2}").runs_on(host)


def test_host_detection_follows_the_features() -> None:
    wide = dict.fromkeys(("avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"), True)
    triple = "x86_64-unknown-linux-gnu"
    detect = x86_64.FAMILY.detect
    assert detect is not None

    def bits(features: dict[str, bool]) -> tuple[int, int]:
        target = detect(triple, "skylake-avx512", features)
        return target.vector_bits, target.vector_registers

    assert bits(wide) == (512, 32)
    assert bits({**wide, "avx512vl": False}) == (256, 16)
    assert bits({**wide, "avx512vl": False, "fma": False}) == (128, 16)
    hidden = detect(triple, "skylake-avx512", {**wide, "avx512f": False})
    assert "-avx512f" in hidden.features
    assert not hidden.has("avx512f")
    assert hidden.has("avx2")


def test_runs_on() -> None:
    v2, v3, v4 = (resolve_target(f"x86-64-v{level}") for level in (2, 3, 4))
    assert v2.runs_on(v4) and v3.runs_on(v4) and v4.runs_on(v4)
    assert not v4.runs_on(v3)
    assert not resolve_target("aarch64").runs_on(v4)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"vector_bits": "512"}, "vector_bits"),
        ({"unknown": 1}, "unknown"),
        ({"features": None}, "features"),
        ({"features": ["+avx2", 3]}, r"features\[1\]"),
        ({"cpu": 3}, "cpu"),
    ],
)
def test_wrong_descriptions_are_refused(change: dict[str, object], path: str) -> None:
    data = {**resolve_target("x86-64-v4").to_json(), **change}
    with pytest.raises(UnknownTargetError, match=f"malformed target: {path}: "):
        Target.from_json(data)


def test_a_core_that_runs_narrower_vectors_multiplies_less_while_a_weight_comes() -> None:
    wide, narrow = (resolve_target(f"x86-64-v3{bits}").core for bits in ("", ":128"))
    assert (wide.fma_bits, narrow.fma_bits) == (256, 128)
    assert narrow.weight_macs == wide.weight_macs / 2
    assert resolve_target("x86-64-v4").core.fma_bits == 256, "wider ones take several passes"


def test_sums_that_one_vector_is_added_to_move_where_its_factor_takes_a_register() -> None:
    named = {name: resolve_target(name) for name in ("x86-64-v3", "x86-64-v4", "aarch64")}
    assert not named["x86-64-v3"].keeps_sums(10, 1)
    assert named["x86-64-v3"].keeps_sums(7, 1), "there are registers for both"
    assert named["x86-64-v3"].keeps_sums(5, 2)
    assert named["x86-64-v4"].keeps_sums(28, 1) and named["aarch64"].keeps_sums(28, 1)
