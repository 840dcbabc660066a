"""Models that one process compiles and the next one loads: hits and misses of the cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tilewright.compiler.driver import compile_with, make_plan
from tilewright.compiler.errors import ArtifactError, InvalidArgumentError, InvalidModelError
from tilewright.compiler.frontend.model_file import read_model, with_tensors
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.mode import Mode
from tilewright.compiler.options import CompileOptions
from tilewright.compiler.plan.plan import GraphPlan
from tilewright.compiler.runtime.artifact import Artifact, read_artifact
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.guarded import GuardedModel
from tilewright.compiler.specialise import store as kept_models
from tilewright.compiler.specialise.cache_folder import CacheFolder
from tilewright.compiler.specialise.store import ARTIFACT, CompilationCache, user_cache_folder
from tilewright.compiler.targets.host import check_runs_here, resolve_target

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def model(factor: float = 2.0, rows: int | str = 2) -> onnx.ModelProto:
    """x @ W, with W as many times the identity."""
    weights = numpy_helper.from_array(factor * np.eye(3, dtype=np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 3])],
        [weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture
def folder(tmp_path: Path) -> CacheFolder:
    return CacheFolder(tmp_path / "kept", 1 << 20)


@pytest.fixture
def kept(folder: CacheFolder) -> CompilationCache:
    return CompilationCache(folder)


def test_a_message_whose_tensors_are_apart_is_kept(
    folder: CacheFolder, kept: CompilationCache, compiles: list[str]
) -> None:
    for factor, known in ((2.0, 1), (2.0, 1), (3.0, 2)):
        read = with_tensors(read_model(model(factor)))
        (found,) = kept.compile(read, CompileOptions()).run({"x": X})
        np.testing.assert_allclose(found, factor * X)
        assert len(compiles) == known
        assert len(list(folder.entries())) == known
    kept.compile(read_model(model()), CompileOptions())  # its tensors are in the message
    assert len(list(folder.entries())) == 2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(model(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The compiled programs, by the sizes of their input."""
    from tilewright.compiler import driver

    found: list[str] = []
    load_graph = driver.load_graph

    def counted(*arguments: object) -> object:
        graph = load_graph(*arguments)  # type: ignore[arg-type]  # as they come
        found.append(", ".join(map(str, graph.types[graph.inputs[0]].shape)))
        return graph

    monkeypatch.setattr(driver, "load_graph", counted)
    return found


class NothingKnown:
    """A source of schedules."""

    def best(self, *_: object) -> None:
        return None


def entries(folder: CacheFolder) -> list[Path]:
    return [entry for _, _, entry in folder.entries()]


def test_the_second_compile_loads(kept: CompilationCache, path: Path, compiles: list[str]) -> None:
    for each in (path, str(path)):
        found = kept.compile(each, CompileOptions())
        assert isinstance(found, Executable)
        assert np.array_equal(found.run({"x": X})[0], 2 * X)
    data = path.read_bytes()
    assert np.array_equal(kept.compile(data, CompileOptions()).run([X])[0], 2 * X)
    assert len(compiles) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 2},
        {"numerics": "strict"},
        {"precision": "bfloat16"},
        {"weight_limit_bytes": 1 << 20},
        {"target": resolve_target("x86-64-v2")},
    ],
)
def test_other_options_are_another_model(
    kept: CompilationCache, path: Path, compiles: list[str], options: dict[str, Any]
) -> None:
    limit: Any = options.pop("weight_limit_bytes", None)
    other = CompileOptions(Mode(**options), weight_limit_bytes=limit)
    try:
        check_runs_here(other.mode.target)
    except tilewright.CompilerError as error:
        pytest.skip(str(error))
    for _ in range(2):
        kept.compile(path, CompileOptions())
        assert np.array_equal(kept.compile(path, other).run([X])[0], 2 * X)
    assert len(compiles) == 2


