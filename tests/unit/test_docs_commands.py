"""The README and the pages of docs/ have working commands.

The fenced `sh` and `python` blocks of a page are executed in order, in an empty folder with a small
model, as one session with its own home, database and port. Blocks in NOT_RUN need something that a
test machine lacks; each has a reason. Every command, executed or not, must exist with its options.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper
from PIL import Image

from benchmarks.newcomer import BEFORE, GOES_ON, Shells, typed
from examples.demo_processes import free_port
from tests.command_tree import COMMANDS, option_names
from tests.databases import lay_database

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}

NETWORK = "installs packages from the network; benchmarks.newcomer executes the tutorial's"
MINUTES = "takes minutes to hours"
PLACE = "an excerpt of a module of the compiler, not a script"
TORCH = "tests have no PyTorch; `benchmarks.newcomer --install torch` executes 'Try it'"
NOT_RUN: Mapping[tuple[str, str], str] = {
    ("README.md", "pip install"): NETWORK,
    ("README.md", "make demo"): MINUTES,
    ("docs/announcement.md", ""): "the README's commands",
    ("docs/benchmarks.md", ""): MINUTES,
    ("docs/boards.md", "python3 -m venv"): NETWORK,
    ("docs/boards.md", "tilewright-worker ... --name pi-little"): "needs two kinds of cores",
    ("docs/boards.md", "tilewright-worker --server"): "as in worker.md, which is executed",
    ("docs/browser.md", "tilewright device link"): "needs a browser",
    ("docs/browser.md", "node "): "needs Node.js",
    ("docs/operators-howto.md", ""): PLACE,
    ("docs/targets-howto.md", ""): PLACE,
    ("docs/pytorch.md", "import torch"): TORCH,
    ("docs/pytorch.md", "model = torch"): TORCH,
    ("docs/pytorch.md", "torch.compile"): TORCH,
    ("docs/pytorch.md", "from tilewright.service.background"): TORCH,
    ("docs/pytorch.md", "from tilewright.compiler.bindings"): TORCH,
    ("docs/reference/cli.md", ""): "the examples of the help, which are in the pages",
    ("docs/reference/python.md", ""): "signatures",
    ("docs/releases.md", ""): "releases a version",
    ("docs/scaling.md", ""): "needs a second machine",
    ("docs/tutorial/first-model.md", "python3 -m venv"): NETWORK,
    ("docs/tutorial/quantise.md", "pip install"): NETWORK,
    ("docs/via.md", ""): "needs a board that ssh reaches",
    ("docs/worker.md", "tilewright-worker ... --via"): "needs an emulator",
}
"""Why blocks are not executed, by their page and the beginning of their text; "" for all blocks."""


@dataclass(frozen=True, slots=True)
class Session:
    """What a page's session has that the page does not state.

    Attributes:
        service: whether a service runs. The pages that need one share it, and its data folder.
        before: shell commands typed before the first block.
        names: Python statements before each Python block, in the same process.
        replaced: words of the page, with the words that are executed instead.
    """

    service: bool = False
    before: str = ""
    names: str = ""
    replaced: Mapping[str, str] = field(default_factory=dict)


LOCAL = {"https://tilewright.example": "http://127.0.0.1:8080"}
SHORT = {
    "--seconds 60": "--trials 2",
    "seconds=300": "trials=2",
    "--against onnxruntime": "--against onnxruntime --rounds 1 --seconds 0.01",
}
"""Words that are replaced on all pages: limits that would take a minute."""

_DECODER = """
import numpy as np
import onnx.parser
import tilewright

