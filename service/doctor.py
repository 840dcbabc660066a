"""Checks this installation: LLVM, linkers, cores, disks and the database.

A finding states what was checked, a grade, and a remedy if there is a problem.
`service.worker.check` checks the suitability of the machine for measurements.
"""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.targets.device import available_cores
from tilewright.compiler.targets.granted_cores import granted_cores
from tilewright.service.settings import Settings
from tilewright.service.worker.check import DeviceFinding, Grade

LEAST_FREE_BYTES = 64 << 20
"""Free disk space in bytes below which databases and artifacts cannot be written."""

ENOUGH_FREE_BYTES = 2 << 30
"""Free disk space in bytes that suffices for a large model, its artifact and its trials."""


def check_installation(settings: Settings, root: Path = Path("/")) -> list[DeviceFinding]:
    """Run all checks of the installation, and return a finding per check.

    It does not check whether the machine is suitable for measurements.

    Args:
        settings: state the locations of the database and the blobs.
        root: the folder that contains `proc` and `sys`.
    """
    return [
        _python(),
        _compiler(),
        _linker(),
        _granted(root),
        _disk(settings.data_folder),
        _kept(),
        _database(settings),
    ]


def _python() -> DeviceFinding:
    version = ".".join(map(str, sys.version_info[:3]))
    return DeviceFinding("python", Grade.FINE, f"{version}, NumPy {np.__version__}")


def _compiler() -> DeviceFinding:
    """Compile a matrix product, compare its result with NumPy, and return the finding."""
    try:
        from llvmlite import __version__ as llvmlite
        from llvmlite.binding import llvm_version_info
        from onnx import TensorProto, helper

        from tilewright.compiler.driver import compile_with
        from tilewright.compiler.options import CompileOptions
    except ImportError as error:
        do = "pip install 'tilewright[compiler]'; a worker needs neither"
        return DeviceFinding("compiler", Grade.POOR, f"no '{error.name}': nothing compiles", do)
    shapes = {"a": [8, 16], "b": [16, 8], "c": [8, 8]}
    a, b, c = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items())
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["c"])], "g", [a, b], [c])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    random = np.random.default_rng(0)
    x, y = (random.integers(-4, 5, shapes[n]).astype(np.float32) for n in "ab")
    started = time.perf_counter()
    try:
        options = CompileOptions()
        (found,) = compile_with(model, options).run([x, y])
    except CompilerError as error:
        do = "pip install --force-reinstall llvmlite; if that does not help, it is a bug of ours"
        return DeviceFinding("compiler", Grade.WRONG, str(error), do)
    seconds = time.perf_counter() - started
    llvm = ".".join(map(str, llvm_version_info))
    named = f"llvmlite {llvmlite}, LLVM {llvm}, target '{options.mode.target.name}'"
    if not np.array_equal(found, x @ y):  # sums of small integers are exact in any order
        do = "compile with --numerics strict, and report it: it is a bug of LLVM or ours"
        return DeviceFinding("compiler", Grade.WRONG, f"{named}: a product is wrong", do)
    return DeviceFinding("compiler", Grade.FINE, f"{named}; a product took {seconds:.2f} s")


def _linker() -> DeviceFinding:
    from tilewright.compiler.codegen.link import linkers

    do = "pip install ziglang (or lld by the system's packages)"
    found = linkers()
    if not found:
        return DeviceFinding("linker", Grade.POOR, "none: artifacts cannot be written", do)
    if not any("lld" in word for command in found for word in command):
        here = Path(found[0][0]).name
        said = f"'{here}' links for this machine alone, not for other targets"
        return DeviceFinding("linker", Grade.POOR, said, do)
    return DeviceFinding("linker", Grade.FINE, "for every target")


def _granted(root: Path) -> DeviceFinding:
    cores, granted = len(available_cores()), granted_cores(root)
    if granted < cores:
        found = f"{granted} of {cores}: the control group grants no more CPU time"
        do = f"stay at {granted} threads, or give the container more (docker run --cpus {cores})"
        return DeviceFinding("quota", Grade.POOR, found, do)
    return DeviceFinding("quota", Grade.FINE, f"all {cores} cores")


def _disk(folder: Path) -> DeviceFinding:
    folder = folder.absolute()
    try:
        there = next(each for each in (folder, *folder.parents) if each.exists())
        free = shutil.disk_usage(there).free
    except OSError as error:
        return DeviceFinding("disk", Grade.UNKNOWN, f"'{folder}': {error.strerror}")
    found = f"{free >> 20} MiB are free where '{folder}' is"
    do = "du -xh / | sort -h | tail shows what is large"
    if free < LEAST_FREE_BYTES:
        return DeviceFinding("disk", Grade.WRONG, found, do)
    if free < ENOUGH_FREE_BYTES:
        return DeviceFinding("disk", Grade.POOR, found, do)
    return DeviceFinding("disk", Grade.FINE, found)


def _kept() -> DeviceFinding:
    """Check the folder of the compilation cache that all processes of this user share.

    Return the finding: a grade and, if there is a problem, a remedy.
    """
    from tilewright.compiler.specialise.store import FOLDER, LIMIT, user_cache_folder

    try:
        kept = user_cache_folder()
    except CompilerError as error:
        return DeviceFinding("kept", Grade.WRONG, str(error), f"unset {LIMIT}")
    if kept is None:
        return DeviceFinding(
            "kept", Grade.FINE, "no compiled models: the environment says so, or names no home"
        )
    try:
        there = kept.path.exists()
    except OSError as error:
        found = f"'{kept.path}' is not used: {error.strerror}"
        return DeviceFinding("kept", Grade.POOR, found, f"let {FOLDER} name another folder")
    if there and not kept.is_trusted:
        found = f"'{kept.path}' is not used: others may write into it"
        return DeviceFinding("kept", Grade.POOR, found, f"chmod 700 '{kept.path}'")
    entries = [size for _, size, _ in kept.entries()]
    limit = kept.limit_bytes >> 20
    found = f"{len(entries)} compiled models, {sum(entries) >> 20} of at most {limit} MiB"
    return DeviceFinding("kept", Grade.FINE, f"{found} in '{kept.path}'")


def _database(settings: Settings) -> DeviceFinding:
    from tilewright.db.errors import DatabaseError
    from tilewright.service.storage import open_storage

    own = settings.data_folder / "tilewright.db"
    try:
        if not settings.database_url and not own.exists():
            return DeviceFinding("database", Grade.FINE, f"none yet; it will be '{own}'")
    except OSError as error:
        do = "TILEWRIGHT_DATA_FOLDER says where"
        return DeviceFinding("database", Grade.WRONG, f"'{own}': {error.strerror}", do)
    try:
        with closing(open_storage(settings)) as storage:
            jobs = sum(storage.jobs.counts().values())
    except DatabaseError as error:
        do = "tilewright db check says more; TILEWRIGHT_DATA_FOLDER and _DATABASE_URL say where"
        return DeviceFinding("database", Grade.WRONG, str(error), do)
    return DeviceFinding("database", Grade.FINE, f"of this release's schema, with {jobs} jobs")
