"""Artifact folders: they load to the same results, and nothing damaged loads."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.runtime import dynamic_programs
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ArtifactError, InvalidArgumentError, InvalidInputError
from tilewright.compiler.runtime import artifact as module
from tilewright.compiler.runtime import artifact_writer
from tilewright.compiler.runtime.artifact import SizedProgram, load_artifact, read_artifact
from tilewright.compiler.runtime.artifact_writer import ArtifactWriter, check_destination
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.guarded import GuardedModel
from tilewright.compiler.runtime.kernel import BufferRole, KernelSpec
from tilewright.compiler.runtime.ports import ModelPorts
from tilewright.compiler.runtime.program import BufferRef, BufferSpace, KernelCall, Port, Program
from tilewright.compiler.runtime.weight_file import WeightFile
from tilewright.compiler.targets.device import find_device
from tilewright.compiler.targets.host import host_target

ROLES = {"in": (BufferRole.INPUT, 64), "w": (BufferRole.WEIGHT, 64), "out": (BufferRole.OUTPUT, 64)}
HOST = host_target()
TARGET = {"name": "host", "triple": f"{HOST.arch}-unknown-linux-gnu", "features": []}
X = np.linspace(0, 1, 64, dtype=np.float32)


@pytest.fixture
def program(make_spec: Callable[..., KernelSpec]) -> Program:
    refs = tuple(
        BufferRef(space, 0)
        for space in (BufferSpace.INPUT, BufferSpace.WEIGHTS, BufferSpace.OUTPUT)
    )
    port = Port("x", DType.FLOAT32, (64,))
    kernel = make_spec("add", {"add_weight": 64}, ROLES)
    call = KernelCall(0, refs)
    return Program("model", (port,), (replace(port, name="y"),), (kernel,), (call,), 0, 256)


@pytest.fixture
def save(program: Program, library_path: Path) -> Callable[..., None]:
    def write(path: Path, value: float = 1.0, **changes: Any) -> None:
        arguments: dict[str, Any] = {
            "programs": [SizedProgram((("batch", 1),), program)],
            "library": library_path.read_bytes(),
            "target": TARGET,
            "metadata": {"model": "m", "schedules": [{"algorithm": "direct"}]},
        }
        with ArtifactWriter(path) as writer:
            for buffer in program.kernels[0].buffers:
                if buffer.role is BufferRole.WEIGHT:
                    writer.weights.add(buffer, np.full(buffer.shape, value, np.float32))
            writer.finish(**{**arguments, **changes})
            writer.publish()

    return write


@pytest.fixture
def saved(tmp_path: Path, save: Callable[..., None]) -> Path:
    save(tmp_path / "model.tw")
    return tmp_path / "model.tw"


@pytest.mark.parametrize("threads", [1, 3])
def test_an_artifact_loads_to_the_same_results(saved: Path, threads: int) -> None:
    executable = load_artifact(saved, threads)
    assert isinstance(executable, Executable)
    assert executable.threads == threads
    np.testing.assert_array_equal(executable.run({"x": X})[0], X + 1)
    assert isinstance(executable.weights, np.memmap)
    assert not executable.weights.flags.writeable
    assert read_artifact(saved).metadata["schedules"] == [{"algorithm": "direct"}]


def test_an_artifact_loads_with_numpy_alone(saved: Path) -> None:
    code = f"""
import sys
import numpy as np
for name in ("llvmlite", "onnx", "xgboost", "sqlalchemy", "ml_dtypes"):
    sys.modules[name] = None
from tilewright.compiler.runtime.artifact import load_artifact
print(load_artifact({str(saved)!r}).run([np.zeros(64, np.float32)])[0].sum())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "64.0\n"


def test_sizes_select_a_program(
    save: Callable[..., None], program: Program, tmp_path: Path
) -> None:
    twice = replace(program, name="batch of 2")
    programs = [SizedProgram((("batch", 1),), program), SizedProgram((("batch", 2),), twice)]
    save(tmp_path / "a", programs=programs)
    artifact = read_artifact(tmp_path / "a")
    assert artifact.executable().program == program
    assert artifact.executable(sizes={"batch": 2}).program == twice
    with pytest.raises(ArtifactError, match="the sizes batch=3, only batch=1; batch=2"):
        load_artifact(tmp_path / "a", sizes={"batch": 3})
    with pytest.raises(InvalidArgumentError, match=r"sizes are a mapping such as .* not 5"):
        load_artifact(tmp_path / "a", sizes=5)  # type: ignore[arg-type]  # a user's mistake