parsed = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]> decoder (
  int64[1, 1] input_ids, int64[1] past_length, float[1, 4] past_0_key, float[1, 4] past_0_value
) => (float[1, 4] logits, float[1, 4] present_0_key, float[1, 4] present_0_value) {
  x = Cast<to = 1>(input_ids)
  n = Cast<to = 1>(past_length)
  present_0_key = Add(past_0_key, x)
  present_0_value = Add(past_0_value, n)
  logits = Mul(present_0_key, present_0_value)
}''')
exe = tilewright.compile_model(parsed.SerializeToString().replace(b"_0_", b".0."))
ids, length = np.ones((1, 1), np.int64), np.ones(1, np.int64)
"""
_CLIENT = {"http://service:8080": "http://127.0.0.1:8080", '"TOKEN"': 'open("TOKEN").read()[:-1]'}

_FIRST = "python ~/first.py"
"""The command that prints a field of the first object of a JSON list."""

SESSIONS: Mapping[str, Session] = {
    # the C library of another architecture would be compiled, for minutes
    "docs/c.md": Session(replaced={"--target cortex-a72 --format exe": "--format exe"}),
    "docs/cli.md": Session(replaced={"quantize model.onnx": "quantize vit.onnx --dim batch=1"}),
    "docs/client.md": Session(
        service=True,
        before="tilewright token create me --scope read --scope submit > TOKEN",
        replaced={**_CLIENT, 'target="board"': 'target="host"', "progress=False": "trials=2"},
    ),
    "docs/dashboard.md": Session(replaced={"submit model.onnx": "submit model.onnx --trials 2"}),
    "docs/database.md": Session(
        names="workload_key = 'abc'", replaced={"/var/lib/tilewright": "{folder}"}
    ),
    "docs/loops.md": Session(
        names="import os, re\n"
        f"page = open({str(ROOT / 'docs/loops.md')!r}).read()\n"
        "text = re.search(r'```text\\n(kernel.*?)```', page, re.S)[1]"
    ),
    "docs/ranges.md": Session(replaced={"model.onnx": "sequence.onnx --trials 2"}),
    "docs/rest.md": Session(
        service=True,
        replaced={
            "curl ": "curl -sS --fail-with-body ",
            "DIGEST": "{digest}",
            "KEY": f"'$(tilewright record list --json | {_FIRST} record workload_key)'",
            "/JOB/": f"/$(tilewright job list --json | {_FIRST} id)/",
        },
    ),
    "docs/runtime.md": Session(names=_DECODER),
    "docs/tutorial/first-model.md": Session(
        replaced={
            # the page's model takes half a minute
            'shutil.copy(tests / "light" / "light_shufflenet.onnx", "model.onnx")': (
                'assert (tests / "light" / "light_shufflenet.onnx").exists()'
            )
        }
    ),
    "docs/tutorial/quantise.md": Session(replaced={"1024": "128"}),
    "docs/tutorial/raspberry-pi.md": Session(service=True),
    "docs/tutorial/shared-records.md": Session(service=True),
    "docs/worker.md": Session(service=True, replaced=LOCAL),
}
"""The sessions of pages; the others need nothing."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its page, the number of its first line, its language and its text."""

    page: str
    line: int
    language: str
    text: str

    @property
    def reason(self) -> str:
        """Why it is not executed, or ""."""
        return next(
            (why for of, why in NOT_RUN.items() if of[0] == self.page and self.begins(of[1])), ""
        )

    def begins(self, words: str) -> bool:
        return self.text.startswith(words)


@cache
def blocks(page: str) -> tuple[Block, ...]:
    text = PAGES[page]
    found = re.finditer(r"^```(sh|python)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return tuple(Block(page, text.count("\n", 0, m.start(2)) + 1, m[1], m[2]) for m in found)


EXECUTED = [page for page in PAGES if any(not block.reason for block in blocks(page))]


def test_tables_name_blocks() -> None:
    for page, start in NOT_RUN:
        assert any(block.begins(start) for block in blocks(page)), (page, start)
    assert set(SESSIONS) <= set(EXECUTED)


# Execution


MODELS = {
    "model.onnx": (
        "float[1, 3, 224, 224] image",
        "rows = ReduceMean<axes = [2, 3], keepdims = 0>(image)",
    ),
    "vit.onnx": (
        "float[batch, 3, 224, 224] image",
        """
        patches = Conv<strides = [32, 32], kernel_shape = [4, 4]>(image, filters)
        positive = Relu(patches)
        rows = ReduceMean<axes = [2, 3], keepdims = 0>(positive)
        """,
    ),
    "sequence.onnx": ("float[batch, seq, 64] rows", ""),
}
"""The models by name: their input, and nodes that compute the rows that are classified."""


def lay_files(folder: Path) -> None:
    """Write the models and samples that the pages name."""
    random = np.random.default_rng(0)
    for name, (inputs, nodes) in MODELS.items():
        model = onnx.parser.parse_model(
            f"""<ir_version: 8, opset_import: ["": 17]>
            small ({inputs}) => (float scores) {{ {nodes} scores = MatMul(rows, weights) }}"""
        )
        width = 3 if name == "model.onnx" else 64
        for weights, shape in {"filters": (64, 3, 4, 4), "weights": (width, 10)}.items():
            array = random.normal(size=shape).astype(np.float32)
            if any(weights in node.input for node in model.graph.node):
                model.graph.initializer.append(numpy_helper.from_array(array, weights))
        onnx.save(onnx.shape_inference.infer_shapes(model), folder / name)
    for name in ("samples", "photos", "requests"):
        (folder / name).mkdir()
    images = random.normal(size=(4, 3, 224, 224)).astype(np.float32)
    np.savez(folder / "samples.npz", image=images)
    for i, image in enumerate(images):
        np.savez(folder / "samples" / f"{i}.npz", image=image[None])
        Image.new("RGB", (224, 224), (60 * i, 0, 0)).save(folder / "photos" / f"{i}.png")
        np.savez(folder / "requests" / f"{i}.npz", rows=np.ones((8, 4, 64), np.float32))


RUN = """
import ast, asyncio, inspect, sys
file, page, line = sys.argv[1:]
code = compile(open(file).read(), page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
ran = eval(code, {"__name__": "__main__"})
if inspect.iscoroutine(ran):
    asyncio.run(ran)
"""
"""A program that executes a Python block, which may await."""

FIRST = """
import json, sys
found = json.load(sys.stdin)[0]
for name in sys.argv[1:]:
    found = found[name]
print(found)
"""
"""A program that prints a field of the first object of a JSON list."""

STAYS = re.compile(r"(?m)^(tilewright server run|tilewright-worker (?!--check).*?)(?= *(#|$))")
"""Commands that run until they are stopped, on lines that do not always say `goes on`."""


def lay_programs(folder: Path) -> None:
    """Write the programs of the package, so that they start with this interpreter and source."""
    folder.mkdir()
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    programs = {name: entry.split(":") for name, entry in entries.items()}
    starts = {
        name: f' -c "import sys; from {module} import {main}; sys.exit({main}())"'
        for name, (module, main) in programs.items()
    }
    for name, start in {**starts, "python": ""}.items():
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{start} "$@"\n')
        path.chmod(0o755)


def environment(home: Path, port: int, cache: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TILEWRIGHT")}
    return {
        **kept,
        "HOME": str(home),
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(cache),
        "TILEWRIGHT_PORT": str(port),
        "TILEWRIGHT_SERVER": f"http://127.0.0.1:{port}",
        "TILEWRIGHT_BUILDERS": "1",
    }


def replaced(text: str, session: Session, values: Mapping[str, object]) -> str:
    """The executed text of a block."""
    for old, new in {**session.replaced, **SHORT}.items():
        text = text.replace(old, new.format(**values))
    return re.sub(r"(127\.0\.0\.1|localhost):8080", f"127.0.0.1:{values['port']}", text)


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of compiled harnesses, which the sessions share."""
    return tmp_path_factory.mktemp("cache")


class Home:
    """A home folder with a database and the package's programs, and a port for a service."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.home, self.port = folder / "home", free_port()
        lay_database(self.home / ".local/share/tilewright")
        lay_programs(self.home / "bin")
        (self.home / "run.py").write_text(RUN)
        (self.home / "first.py").write_text(FIRST)
        self._environment = environment(self.home, self.port, cache)

    def shells(self, folder: Path, log: Path) -> Shells:
        (self.home / ".exported").unlink(missing_ok=True)
        return Shells(folder, log, self._environment)


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory, cache_folder: Path) -> Iterator[Home]:
    folder = tmp_path_factory.mktemp("service")
    found = Home(folder, cache_folder)
    shells = found.shells(folder, folder / "log")
    try:
        assert shells.type(typed(f"tilewright server run {GOES_ON}")) == 0, (
            folder / "log"
        ).read_text()
        yield found
    finally:
        shells.end()


@pytest.mark.acceptance
@pytest.mark.parametrize("page", EXECUTED)
def test_blocks_work(
    page: str, tmp_path: Path, cache_folder: Path, request: pytest.FixtureRequest
) -> None:
    session = SESSIONS.get(page, Session())
    at: Home = (
        request.getfixturevalue("service") if session.service else Home(tmp_path, cache_folder)
    )
    folder, log = tmp_path / "user", tmp_path / "log"
    folder.mkdir()
    lay_files(folder)
    digest = sha256((folder / "model.onnx").read_bytes()).hexdigest()
    values = {"folder": folder, "port": at.port, "digest": digest}
    before = Block(page, 1, "sh", session.before)
    shells = at.shells(folder, log)
    try:
        for block in (before, *(block for block in blocks(page) if not block.reason)):
            text = replaced(block.text, session, values)
            if block.language == "python":
                names = replaced(session.names, session, values)
                (folder / "block.py").write_text(f"{names}\n{text}")
                text = f"python ~/run.py block.py {page} {block.line}"
            else:
                text = typed(STAYS.sub(rf"\1 {GOES_ON}", text))
            first = BEFORE.count("\n") + 1
            trace = f"PS4='+ {page}:$((LINENO + {block.line - first})): '; "
            status = shells.type(trace + text)
            assert status == 0, f"{page}:{block.line}: status {status}\n{log.read_text()[-4000:]}"
    finally:
        shells.end()


# Names


def commands(text: str) -> Iterator[tuple[int, list[str]]]:
    """The simple commands of a shell block: the number of the line, from 0, and the words."""
    lines = re.sub(r"\\\n", lambda _: "\x00", text).split("\n")
    number = 0
    for line in lines:
        words = shlex.shlex(line.replace("\x00", " "), posix=True, punctuation_chars=True)
        words.whitespace_split = True
        command: list[str] = []
        for word in (*words, ";"):
            if not set(word) <= set("();<>|&"):
                command.append(word)
            elif command:
                yield number, command
                command = []
        number += 1 + line.count("\x00")


@cache
def worker_options() -> frozenset[str]:
    source = (ROOT / "service/worker/options.py").read_text()
    return frozenset(re.findall(r'"(--?[a-z-]+)"', source))


@cache
def make_words() -> frozenset[str]:
    """The targets and variables of the Makefile."""
    text = (ROOT / "Makefile").read_text()
    return frozenset(re.findall(r"(?m)^([a-z-]+):", text)) | frozenset(
        re.findall(r"\$\((?:if \$\()?([A-Z]+)\)", text)
    )


def fault(words: Sequence[str]) -> str:
    """What does not exist in a command, or ""."""
    program, given = words[0], [word for word in words[1:] if word != "..."]
    options = [word.partition("=")[0] for word in given if re.match("-[-a-z]", word)]
    match program.rpartition("/")[2]:
        case "tilewright":
            for count in (2, 1):
                if command := COMMANDS.get(" ".join(given[:count])):
                    if unknown := [each for each in options if each not in option_names(command)]:
                        return f"no option {unknown[0]}"
                    context = command.make_context("", given[count:], resilient_parsing=True)
                    named = [each.name for each in command.params if each.required]
                    missing = [name for name in named if context.params.get(name or "") is None]
                    return f"{missing[0]} is missing" if missing else ""
            return f"no command '{' '.join(given[:2])}'"
        case "tilewright-worker":
            unknown = [option for option in options if option not in worker_options()]
            return f"no option {unknown[0]}" if unknown else ""
        case "make":
            named = [word.partition("=")[0] for word in given]
            unknown = [word for word in named if word not in make_words()]
            return f"no target or variable {unknown[0]}" if unknown else ""
        case "python" | "python3" if given[:1] == ["-m"]:
            first, _, rest = given[1].partition(".")
            if rest and importlib.util.find_spec(first) is None:
                return f"no package {first}"
            return "" if importlib.util.find_spec(given[1]) else f"no module {given[1]}"
    return ""


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_commands_exist(page: str) -> None:
    faults = [
        f"{page}:{block.line + number}: {shlex.join(words)}: {found}"
        for block in blocks(page)
        if block.language == "sh"
        for number, words in commands(block.text)
        if (found := fault(words))
    ]
    assert not faults, "\n".join(faults)


def test_unknown_names_are_found() -> None:
    assert fault(["tilewright", "tune", "model.onnx", "--hours", "1"])
    assert fault(["tilewright", "tuen", "model.onnx"])
    assert fault(["tilewright-worker", "...", "--speed"])
    assert fault(["make", "tea"])
    assert fault([".venv/bin/python", "-m", "benchmarks.none"])
    assert not fault(["make", "demo", "KEEP=1"])
    text = "export A=$(cat a)  # not this\ntilewright db \\\n  check > b; make x\n\nd\n"
    assert list(commands(text)) == [
        (0, ["export", "A=$"]),
        (0, ["cat", "a"]),
        (1, ["tilewright", "db", "check"]),
        (1, ["b"]),
        (1, ["make", "x"]),
        (4, ["d"]),
    ]
