"""Imports run one way. The source is parsed and never imported, so lazy imports count too."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PREFIX = "tilewright."
PACKAGES = ("compiler", "tuner", "db", "service")

# The packages that a package may import, from the bottom up: compiler <- tuner <- db <- service.
ABOVE = {
    "compiler": set(),
    "tuner": {"compiler"},
    "db": {"compiler", "tuner"},
    "service": {"compiler", "tuner", "db"},
}

_JSON = {"runtime.codec", "runtime.codec_source", "runtime.json_form"}
_BASE = {"errors", "limits", "dtypes", "memo", "runtime.labels", "sizes", "timings"} | _JSON
_BASE |= {"targets.core_kinds", "targets.device", "targets.families", "targets.target"}
_IR = _BASE | {"graph", "loops"}
# The parts of the compiler (a folder, or a module of one) that each part may import. The rows are
# the architecture: codegen never sees a graph, runtime never sees an IR, and only the driver sees
# everything.
INSIDE: dict[str, set[str]] = {
    "errors": set(),
    "dtypes": {"errors"},
    "memo": set(),
    "mode": _BASE | {"runtime", "targets.host"},
    "package": set(),
    "timings": set(),
    "limits": set(),
    "sizes": {"errors", "limits", "memo"},
    "profile": {"runtime", "sizes"},
    "targets": set(),
    "targets.core_kinds": set(),
    "targets.detection": _BASE,
    "targets.device": _JSON | {"errors", "targets.core_kinds", "targets.families"},
    "targets.families": {"errors", "dtypes", "targets.target"},
    "targets.granted_cores": {"targets.core_kinds", "targets.device"},
    "targets.host": _BASE | {"targets.detection"},
    "targets.target": _JSON | {"errors", "dtypes", "targets.families"},
    "process": {"errors", "memo"},
    "graph": _BASE,
    "loops": _BASE | {"graph"},
    "ops": _IR,
    "frontend": _IR | {"ops", "runtime"},
    "plan": set(),
    "plan.workload": _IR | {"ops"},
    "plan.symbolic_distance": {"loops", "sizes"},
    "plan.placement": {"loops", "memo", "plan.symbolic_distance", "sizes", "plan.workload"},
    "plan.regions": {"sizes"},
    "plan.intervals": {"memo", "ops", "sizes", "plan.workload"},
    "plan.plan": _IR | {"ops", "plan.workload", "plan.placement", "plan.intervals"},
    "plan.choices": set(),
    "plan.layout_transposes": _IR | {"ops", "passes"},
    "plan.fusion": _IR | {"ops", "passes", "plan.layout_transposes"},
    "plan.layouts": _IR
    | {"ops", "passes", "plan.workload", "plan.placement", "plan.regions", "plan.choices"}
    | {"plan.fusion", "plan.layout_transposes"},
    "plan.views": _IR
    | {"ops", "plan.workload", "plan.placement", "plan.regions"}
    | {"plan.fusion", "plan.layouts", "plan.layout_transposes"},
    "plan.partition": _IR
    | {"ops", "plan.workload", "plan.placement", "plan.plan", "passes", "plan.views"}
    | {"plan.choices", "plan.fusion", "plan.layouts"},
    "plan.product_types": _IR | {"ops"},
    "plan.memory": _IR
    | {"ops", "plan.workload", "plan.placement", "plan.plan", "plan.regions", "runtime"},
    "plan.symbolic_memory": {"plan.memory", "plan.plan", "plan.regions", "sizes"},
    "plan.costs": _IR | {"ops", "plan.workload", "plan.plan", "plan.memory", "plan.product_types"},
    "passes": _IR | {"ops", "plan.fusion", "plan.plan"},
    "schedule": _IR | {"mode", "ops", "plan.workload", "runtime"},
    "codegen": _BASE | {"loops", "process"},
    "runtime.codec": _JSON,
    "runtime.codec_source": _JSON,
    "runtime.json_form": set(),
    "runtime.labels": _JSON,
    "runtime": {"errors", "dtypes", "limits", "sizes", "loops"}
    | {"targets.detection", "targets.families"},
    "program": set(),
    # one candidate from schedule to object: it meets a workload, never a graph plan
    "program.build": _IR | {"mode", "plan.workload", "schedule", "codegen", "runtime"},
    "program.kernels": _IR
    | {"mode", "plan.workload", "plan.intervals", "schedule", "program.build", "runtime"},
    "program.random_integers": _IR | {"ops"},
    "program.emitter": _IR
    | {"plan.workload", "plan.plan", "plan.memory", "plan.intervals", "program.kernels", "runtime"},
    "program.slices": _IR
    | {"ops", "plan.workload", "plan.plan", "plan.costs", "schedule", "program.emitter", "runtime"},
    "program.sliced_batch": _BASE | {"graph", "ops", "plan.plan", "runtime"},
    "program.builder": _IR | {"mode", "plan", "schedule", "program", "runtime"},
    "program.artifacts": _BASE
    | {"program.build", "codegen", "plan.plan", "program.builder", "runtime"},
    "specialise": set(),
    "specialise.cache_folder": set(),
    "specialise.enumerate": _BASE | {"runtime", "specialise.jit", "specialise.splits"},
    "specialise.jit": _BASE | {"graph", "frontend", "runtime", "specialise.splits"},
    "specialise.splits": _BASE | {"profile", "runtime"},
    "bindings": set(),
    "bindings.c_library": _BASE | {"codegen", "package", "program.builder", "runtime"},
}
# the driver, its options, and the entry points
FREE = {
    "driver",
    "options",
    "api",
    "specialise.requested_schedules",
    "specialise.store",
    "bindings.onnx_backend",
    "bindings.ort",
    "bindings.torch",
}

# Modules that run on a device. They may need only the standard library and NumPy.
DEVICE_SIDE = (
    "compiler.runtime",
    "tuner.protocol",
    "tuner.measure.job_queue",
    "tuner.measure.harness",
    "service.worker",
)
DEVICE_LIBRARIES = {"numpy"}


@cache
def modules() -> dict[str, Path]:
    """Dotted name inside `tilewright` -> file, for every module of the four packages."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = path
    return found