def test_another_release_compiles_again(
    kept: CompilationCache, path: Path, compiles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files may be as long and as old as this one's: wheels may give all of them one time."""

    def tomorrow(package: str) -> str:
        return "1000.0" if package == "tilewright" else version(package)

    kept.compile(path, CompileOptions())
    kept_models._compiler_digest.cache_clear()
    monkeypatch.setattr(kept_models, "version", tomorrow)
    kept.compile(path, CompileOptions())
    kept_models._compiler_digest.cache_clear()
    assert len(compiles) == 2


def test_other_bytes_are_another_model(kept: CompilationCache, path: Path) -> None:
    kept.compile(path, CompileOptions())
    onnx.save(model(3.0), path)
    assert np.array_equal(kept.compile(path, CompileOptions()).run([X])[0], 3 * X)


def test_one_program_serves_ranges(kept: CompilationCache, path: Path, compiles: list[str]) -> None:
    onnx.save(model(rows="n"), path)
    options = CompileOptions(dims={"n": "1..8"})
    first = kept.compile(path, options)
    found = kept.compile(path, options)
    assert isinstance(found, GuardedModel) and compiles == ["n, 3"]
    assert found.ranges == getattr(first, "ranges")  # noqa: B009 - not all have it
    for rows in (1, 2, 8):
        feeds = np.ones((rows, 3), np.float32)
        assert np.array_equal(found.run([feeds])[0], 2 * feeds)
    with pytest.raises(tilewright.InvalidInputError, match=r"\('n'\) is 9"):
        found.run([np.ones((9, 3), np.float32)])


def test_sizes_outside_of_a_default_range_compile(
    kept: CompilationCache, path: Path, compiles: list[str]
) -> None:
    onnx.save(model(rows="n"), path)
    kept.compile(path, CompileOptions())
    found = kept.compile(path, CompileOptions())
    many = np.ones((5000, 3), np.float32)
    assert np.array_equal(found.run([many])[0], 2 * many)
    assert compiles == ["n, 3", "5000, 3"]
    path.write_bytes(b"another")
    with pytest.raises(InvalidModelError, match=r"m\.onnx' has changed"):
        found.run([np.ones((5001, 3), np.float32)])


def test_the_part_of_a_range_that_holds_the_hint_is_kept(
    kept: CompilationCache, path: Path, compiles: list[str]
) -> None:
    onnx.save(part_of_a_table(), path)
    options = CompileOptions(dims={"n": "1..8@4"})
    first, found = (kept.compile(path, options) for _ in range(2))
    for each in (first, found):
        assert isinstance(each, GuardedModel) and each.ranged is not None
        assert [d.range_text for d in each.ranged.dimensions] == ["1..5"]
    assert compiles == ["n, 3"]
    for rows in (5, 8):
        (got,) = found.run([np.zeros((rows, 3), np.float32)])
        assert got.shape == (5, 3)
    assert compiles == ["n, 3", "8, 3"]


def part_of_a_table() -> onnx.ModelProto:
    """As many of five rows as x has."""
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], start=0, end=1),
        helper.make_node("Slice", ["table", "zeros", "n", "zeros"], ["part"]),
        helper.make_node("Neg", ["part"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 3])],
        [
            numpy_helper.from_array(np.ones((5, 3), np.float32), "table"),
            numpy_helper.from_array(np.zeros(1, np.int64), "zeros"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_external_data_belongs_to_the_model(kept: CompilationCache, path: Path) -> None:
    for factor in (2.0, 3.0):
        path.with_suffix(".data").unlink(missing_ok=True)
        onnx.save(
            model(factor), path, save_as_external_data=True, location="m.data", size_threshold=0
        )
        for _ in range(2):
            assert np.array_equal(kept.compile(path, CompileOptions()).run([X])[0], factor * X)
    path.with_suffix(".data").unlink()
    with pytest.raises(InvalidModelError, match=r"m\.data"):
        kept.compile(path, CompileOptions())


def test_external_data_lie_beside_the_file_that_a_link_names(
    kept: CompilationCache, path: Path, tmp_path: Path
) -> None:
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "m.onnx"
    link.symlink_to(path)
    there = {"save_as_external_data": True, "location": "m.data", "size_threshold": 0}
    onnx.save(model(2.0), path, **there)  # type: ignore[arg-type]  # each is of its own type
    assert np.array_equal(kept.compile(link, CompileOptions()).run([X])[0], 2 * X)
    path.with_suffix(".data").write_bytes((3 * np.eye(3, dtype=np.float32)).tobytes())
    assert np.array_equal(kept.compile(link, CompileOptions()).run([X])[0], 3 * X)


@pytest.mark.parametrize("location", ["/dev/zero", "pipe"])
def test_external_data_without_an_end_are_refused(
    kept: CompilationCache, path: Path, location: str
) -> None:
    os.mkfifo(path.with_name("pipe"))
    made = model()
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    path.write_bytes(made.SerializeToString())
    with pytest.raises(InvalidModelError, match="external data"):
        kept.compile(path, CompileOptions())


def test_programs_of_other_sizes_have_the_same_external_data(
    kept: CompilationCache, path: Path
) -> None:
    def save(factor: float) -> None:
        path.with_suffix(".data").unlink(missing_ok=True)
        there = {"save_as_external_data": True, "location": "m.data", "size_threshold": 0}
        onnx.save(model(factor, "n"), path, **there)

    save(2.0)
    before = path.stat()
    kept.compile(path, CompileOptions())
    found = kept.compile(path, CompileOptions())
    data = path.with_suffix(".data")
    data.write_bytes((3 * np.eye(3, dtype=np.float32)).tobytes())
    after = path.stat()  # its access time changes when it is read
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    with pytest.raises(InvalidModelError, match=r"m\.data.* has changed"):
        found.run([np.ones((5000, 3), np.float32)])


@pytest.mark.parametrize("name", ["manifest.json", "kernels.so", "weights.bin", "../details.json"])
@pytest.mark.parametrize("damage", [None, b"", b"[]", b"{}"])
def test_what_is_damaged_is_compiled_again(
    kept: CompilationCache,
    folder: CacheFolder,
    path: Path,
    compiles: list[str],
    name: str,
    damage: bytes | None,
) -> None:
    kept.compile(path, CompileOptions())
    (entry,) = entries(folder)
    file = entry / ARTIFACT / name
    file.unlink()
    if damage is not None:
        file.write_bytes(damage)
    for _ in range(2):
        assert np.array_equal(kept.compile(path, CompileOptions()).run([X])[0], 2 * X)
    assert len(compiles) == 2


def test_a_folder_that_cannot_be_written_does_not_hinder(path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    kept = CompilationCache(CacheFolder(tmp_path / "file", 1 << 20))
    assert np.array_equal(kept.compile(path, CompileOptions()).run([X])[0], 2 * X)


def test_a_full_disk_does_not_hinder(
    kept: CompilationCache, folder: CacheFolder, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tilewright.compiler.runtime.artifact_writer._write", full)
    assert np.array_equal(kept.compile(path, CompileOptions()).run([X])[0], 2 * X)
    assert not entries(folder)


@pytest.mark.parametrize("rows", [2, "n"])
def test_a_machine_without_a_linker_compiles(
    kept: CompilationCache,
    folder: CacheFolder,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows: int | str,
) -> None:
    monkeypatch.setattr("tilewright.compiler.codegen.link.linkers", lambda: ())
    onnx.save(model(rows=rows), path)
    found = kept.compile(path, CompileOptions())
    assert np.array_equal(found.run([X])[0], 2 * X)
    assert not getattr(found, "reason", "") and not entries(folder)


def test_a_model_that_comes_through_a_pipe_is_read_once(kept: CompilationCache, path: Path) -> None:
    read, write = os.pipe()  # as a shell gives it: `/dev/fd/N`
    os.write(write, path.read_bytes())
    os.close(write)
    found = kept.compile(f"/dev/fd/{read}", CompileOptions())
    os.close(read)
    assert np.array_equal(found.run([X])[0], 2 * X)


def test_a_model_that_changes_while_it_compiles_is_not_kept(
    kept: CompilationCache, folder: CacheFolder, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilewright.compiler import driver

    def changing(*arguments: object) -> object:
        onnx.save(model(3.0), path)
        return driver.import_model(*arguments)  # type: ignore[arg-type]  # as they come

    monkeypatch.setattr(driver, "load_graph", lambda *given: changing(*given[:2]))
    assert np.array_equal(kept.compile(path, CompileOptions()).run([X])[0], 2 * X)
    assert not entries(folder)


def test_what_others_plan_is_not_kept(
    kept: CompilationCache, folder: CacheFolder, path: Path
) -> None:
    kept.compile(model(), CompileOptions())  # a message in memory
    kept.compile(path, CompileOptions(planner=lambda graph, _: plan_of(graph)))
    assert not entries(folder)


def plan_of(graph: Graph) -> GraphPlan:
    return make_plan(graph, Mode())


def test_a_model_with_schedules_is_kept_while_they_are_the_same(
    kept: CompilationCache, folder: CacheFolder, path: Path, compiles: list[str]
) -> None:
    options = CompileOptions(schedules=NothingKnown())
    for _ in range(2):
        assert np.array_equal(kept.compile(path, options).run([X])[0], 2 * X)
    assert len(compiles) == 1
    (entry,) = entries(folder)
    details = json.loads((entry / "details.json").read_text())
    assert [found for _, found in details["schedules"]] == [""]
    details["schedules"][0][1] = '{"algorithm": "another", "choices": {}}'
    for lie in (details, {**details, "schedules": [1]}, {**details, "schedules": None}):
        (entry / "details.json").write_text(json.dumps(lie))
        kept.compile(path, options)
    assert len(compiles) == 4
    kept.compile(path, CompileOptions())  # is another one
    assert len(entries(folder)) == 2


def test_a_tuned_program_is_kept_beside_the_other(
    kept: CompilationCache, folder: CacheFolder, path: Path, compiles: list[str]
) -> None:
    options = CompileOptions()
    kept.compile(path, options)
    assert kept.tuned(path, options) is None
    for count in (2, 3):  # the later one instead of the earlier
        made = kept.keep_tuned(path, options, lambda into: compile_with(path, options, into))
        assert np.array_equal(made.run([X])[0], 2 * X)
        found = kept.tuned(path, options)
        assert found is not None and np.array_equal(found.run([X])[0], 2 * X)
        assert len(compiles) == count
        assert len(entries(folder)) == 2
    assert kept.tuned(path, CompileOptions(Mode(threads=2))) is None
    nowhere = CompilationCache(None)
    assert nowhere.tuned(path, options) is None
    assert nowhere.keep_tuned(path, options, lambda into: made if into is None else None) is made


def test_a_tuned_program_stays_until_there_is_another(kept: CompilationCache, path: Path) -> None:
    options = CompileOptions()
    kept.keep_tuned(path, options, lambda into: compile_with(path, options, into))

    def fails(into: Path | None) -> Executable:
        assert kept.tuned(path, options) is not None
        raise InvalidModelError("it does not compile")

    with pytest.raises(InvalidModelError):
        kept.keep_tuned(path, options, fails)
    assert kept.tuned(path, options) is not None


def test_what_is_replaced_while_it_is_read_is_read_again(
    kept: CompilationCache, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = CompileOptions()

    def keep() -> None:
        kept.keep_tuned(path, options, lambda into: compile_with(path, options, into))

    keep()
    looked: list[Path] = []

    def replacing(folder: Path) -> Artifact:
        looked.append(folder)
        if len(looked) == 1:
            keep()
            raise ArtifactError("half of it is of the other")
        return read_artifact(folder)

    monkeypatch.setattr(kept_models, "read_artifact", replacing)
    found = kept.tuned(path, options)
    assert found is not None and np.array_equal(found.run([X])[0], 2 * X)
    assert len(looked) == 2 and kept.tuned(path, options) is not None


def test_a_bad_model_is_refused_each_time(kept: CompilationCache, path: Path) -> None:
    path.write_bytes(b"no model")
    for _ in range(2):
        with pytest.raises(InvalidModelError):
            kept.compile(path, CompileOptions())
    with pytest.raises(InvalidModelError, match="cannot be read"):
        kept.compile(path.with_name("absent.onnx"), CompileOptions())


def test_a_process_loads_what_another_compiled(path: Path, tmp_path: Path) -> None:
    """The second process does without onnx and the compiler."""
    script = (
        "import sys, numpy, tilewright\n"
        f"found = tilewright.compile_model({str(path)!r})\n"
        "print(found.run([numpy.ones((2, 3), numpy.float32)])[0].sum(),"
        " 'onnx' in sys.modules, 'tilewright.compiler.driver' in sys.modules)\n"
    )
    environment = {**os.environ, "TILEWRIGHT_KEPT_FOLDER": str(tmp_path / "kept")}
    said = [
        subprocess.run(
            [sys.executable, "-c", script], env=environment, check=True, capture_output=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert said == [[b"12.0", b"True", b"True"], [b"12.0", b"False", b"False"]]


def test_the_environment_says_where(tmp_path: Path) -> None:
    def at(**environment: str) -> Path | None:
        found = user_cache_folder(environment)
        return found and found.path

    assert at() == Path.home() / ".cache" / "tilewright" / "compiled"
    assert at(XDG_CACHE_HOME="/c") == Path("/c/tilewright/compiled")
    assert at(TILEWRIGHT_KEPT_FOLDER="/f", XDG_CACHE_HOME="/c") == Path("/f")
    assert at(TILEWRIGHT_KEPT_FOLDER="") is None
    limited = user_cache_folder({"TILEWRIGHT_KEPT_BYTES": "5"})
    assert limited is not None and limited.limit_bytes == 5
    for bad in ("", "-1", "1e9", "many"):
        with pytest.raises(InvalidArgumentError, match="TILEWRIGHT_KEPT_BYTES"):
            user_cache_folder({"TILEWRIGHT_KEPT_BYTES": bad})


def test_a_user_without_a_home_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    assert user_cache_folder({}) is None
    assert user_cache_folder({"TILEWRIGHT_KEPT_FOLDER": "/f"}) is not None


def test_details_that_lie_are_not_believed(
    kept: CompilationCache, folder: CacheFolder, path: Path, compiles: list[str]
) -> None:
    onnx.save(model(rows="n"), path)
    options = CompileOptions(dims={"n": "1..8"})
    true = {"files": {}, "ranges": {}, "reason": ""}
    for lie in ({"ranges": {"n": "8..1"}}, {"ranges": [1]}, {"files": 3}, {"reason": 3}):
        kept.compile(path, options)
        (entry,) = entries(folder)
        (entry / "details.json").write_text(json.dumps(true | lie))
    assert np.array_equal(kept.compile(path, options).run([X])[0], 2 * X)
    assert len(compiles) == 5