def test_the_sizes_of_the_inputs_select_a_program(
    save: Callable[..., None], program: Program, tmp_path: Path
) -> None:
    (port,) = program.inputs
    programs = [SizedProgram((("n", n),), program) for n in port.shape]
    ports = ModelPorts({port.name: ("n",)}, {program.outputs[0].name: ("n",)})
    save(tmp_path / "a", programs=[*programs, SizedProgram((("n", 1),), program)], ports=ports)
    loaded = load_artifact(tmp_path / "a")
    assert isinstance(loaded, GuardedModel)
    np.testing.assert_array_equal(loaded.run({port.name: X})[0], X + 1)
    assert loaded.made == ((("n", X.size),),)
    with pytest.raises(InvalidInputError, match=f"n=5 is not served, only n={X.size}; n=1"):
        loaded.run({port.name: X[:5]})


def test_a_model_without_weights(
    make_spec: Callable[..., KernelSpec], save: Callable[..., None], tmp_path: Path
) -> None:
    kernel = make_spec(
        "twice", {"twice": 64}, {"i": (BufferRole.INPUT, 64), "o": (BufferRole.OUTPUT, 64)}
    )
    port = Port("x", DType.FLOAT32, (64,))
    call = KernelCall(0, (BufferRef(BufferSpace.INPUT, 0), BufferRef(BufferSpace.OUTPUT, 0)))
    program = Program("twice", (port,), (port,), (kernel,), (call,), 0, 0)
    save(tmp_path / "a", programs=[SizedProgram((), program)])
    np.testing.assert_array_equal(load_artifact(tmp_path / "a").run([X])[0], 2 * X)