def imports(name: str, *, everywhere: bool) -> set[str]:
    """The dotted names that a module imports; ours without `tilewright.`.

    everywhere: also the imports inside functions. Imports under TYPE_CHECKING never run; they
    count as a dependency in the direction tests and not on the device.
    """
    return _names(name, "everywhere" if everywhere else "at once")


def _names(name: str, scope: str) -> set[str]:
    found: set[str] = set()
    for base, names in _stated(name, modules()[name])[scope]:
        base = base.removeprefix(PREFIX)
        inner = {f"{base}.{each}".removeprefix(PREFIX) for each in names}
        known = inner & modules().keys()
        found |= known | ({base} if known != inner or not names else set())
    return found


@cache
def _stated(name: str, path: Path) -> dict[str, list[tuple[str, tuple[str, ...]]]]:
    """By scope, the import statements of a module: a module, and names from it."""
    tree = ast.parse(path.read_text())
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    scopes = {
        "everywhere": _statements(tree, lambda node: False),
        "run": _statements(tree, _for_types),
        "at once": _statements(tree, lambda node: _for_types(node) or _function(node)),
    }
    return {
        scope: [each for node in statements for each in _imported(node, package)]
        for scope, statements in scopes.items()
    }


def _imported(node: ast.AST, package: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    if isinstance(node, ast.Import):
        yield from ((alias.name, ()) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parents = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*parents, base]).rstrip(".")
        yield base, tuple(alias.name for alias in node.names)


def _statements(tree: ast.AST, left_out: Callable[[ast.AST], bool]) -> Iterator[ast.AST]:
    """The statements of a module, but for some and the statements inside them."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.expr) and not left_out(node):
            yield node
            yield from _statements(node, left_out)


def _for_types(node: ast.AST) -> bool:
    """Whether a statement never runs."""
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name | ast.Attribute)
        and (ast.unparse(node.test).endswith("TYPE_CHECKING"))
    )


def _function(node: ast.AST) -> bool:
    """Whether a statement's body does not run when the module is imported."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def test_packages_are_imported_one_way() -> None:
    wrong = {}
    for name in modules():
        package = name.split(".")[0]
        others = set(PACKAGES) - ABOVE[package] - {package}
        others |= {"tests", "benchmarks", "examples", "tilewright"}
        wrong[name] = {
            target for target in imports(name, everywhere=True) if target.split(".")[0] in others
        }
    assert not {name: targets for name, targets in wrong.items() if targets}


def part_of(name: str) -> str:
    """The part of the compiler that a module belongs to: the longest of `INSIDE` and `FREE`."""
    parts = name.split(".")[1:]
    prefixes = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    found = next((each for each in prefixes if each in INSIDE or each in FREE), None)
    assert found is not None, f"say in INSIDE what compiler/{'/'.join(parts)} may import"
    return found


