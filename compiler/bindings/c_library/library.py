"""Writing of a model as a C library: a folder with a header, libraries and weights."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory

from tilewright.compiler.bindings.c_library.example import cmake_project, example
from tilewright.compiler.bindings.c_library.header import Interface, Statement, header
from tilewright.compiler.bindings.c_library.names import identifier
from tilewright.compiler.bindings.c_library.source import source
from tilewright.compiler.bindings.c_library.toolchain import Toolchain, toolchain
from tilewright.compiler.codegen.elf import loaded_bytes
from tilewright.compiler.errors import ArtifactError
from tilewright.compiler.package import package_version
from tilewright.compiler.program.builder import CompiledProgram
from tilewright.compiler.runtime.artifact_writer import check_destination, replace_folder
from tilewright.compiler.runtime.program_encoding import encode
from tilewright.compiler.targets.target import Target

FORMAT = "tilewright-c-library"
NATIVE = Path(__file__).parent / "native"
"""Folder of the C sources that only generated libraries contain."""

_RUNTIME = Path(__file__).parents[2] / "runtime" / "native"
_OWN_NAMES = """
    model_bytes model_init model_run model_shape run_program profile_program abi_version run_stage
    size fill order_keys rows_equal select vector_bits permit_matrices pin_random_keys
"""
"""Names that the runtime's sources define. Each library prefixes them with its own name, so that
several libraries can be linked into one program."""


NATIVE_FUNCTIONS = ("accumulation", "descent", "order", "selection", "suppression")
"""Runtime sources (file names without `.c`) that a library contains if its program calls native
functions."""

RANDOM = "tw_native_random_key"
"""Name of the native function that generates random keys. It needs the time and the process ID, or
a seed from the web page that runs it."""

INCLUDE = (f"-I{_RUNTIME}", f"-I{NATIVE}")


class WeightPlace(StrEnum):
    """Where the weights of a C library are stored: in the library, or in a separate file."""

    SECTION = "section"
    """The weights are a data section of the library."""
    FILE = "file"
    """The weights are in a separate file next to the library, which the caller reads or maps."""


@dataclass(frozen=True, slots=True)
class CLibrary:
    """A written C library, with its sizes in bytes.

    Attributes:
        folder: its folder.
        name: the prefix of its files and functions.
        code_bytes: size of the kernels and the runtime.
        weight_bytes: size of the packed constants.
        arena_bytes: size of the intermediate values; None if it depends on dynamic sizes.
    """

    folder: Path
    name: str
    code_bytes: int
    weight_bytes: int
    arena_bytes: int | None


def library_name(model: str | Path) -> str:
    """Derive a library name from a model file: the file's stem as a C identifier."""
    return identifier(Path(model).stem)


def write_c_library(
    compiled: CompiledProgram,
    folder: str | Path,
    name: str,
    model: str,
    weights: WeightPlace = WeightPlace.SECTION,
) -> CLibrary:
    """Write a compiled program as a C library to a new folder.

    The folder appears only when it is complete; after an error, nothing is left.

    Args:
        compiled: the program.
        folder: the destination.
        name: prefix of the library's files, functions and types; a C identifier.
        model: name of the model, for comments in the header.
        weights: where the weights are stored.

    Raises:
        ArtifactError: if the folder cannot be written.
        InvalidArgumentError: if `name` is not an identifier.
        ToolchainError: if there is no C compiler, or it reports an error.
    """
    interface = Interface.of(compiled.program, name)
    destination = check_destination(folder)
    tools = toolchain(compiled.target)
    with staged(destination, "C library") as staging:
        made = _write(compiled, interface, staging, model, weights, tools)
    return CLibrary(destination, name, *made)