def test_an_artifact_is_replaced_as_a_whole(saved: Path, save: Callable[..., None]) -> None:
    old = load_artifact(saved)
    save(saved, value=5.0)
    np.testing.assert_array_equal(load_artifact(saved).run([X])[0], X + 5)
    np.testing.assert_array_equal(old.run([X])[0], X + 1)
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_a_full_disk_leaves_the_old_artifact(
    saved: Path, save: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = artifact_writer._write

    def fail(path: Path, data: bytes) -> None:
        if path.name == module.MANIFEST:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, data)

    monkeypatch.setattr(artifact_writer, "_write", fail)
    for path in (saved, saved.with_name("new")):
        with pytest.raises(ArtifactError, match=r"cannot write artifact .* No space left"):
            save(path, value=5.0)
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
    np.testing.assert_array_equal(load_artifact(saved).run([X])[0], X + 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device")
def test_a_disk_that_fills_with_weights_leaves_the_old_artifact(
    saved: Path, save: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is that of the thread that writes."""
    real = artifact_writer.WeightFile

    def full(path: Path) -> WeightFile:
        path.symlink_to("/dev/full")
        return real(path)

    monkeypatch.setattr(artifact_writer, "WeightFile", full)
    with pytest.raises(ArtifactError, match=r"cannot write artifact .* No space left"):
        save(saved, value=5.0)
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
    np.testing.assert_array_equal(load_artifact(saved).run([X])[0], X + 1)


def test_an_artifact_can_be_tried_before_it_is_at_its_place(
    saved: Path, program: Program, library_path: Path
) -> None:
    with ArtifactWriter(saved) as writer:
        writer.weights.add(program.kernels[0].buffers[1], np.full(64, 7, np.float32))
        programs = [SizedProgram((), program)]
        made = writer.finish(programs, library_path.read_bytes(), TARGET, {})
        executable = made.executable()
        np.testing.assert_array_equal(executable.run([X])[0], X + 7)
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
    np.testing.assert_array_equal(load_artifact(saved).run([X])[0], X + 1)
    np.testing.assert_array_equal(executable.run([X])[0], X + 7)


def test_what_is_no_artifact_is_not_replaced(tmp_path: Path, save: Callable[..., None]) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat").write_text("meow")
    (tmp_path / "file").write_text("text")
    for name in ("photos", "file"):
        with pytest.raises(ArtifactError, match="exists and is not an artifact"):
            save(tmp_path / name)
    assert (tmp_path / "photos" / "cat").read_text() == "meow"
    (tmp_path / "empty").mkdir()
    save(tmp_path / "empty")
    assert load_artifact(tmp_path / "empty")


@pytest.mark.parametrize("manifest", ['{"name": "a page"}', "[]", "no JSON", '{"format": 1}'])
def test_a_manifest_of_others_makes_no_artifact(
    manifest: str, tmp_path: Path, save: Callable[..., None]
) -> None:
    page = tmp_path / "public"
    page.mkdir()
    (page / module.MANIFEST).write_text(manifest)
    with pytest.raises(ArtifactError, match="exists and is not an artifact"):
        save(page)
    assert (page / module.MANIFEST).read_text() == manifest


def test_a_file_beside_an_artifact_is_not_lost(saved: Path, save: Callable[..., None]) -> None:
    save(saved)
    (saved / "index.html").write_text("a page")
    with pytest.raises(ArtifactError, match=r"holds 'index.html' .* it is not replaced"):
        save(saved)
    assert (saved / "index.html").read_text() == "a page"


@pytest.mark.parametrize("name", [module.LIBRARY, module.WEIGHTS, module.MANIFEST])
def test_a_missing_file(saved: Path, name: str) -> None:
    (saved / name).unlink()
    with pytest.raises(ArtifactError, match=f"{name} is missing"):
        load_artifact(saved)


@pytest.mark.parametrize("name", [module.LIBRARY, module.WEIGHTS])
def test_a_changed_or_truncated_file(saved: Path, name: str) -> None:
    data = bytearray((saved / name).read_bytes())
    data[len(data) // 2] ^= 1
    (saved / name).write_bytes(data)
    with pytest.raises(ArtifactError, match=f"{name} is damaged"):
        load_artifact(saved)
    (saved / name).write_bytes(data[:-1])
    with pytest.raises(ArtifactError, match=f"{name} has {len(data) - 1} bytes"):
        load_artifact(saved)


def test_any_change_to_the_manifest_is_found(saved: Path) -> None:
    text = (saved / module.MANIFEST).read_text()
    rng = np.random.default_rng(0)
    places = rng.choice(len(text), 150, replace=False)
    meaningful = [p for p in places if not text[p].isspace()]
    assert len(meaningful) > 40
    for place in meaningful:
        changed = text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1 :]
        (saved / module.MANIFEST).write_text(changed)
        with pytest.raises(ArtifactError):
            load_artifact(saved)
    for end in (0, 1, len(text) // 2, len(text) - 1):
        (saved / module.MANIFEST).write_text(text[:end])
        with pytest.raises(ArtifactError, match="cannot be read"):
            load_artifact(saved)


def rewrite(path: Path, **changes: Any) -> None:
    """Change the manifest and make its checksum right again."""
    manifest = json.loads((path / module.MANIFEST).read_text())
    manifest.update(changes)
    manifest = {key: value for key, value in manifest.items() if value is not None}
    manifest["checksum"] = module.manifest_checksum(manifest)
    (path / module.MANIFEST).write_text(json.dumps(manifest))


Tampering = Callable[[dict[str, Any], dict[str, Any]], object]
TAMPERED: dict[str, Tampering] = {
    "output 'y' has shape|nothing has a size of": lambda m, p: p["outputs"][0].update(
        shape=[10**30]
    ),
    "nothing has a size of 9223372036854775808": lambda m, p: p["kernels"][0].update(
        stages=[["add_weight", 1 << 63]]
    ),
    "arena_bytes: expected an integer .*, got inf": lambda m, p: p.update(arena_bytes=float("inf")),
    r"ports: inputs.x\[0\]: expected an integer or a text": lambda m, p: m["ports"][
        "inputs"
    ].update(x=[float("inf")]),
    "'NoneType' object has no": lambda m, p: m.update(target=None),
    "'NoneType' object is not iterable": lambda m, p: m["target"].update(features=None),
    "list indices": lambda m, p: m.update(files=[]),
    "there is no 'bytes'": lambda m, p: m["files"].update({module.LIBRARY: {}}),
    "has the inputs 'x', not none": lambda m, p: m["ports"].update(inputs={}),
    "has the outputs 'y', not 'z'": lambda m, p: m["ports"].update(outputs={"z": [64]}),
    r"input 'x' has shape \(64,\), not \(64, n\)": lambda m, p: m["ports"].update(
        inputs={"x": [64, "n"]}
    ),
    "output 'y': dimension 0 depends": lambda m, p: m["ports"].update(
        outputs={"y": ["other"]}, pad=True
    ),
    "is malformed": lambda m, p: m.update(metadata=None),
}


@pytest.mark.parametrize("message", TAMPERED)
def test_no_manifest_gets_another_error(saved: Path, message: str) -> None:
    manifest = json.loads((saved / module.MANIFEST).read_text())
    TAMPERED[message](manifest, manifest["programs"][0]["program"])
    manifest["checksum"] = module.manifest_checksum(manifest)
    (saved / module.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match=message):
        load_artifact(saved)


def test_a_manifest_that_is_nested_deeply(saved: Path) -> None:
    (saved / module.MANIFEST).write_text('{"a":' * 100_000)
    with pytest.raises(ArtifactError, match="is malformed"):
        load_artifact(saved)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "of another kind"),
        ({"version": 99}, "has format 99 and kernel ABI 1"),
        ({"abi": 99}, "kernel ABI 99"),
        ({"programs": []}, "contains no program"),
        ({"programs": [{"sizes": {}}]}, "malformed"),
        ({"programs": 3}, "malformed"),
        ({"ports": {"inputs": {"x": 3}}}, "malformed"),
        ({"ports": {"inputs": {}, "outputs": {}, "pad": False, "hints": {"n": "?"}}}, "malformed"),
        ({"files": None}, "has no 'files'"),
        ({"target": {"triple": "pdp11-dec-unix"}}, "is for pdp11, this machine is"),
    ],
)
def test_other_kinds_and_versions(saved: Path, changes: dict[str, Any], message: str) -> None:
    rewrite(saved, **changes)
    with pytest.raises(ArtifactError, match=message):
        load_artifact(saved)


def test_a_processor_without_the_features(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = replace(find_device(), architecture="x86_64", features=("avx2", "fma", "pni"))
    monkeypatch.setattr("tilewright.compiler.runtime.artifact.this_device", lambda: here)
    rewrite(saved, target={**TARGET, "cpu": "znver4", "features": ["+avx2", "-sse4.2", "+64bit"]})
    assert read_artifact(saved)
    rewrite(saved, target={**TARGET, "cpu": "znver4", "features": ["+avx2", "+avx512f"]})
    with pytest.raises(ArtifactError, match="for znver4, this processor lacks avx512f"):
        load_artifact(saved)


@pytest.mark.parametrize(
    ("architecture", "switches", "bits"),
    [("aarch64", ["+sve"], 256), ("aarch64", ["+neon"], 256), ("aarch64", ["+sve"], 128),
     ("riscv64", ["+v", "+zvl512b"], 256), ("riscv64", ["+v", "+zvl128b"], 128)],
)  # fmt: skip
def test_vectors_that_are_too_short_would_compute_a_part(
    saved: Path, monkeypatch: pytest.MonkeyPatch, architecture: str, switches: list[str], bits: int
) -> None:
    features = ("asimd", "sve", "v")
    here = replace(find_device(), architecture=architecture, processor="", features=features)
    monkeypatch.setattr("tilewright.compiler.runtime.artifact.this_device", lambda: here)
    triple = f"{architecture}-unknown-linux-gnu"
    given = {**TARGET, "cpu": "x", "triple": triple, "features": switches, "vector_bits": bits}
    rewrite(saved, target=given)
    needed = {("+sve", 256): 256, ("+zvl512b", 256): 512}.get((switches[-1], bits), 0)
    for found in (0, 128, 256, 512, 2048):
        monkeypatch.setattr(
            "tilewright.compiler.runtime.artifact.vector_bits", lambda found=found: found
        )
        if found >= needed:
            assert read_artifact(saved)
            continue
        has = f"has vectors of {found} bits" if found else "has none whose length is known"
        with pytest.raises(ArtifactError, match=f"lacks vectors of {needed} bits: it {has}$"):
            read_artifact(saved)


def test_this_processor_has_the_features_that_llvm_finds() -> None:
    binding = pytest.importorskip("llvmlite.binding")
    features = binding.get_host_cpu_features().flatten().split(",")
    here = find_device()
    missing = HOST.family.missing(HOST.cpu, features, here.processor, here.features)
    assert missing == ()


def test_a_library_without_the_kernel(
    saved: Path, save: Callable[..., None], tmp_path: Path
) -> None:
    source, library = tmp_path / "empty.c", tmp_path / "empty.so"
    source.write_text("int nothing;")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    save(saved, library=library.read_bytes())
    with pytest.raises(ArtifactError, match=r"cannot load: .*add_weight"):
        load_artifact(saved)
    save(saved, library=b"no library")
    with pytest.raises(ArtifactError, match="cannot load"):
        load_artifact(saved)


def test_a_path_without_an_artifact(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", Path(__file__)):
        with pytest.raises(ArtifactError, match="is not a folder"):
            load_artifact(path)


@pytest.fixture
def ranged(tmp_path: Path, save: Callable[..., None]) -> Path:
    """All sizes of the ranges, and a program of its own for one of them."""
    path, program = tmp_path / "ranged.tw", dynamic_programs.dynamic_program()
    special = replace(program.at({"past": 3, "chunk": 8}), name="special")
    sizes = (("all", 11), ("chunk", 8), ("past", 3))
    outputs = {port.name: (-1,) for port in program.outputs} | {"y": (-1, 8)}
    ports = ModelPorts({"old": ("past", 8), "new": ("chunk", 8), "flags": ("all",)}, outputs)
    save(path, programs=[SizedProgram((), program), SizedProgram(sizes, special)], ports=ports)
    return path


def test_an_artifact_with_ranges_runs_with_numpy_alone(ranged: Path) -> None:
    code = f"""
import random
import sys
for name in ("llvmlite", "onnx", "xgboost", "sqlalchemy", "ml_dtypes"):
    sys.modules[name] = None
import tilewright
from tests.unit.runtime.dynamic_programs import expect, feeds
loaded = tilewright.load_artifact({str(ranged)!r})
draw = random.Random(1)
for past in [0, 64, *(draw.randint(0, 64) for _ in range(40))]:
    given = feeds(past, 4 * draw.randint(1, 8))
    expect(loaded.run(given), given)
assert loaded.made == ()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_manifest_states_its_ranges(ranged: Path) -> None:
    manifest = json.loads((ranged / "manifest.json").read_text())
    assert manifest["version"] == 3
    assert manifest["programs"][0]["program"]["dimensions"] == {"chunk": "4..32:4", "past": "0..64"}
    artifact = read_artifact(ranged)
    assert artifact.served_text == "chunk 4..32:4, past 0..64; all=11, chunk=8, past=3"
    assert artifact.ranged == dynamic_programs.dynamic_program()


def test_sizes_with_a_program_of_their_own_use_it(ranged: Path) -> None:
    loaded = load_artifact(ranged)
    assert isinstance(loaded, GuardedModel)
    for past, chunk in ((3, 8), (3, 4), (4, 8)):
        given = dynamic_programs.feeds(past, chunk)
        dynamic_programs.expect(loaded.run(given), given)
    assert loaded.made == ((("all", 11), ("chunk", 8), ("past", 3)),)
    assert loaded.executable({"past": 3, "chunk": 8, "all": 11}).program.name == "special"


def test_sizes_outside_of_an_artifacts_ranges_are_refused(ranged: Path) -> None:
    loaded = load_artifact(ranged)
    given = dynamic_programs.feeds(65, 4)
    with pytest.raises(
        InvalidInputError, match=r"'old': dimension 0 \('past'\) is 65, expected 0..64"
    ):
        loaded.run(given)
    one = load_artifact(ranged, sizes={"past": 5, "chunk": 4})
    assert isinstance(one, Executable)
    assert one.inputs[0].shape == (5, 8)
    given = dynamic_programs.feeds(5, 4)
    dynamic_programs.expect(one.run(given), given)
    assert load_artifact(ranged, sizes={"past": 5, "chunk": 4, "all": 9}).run(given)
    text = "the sizes chunk=3, past=5, only chunk 4..32:4, past 0..64; all=11, chunk=8, past=3"
    with pytest.raises(ArtifactError, match=text):
        load_artifact(ranged, sizes={"chunk": 3, "past": 5})
    for wrong in ({"past": 5}, {"past": 5, "chunk": 4, "x": 1}, {"past": 5, "chunk": 4, "all": 8}):
        with pytest.raises(ArtifactError, match="does not serve the sizes"):
            load_artifact(ranged, sizes=wrong)


def test_two_programs_with_ranges_are_refused(tmp_path: Path, save: Callable[..., None]) -> None:
    program = dynamic_programs.dynamic_program()
    save(tmp_path / "two.tw", programs=[SizedProgram((), program), SizedProgram((), program)])
    with pytest.raises(ArtifactError, match="contains two programs with ranges"):
        read_artifact(tmp_path / "two.tw")


@pytest.mark.parametrize("path", ["/proc/out", "/proc/new/out"])
def test_a_folder_that_takes_no_folders_is_refused_with_a_remedy(path: str) -> None:
    """Even root cannot create a folder there, though its permissions say so."""
    expected = (
        rf"^cannot write artifact '{path}': no folder can be created in '/proc' \(.*\); choose"
    )
    with pytest.raises(ArtifactError, match=expected):
        check_destination(path)


def test_a_destination_is_checked_without_a_trace(tmp_path: Path) -> None:
    check_destination(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a\0b", "a\0b/out"])
def test_a_destination_with_a_null_byte_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArtifactError, match=r"cannot write artifact '.*': embedded null byte$"):
        check_destination(tmp_path / name)


def test_a_file_among_the_parents_of_a_destination_is_named(tmp_path: Path) -> None:
    (tmp_path / "afile").touch()
    with pytest.raises(ArtifactError, match=r"cannot write artifact '.*out': '.*afile' is a file$"):
        check_destination(tmp_path / "afile" / "out")