def test_the_compiler_is_imported_one_way() -> None:
    wrong = {}
    for name in modules():
        if not name.startswith("compiler.") or (part := part_of(name)) in FREE:
            continue
        allowed = INSIDE[part] | {part}
        wrong[name] = {
            target
            for target in imports(name, everywhere=True)
            if target.startswith("compiler.")
            and (of := part_of(target)) not in allowed
            and of.split(".")[0] not in allowed
        }
    assert len(wrong) > 100
    assert not {name: targets for name, targets in wrong.items() if targets}


HANDLES_QUESTIONS = {
    "compiler.frontend.nodes",
    "compiler.ops.builder",
    "compiler.sizes.ranges",
}
"""Modules that handle a `DynamicSizeError`: the import, and those that choose ranges."""


def test_passes_plans_and_code_generation_ask_for_proofs() -> None:
    """They let a `DynamicSizeError` pass, and call `always_less` and its like."""
    handlers = {
        name: [
            ast.unparse(caught) for node in ast.walk(ast.parse(text)) for caught in _caught(node)
        ]
        for name, path in modules().items()
        if "DynamicSizeError" in (text := path.read_text())
    }
    found = {name for name, caught in handlers.items() if "DynamicSizeError" in " ".join(caught)}
    assert found == HANDLES_QUESTIONS