@contextmanager
def staged(destination: Path, what: str) -> Iterator[Path]:
    """Context manager: yield a temporary folder, and move it to `destination` on success.

    If the `with` block raises, the temporary folder is removed. `what` names the result in error
    messages, such as "C library".

    Raises:
        ArtifactError: if a file cannot be written, in the `with` block or by the move.
    """
    staging = destination.parent / f".{destination.name}.{secrets.token_hex(4)}"
    try:
        staging.mkdir()
        yield staging
        replace_folder(staging, destination)
    except OSError as error:
        raise ArtifactError(f"cannot write {what} '{destination}': {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def write_executable(compiled: CompiledProgram, path: str | Path, model: str) -> Path:
    """Write an executable that runs the model on .npy files, and return its absolute path.

    An executable linked by zig is statically linked.

    Raises:
        ArtifactError: if it cannot be written.
        ToolchainError: if there is no C compiler, or it reports an error.
    """
    path = Path(path).absolute()
    interface = Interface.of(compiled.program, "model")
    tools = toolchain(compiled.target, executable=True)
    try:
        with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as work:
            folder = Path(work)
            statement = Statement(model, compiled.target.name, package_version(), 0, True)
            folder.joinpath("model.weights").write_bytes(bytes(compiled.weights))
            objects = compile_objects(compiled, interface, statement, folder, tools)
            objects.append(weight_object("model", folder, tools))
            names = ["-DTW_MODEL=model_model", "-DTW_WEIGHTS=model_tw_weights"]
            names += ["-DTW_STATUS_TEXT=model_status_text"]
            names += _own_names(interface)
            tools.compile(folder, NATIVE / "main.c", "main.o", [*names, *INCLUDE])
            tools.link_executable(folder, [*objects, "main.o"], "program")
            os.replace(folder / "program", path)
    except OSError as error:
        raise ArtifactError(f"cannot write executable '{path}': {error}") from error
    return path


def _write(
    compiled: CompiledProgram,
    interface: Interface,
    folder: Path,
    model: str,
    weights: WeightPlace,
    tools: Toolchain,
) -> tuple[int, int, int | None]:
    name, inside = interface.name, weights is WeightPlace.SECTION
    folder.joinpath(f"{name}.weights").write_bytes(bytes(compiled.weights))
    target = compiled.target
    statement = Statement(model, target.name, package_version(), 0, inside)
    objects = compile_objects(compiled, interface, statement, folder, tools)
    code = sum(loaded_bytes(folder.joinpath(each).read_bytes()) for each in objects)
    folder.joinpath(f"{name}.h").write_text(
        header(interface, statement._replace(code_bytes=code)), "ascii"
    )
    if inside:
        objects.append(weight_object(name, folder, tools))
    tools.archive(folder, objects, f"lib{name}.a")
    exported = exported_names(interface, weights_inside=inside)
    tools.link_shared(folder, f"lib{name}.a", exported, f"lib{name}.so")
    for each in objects:
        folder.joinpath(each).unlink()
    if inside:
        folder.joinpath(f"{name}.weights").unlink()
    _packages(interface, folder, target)
    folder.joinpath("main.c").write_text(example(interface, weights_inside=inside), "ascii")
    folder.joinpath("CMakeLists.txt").write_text(cmake_project(name), "ascii")
    describe(FORMAT, interface, folder, target)
    return code, compiled.program.weight_bytes, interface.arena_bytes


def compile_objects(
    compiled: CompiledProgram,
    interface: Interface,
    statement: Statement,
    folder: Path,
    tools: Toolchain,
) -> list[str]:
    """Compile a program's kernels, its tables and the runtime to object files in a folder.

    Return the names of the object files.
    """
    name, register_bits = interface.name, compiled.target.register_bits
    folder.joinpath(f"{name}.h").write_text(header(interface, statement), "ascii")
    folder.joinpath(f"{name}.c").write_text(
        source(interface, weights_inside=statement.weights_inside, register_bits=register_bits),
        "ascii",
    )
    natives = encode(compiled.program).natives
    options = [
        "-DTW_WITHOUT_PROFILE",
        *_own_names(interface),
        *(f"-D{each}={name}_{each}" for each in natives),
        *INCLUDE,
    ]
    sources = [Path(folder, f"{name}.c"), NATIVE / "tw_model.c"]
    sources += [_RUNTIME / f"{each}.c" for each in ("program", "sizing")]
    if natives:
        sources += [_RUNTIME / f"{each}.c" for each in NATIVE_FUNCTIONS]
    if RANDOM in natives:
        sources.append(_RUNTIME / "random.c")
        options.append(f"-Dtw_seed_random_keys={name}_seed")
    if register_bits:
        sources.append(_RUNTIME / "vectors.c")
    if compiled.target.tiles is not None:
        sources.append(NATIVE / "matrices.c")
        options.append("-DTW_MATRICES")
    objects = []
    for path in sources:
        made = f"{name}_{path.stem}.o" if path.stem != name else f"{name}.o"
        tools.compile(folder, path, made, options)
        objects.append(made)
    folder.joinpath(f"{name}.c").unlink()
    for number, code in enumerate(compiled.objects):
        objects.append(f"{name}_kernel_{number}.o")
        folder.joinpath(objects[-1]).write_bytes(code)
    return objects


def _own_names(interface: Interface) -> list[str]:
    """Return compiler options that add the library's name to the runtime's function names.

    Without such a prefix, two libraries in one program would define the same functions.
    """
    return [f"-Dtw_{each}={interface.name}_tw_{each}" for each in _OWN_NAMES.split()]


def weight_object(name: str, folder: Path, tools: Toolchain) -> str:
    """Embed the file NAME.weights of a folder in a new object file, and return the object file's
    name."""
    size = folder.joinpath(f"{name}.weights").stat().st_size
    # WebAssembly has no sections of this kind: the assembler makes a data segment instead
    flags, kind, stack = '"a"', "%object", '.section .note.GNU-stack, "", %progbits'
    if tools.linker:
        flags, kind, stack = '"", @', "@object", ""
    lines = [
        f".section .rodata.weights, {flags}",
        ".p2align 6",
        f".globl {name}_tw_weights",
        f".type {name}_tw_weights, {kind}",
        f"{name}_tw_weights:",
        f'.incbin "{name}.weights"',
        ".byte 0",
        f".size {name}_tw_weights, {size + 1}",
        stack,
        "",
    ]
    folder.joinpath("weights.S").write_text("\n".join(lines))
    tools.compile(folder, "weights.S", f"{name}_weights.o")
    folder.joinpath("weights.S").unlink()
    return f"{name}_weights.o"


def exported_names(interface: Interface, *, weights_inside: bool) -> list[str]:
    """Return the names of the functions and variables that the shared library exports.

    `weights_inside` says whether the library contains the weights.
    """
    functions = ("memory_bytes", "init", "run", "input_shape", "output_shape", "status_text")
    names = [f"{interface.name}_{function}" for function in functions]
    return [*names, *([f"{interface.name}_weights"] if weights_inside else [])]


def _packages(interface: Interface, folder: Path, target: Target) -> None:
    """Write the configuration files by which pkg-config and CMake find the library."""
    name = interface.name
    folder.joinpath(f"{name}.pc").write_text(
        "prefix=${pcfiledir}\n\n"
        f"Name: {name}\n"
        f"Description: the model {name}, compiled by Tilewright for {target.name}\n"
        f"Version: {package_version()}\n"
        "Cflags: -I${prefix}\n"
        f"Libs: ${{prefix}}/lib{name}.a\n"
    )
    folder.joinpath(f"{name}-config.cmake").write_text(
        f"# find_package({name} CONFIG PATHS this-folder), then link with {name}::{name}.\n"
        f"add_library({name}::{name} STATIC IMPORTED)\n"
        f"set_target_properties({name}::{name} PROPERTIES\n"
        f'  IMPORTED_LOCATION "${{CMAKE_CURRENT_LIST_DIR}}/lib{name}.a"\n'
        '  INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}")\n'
    )


def describe(kind: str, interface: Interface, folder: Path, target: Target) -> None:
    """Write manifest.json to an exported folder, and flush all files of the folder to disk.

    The manifest states the target, the library's name and the digest of each file. It also states
    `kind`, the format of the folder, such as `tilewright-c-library`.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file())
    manifest = {
        "format": kind,
        "name": interface.name,
        "target": target.to_json(),
        "files": {path.name: _digest(path) for path in files},
    }
    folder.joinpath("manifest.json").write_text(json.dumps(manifest, indent=1))
    for path in [*files, folder / "manifest.json"]:
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
