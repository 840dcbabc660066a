"""Settings of every test: no colour in captured output, one thread in numerical libraries, and the
same examples each time."""

from __future__ import annotations

import gc
import os
import runpy
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

# Set before numpy or xgboost is imported: several test processes share the cores.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
# rich and typer wrap and colour depending on the terminal that they detect
os.environ["NO_COLOR"] = "1"
os.environ["COLUMNS"] = "200"
# A test compiles its own models: it finds no results of another run, and keeps none.
os.environ["TILEWRIGHT_KEPT_FOLDER"] = ""


def _choose_temporary_folder() -> None:
    """Temporary files stay in memory where it has room and lets programs be loaded from it: each
    commit to SQLite waits 9 ms for a disk."""
    memory = "/dev/shm"
    if not os.path.isdir(memory):
        return
    found = os.statvfs(memory)
    if found.f_bavail * found.f_frsize >= 4 << 30 and not found.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("TMPDIR", memory)
        tempfile.tempdir = None  # the earlier choice


_choose_temporary_folder()

# No test reads or writes the data of the user who runs it.
_data_folder = tempfile.TemporaryDirectory(prefix="tilewright-tests-")
os.environ["TILEWRIGHT_DATA_FOLDER"] = _data_folder.name
for variable in ("DATABASE_URL", "BLOB_URL", "SERVER", "TOKEN"):
    os.environ.pop(f"TILEWRIGHT_{variable}", None)

# generated files are as their sources are now, also where the package was installed before a change
for _generator in ("service/client/generate.py", "tuner/protocol/generate.py"):
    runpy.run_path(str(Path(__file__).parents[1] / _generator), run_name="__main__")

import pytest  # noqa: E402 - after the environment is set

from tests.examples import register_profiles  # noqa: E402 - hypothesis imports numpy
from tests.logs import plain_logs  # noqa: E402 - as above
from tests.unchanged import ALL_GROUPS, digests, left_out, record, unchanged  # noqa: E402 - as above

register_profiles()
plain_logs()


DIGESTS = pytest.StashKey[dict[str, str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(ALL_GROUPS, action="store_true", help="also groups that are unchanged")


def pytest_configure(config: pytest.Config) -> None:
    """Before the first test, since sources may be edited during the run."""
    if config.getoption(ALL_GROUPS) and not hasattr(config, "workerinput"):
        config.stash[DIGESTS] = digests()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.getoption(ALL_GROUPS):
        return None
    named = [Path(config.invocation_params.dir, each.split("::")[0]) for each in config.args]
    return left_out(collection_path, named, _unchanged(config)) or None


def _unchanged(config: pytest.Config) -> Collection[str]:
    """The process that starts others tells them: each would read all sources."""
    told: Collection[str] | None = getattr(config, "workerinput", {}).get("unchanged")
    return unchanged() if told is None else told


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["unchanged"] = sorted(unchanged())


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    if config.getoption(ALL_GROUPS):
        # no error of pytest itself, and no choice among the tests
        ended = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        choices = (
            *("keyword", "markexpr", "deselect", "maxfail", "ignore", "ignore_glob"),
            *("collectonly", "setuponly", "setupplan", "lf", "stepwise"),
        )
        if ended and not any(config.getoption(each, default=None) for each in choices):
            stats = terminalreporter.stats
            bad = [*stats.get("failed", ()), *stats.get("error", ())]
            record(
                config.stash[DIGESTS],
                [config.invocation_params.dir / each for each in config.args],
                {config.rootpath / each.nodeid.split("::")[0] for each in bad},
            )
    elif groups := ", ".join(sorted(unchanged())):
        terminalreporter.write_line(
            f"unchanged since they passed, left out unless named: {groups} (`make test-all`)"
        )


def pytest_collection() -> None:
    """Freeze the collected objects: the garbage collector does not search them, now or later.

    Thousands of tests are 680,000 objects, and each search among them takes a third of a second.
    """
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def logs_of_this_test() -> Iterator[None]:
    """A command under test may set up logs, for a standard error that ends with its test."""
    yield
    plain_logs()