def _caught(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.ExceptHandler(type=ast.expr() as caught):
            return [caught]
        case ast.Call(func=ast.Name(id="suppress"), args=caught):
            return caught
    return []


def test_only_a_back_end_knows_itself() -> None:
    """Other modules ask `compiler.codegen.backend`; the target names the back end's folder."""
    wrong = {
        (name, target)
        for name in modules()
        if not name.startswith("compiler.codegen.cpu")
        for target in imports(name, everywhere=True)
        if target.startswith("compiler.codegen.cpu")
    }
    assert not wrong


def test_no_imports_of_the_compiler_lead_in_a_circle() -> None:
    """Imports inside functions count; imports for type checking alone do not."""
    inside = {name for name in modules() if name.startswith("compiler.")}
    check_acyclic({name: _names(name, "run") & inside for name in inside})


@pytest.mark.parametrize("package", ["compiler.codegen"])
def test_modules_are_imported_in_no_circle(package: str) -> None:
    """Imports under TYPE_CHECKING or in a function count too."""
    inside = {name for name in modules() if name.startswith(package)}
    check_acyclic({name: imports(name, everywhere=True) & inside for name in inside})


def check_acyclic(graph: dict[str, set[str]]) -> None:
    """Fail if the imports of modules lead back to them, naming the modules of the cycle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"imported in a circle: {' <- '.join(error.args[1])}")


def test_the_check_for_circles_sees_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "circle.py"
    path.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
        "    from tilewright.compiler.codegen.cpu.lower import lower_nest\n"
    )
    monkeypatch.setitem(modules(), "compiler.codegen.cpu.ssa", path)
    with pytest.raises(pytest.fail.Exception, match=r"circle: .*codegen\.cpu\.ssa"):
        test_modules_are_imported_in_no_circle("compiler.codegen")
    test_no_imports_of_the_compiler_lead_in_a_circle()
    path = tmp_path / "lazy.py"
    path.write_text("def f():\n    from tilewright.compiler.codegen.cpu.lower import lower_nest\n")
    monkeypatch.setitem(modules(), "compiler.codegen.cpu.ssa", path)
    with pytest.raises(pytest.fail.Exception, match=r"circle: .*codegen\.cpu\.ssa"):
        test_no_imports_of_the_compiler_lead_in_a_circle()


def test_the_runtime_uses_only_layouts_of_the_loop_ir() -> None:
    wrong = {
        (name, target)
        for name in modules()
        if name.startswith("compiler.runtime")
        for target in imports(name, everywhere=True)
        if target.startswith("compiler.loops") and target != "compiler.loops.layout"
    }
    assert not wrong


def device_closure() -> dict[str, set[str]]:
    """Every module of ours that the device side loads -> the libraries that it imports."""
    queue = [n for n in modules() for root in DEVICE_SIDE if n == root or n.startswith(root + ".")]
    seen: dict[str, set[str]] = {}
    while queue:
        name = queue.pop()
        if name in seen:
            continue
        libraries = set()
        # a package's __init__ runs before its modules do
        parents = {name.rsplit(".", depth)[0] for depth in range(1, name.count(".") + 1)}
        queue += [parent for parent in parents if parent in modules()]
        for target in imports(name, everywhere=False):
            if target in modules():
                queue.append(target)
            else:
                libraries.add(target.split(".")[0])
        seen[name] = libraries
    return seen


def test_the_device_side_exists() -> None:
    assert set(DEVICE_SIDE) <= modules().keys()


def test_the_device_side_needs_the_standard_library_and_numpy_only() -> None:
    wrong = {
        (name, library)
        for name, libraries in device_closure().items()
        for library in libraries - set(sys.stdlib_module_names) - DEVICE_LIBRARIES - set(PACKAGES)
    }
    assert not wrong


def test_the_device_side_imports_with_everything_else_blocked() -> None:
    """The same, for real: imports at run time show here and not in the source."""
    code = f"""
import sys
allowed = set(sys.stdlib_module_names) | {DEVICE_LIBRARIES | {"tilewright"}!r}
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in allowed:
            raise ImportError(name + " is not for a device")
sys.meta_path.insert(0, Block())
for module in {DEVICE_SIDE!r}:
    __import__("tilewright." + module)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_protocol_is_below_the_rest_of_the_tuner() -> None:
    values = {"tuner.measure.speed", "tuner.measure.statistics"}
    wrong = {
        (name, target)
        for name in modules()
        if name.startswith("tuner.protocol")
        for target in imports(name, everywhere=True) - values
        if target.startswith("tuner.") and not target.startswith("tuner.protocol.")
    }
    assert "tuner.protocol.messages" in modules() and not wrong


def test_importing_the_compiler_loads_neither_llvm_nor_onnx() -> None:
    code = "import sys, tilewright.compiler.targets.target; "
    code += "print([m for m in ('llvmlite', 'onnx') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_command_and_the_client_load_no_web_framework() -> None:
    """It would be a fifth of the time that a command takes to report a missing file."""
    code = (
        "import sys, tilewright.service.cli.view, tilewright.service.client; "
        "import tilewright.db.storage; print('fastapi' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_the_client_knows_the_schemas_and_how_to_show_them() -> None:
    """And nothing that would load the compiler, the database or the web framework."""
    shown = ("service.client", "service.show")
    words = "service.show.messages"  # of jobs, for programs that have the tuner and the database
    ours = {
        target
        for name in modules()
        if name.startswith(shown) and name != words
        for target in imports(name, everywhere=True)
        if target.split(".")[0] in PACKAGES
    }
    others = {name for name in ours if not name.startswith("service.api.schemas.")}
    assert ours - others, "it knows none"
    assert not {name for name in others if not name.startswith((*shown, "service.archive"))}
    assert words not in ours


COMPARES_WITH_THE_HOST = {
    # the comparison, the meaning of "host", and the targets that this process can run
    "compiler.targets.target",
    "compiler.targets.host",
    # "host" in the list of a worker on a machine like the service's
    "service.jobs.device.targets",
}
ASKS_WHAT_RUNS_HERE = {
    "compiler.driver",
    "compiler.specialise.store",
    "service.jobs.device.local_device",
}


def test_only_the_local_device_compares_a_target_with_this_host() -> None:
    """Everything else asks the device that a job is for."""
    compares, asks = set(), set()
    for name, path in modules().items():
        words = set(re.findall(r"\w+", path.read_text()))
        if words & {"host_target", "runs_on"}:
            compares.add(name)
        if words & {"runs_here", "check_runs_here"} and name != "compiler.targets.host":
            asks.add(name)
    assert compares == COMPARES_WITH_THE_HOST
    assert asks == ASKS_WHAT_RUNS_HERE


def test_jobs_import_no_web_framework() -> None:
    web = {"fastapi", "starlette", "uvicorn"}
    wrong = {
        (name, target)
        for name in modules()
        if name.startswith("service.jobs")
        for target in imports(name, everywhere=True)
        if target.split(".")[0] in web or target.startswith("service.api")
    }
    assert not wrong


def test_quantising_knows_no_command_line_and_one_file_the_quantiser() -> None:
    ours = {name for name in modules() if name.startswith("service.quantize")}
    assert ours
    targets = {(name, target) for name in ours for target in imports(name, everywhere=True)}
    wrong = {pair for pair in targets if pair[1].startswith(("service.cli", "service.api"))}
    assert not wrong
    libraries = {n for n in modules() for t in imports(n, everywhere=True) if "quantization" in t}
    assert libraries == {"service.quantize.methods"}


def test_the_rules_see_a_wrong_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser behind the tests finds lazy, relative and from-imports."""
    path = tmp_path / "wrong.py"
    path.write_text("def f():\n    from . import store\n    import tilewright.db.engine\n")
    monkeypatch.setitem(modules(), "tuner.wrong", path)
    assert imports("tuner.wrong", everywhere=True) == {"tuner.store", "db.engine"}
    assert imports("tuner.wrong", everywhere=False) == set()
