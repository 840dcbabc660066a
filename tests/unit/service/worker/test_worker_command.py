"""The command line of the worker."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilewright.compiler.package import package_version
from tilewright.service.worker import process, secrecy
from tilewright.service.worker.log import ErrorLog
from tilewright.service.worker.options import WorkerOptions, parse_arguments
from tilewright.service.worker.secrecy import hide_secrets
from tilewright.tuner.measure.harness.build import HarnessError

COMMON = ("--server", "http://x", "--token", "t")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--server", "ftp://x", "--token", "t"], "is not an http or https URL"),
        (["--server", "http://x"], "--token or --token-file"),
        (["--server", "http://x", "--token-file", "/no/such"], "cannot be read"),
        (["--server", "http://x", "--token", "a\nb"], "--token (or TILEWRIGHT_TOKEN) does not"),
        (["--server", "http://x", "--token", "t", "--cache-mib", "0"], "at least 1"),
        ([*COMMON, "--sandbox-mib", "12"], "at least 64"),
        ([*COMMON, "--sandbox-mib", "-1"], "at least 64"),
        ([*COMMON, "--sandbox-users", "0-5"], "not a range FIRST-LAST"),
        ([*COMMON, "--sandbox-users", "7-5"], "not a range FIRST-LAST"),
        ([*COMMON, "--sandbox-users", "x"], "not a range FIRST-LAST"),
        ([*COMMON, "--cores", "1,x"], "not a list such as 2,4-7"),
        ([*COMMON, "--cores", "3-1"], "not a list such as"),
        ([*COMMON, "--cores", "60000"], "may not run on 60000; it may on 0-2,5"),
        ([*COMMON, "--service-key", "c2hvcnQ="], "'c2hvcnQ=' is not a public key"),
        ([*COMMON, "--service-key", "?"], "'?' is not a public key"),
        ([*COMMON, "--service", "c2hvcnQ="], "unrecognized arguments: --service"),
        ([*COMMON, "-q", "-v"], "not allowed with argument -q/--quiet"),
    ],
)
def test_wrong_usage_is_one_sentence(
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tilewright.service.worker.options.available_cores", lambda: {0, 1, 2, 5})
    with pytest.raises(SystemExit) as ended:
        parse_arguments(arguments, {})
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("content", ["secret\nother\n", "secret other", "secret\x07", ""])
def test_a_token_file_without_a_token_is_named_and_its_content_is_not(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    with pytest.raises(SystemExit) as ended:
        parse_arguments(["--server", "http://x", "--token-file", str(file)], {})
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1
    assert f"the token file '{file}' does not contain a token, which is one line of" in said
    assert "secret" not in said


def test_options_come_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    environment = {
        "TILEWRIGHT_SERVER": "https://s",
        "TILEWRIGHT_SPOOL": str(tmp_path),
    }
    found = parse_arguments(["--token-file", str(file)], environment)
    assert (found.server, found.token, found.spool) == ("https://s", "secret", tmp_path)


WHOLE = {
    "--server": "https://s",
    "--token": "secret",
    "--name": "n",
    "--spool": "/spool",
    "--cache-mib": "3",
    "--sandbox-users": "5000-5001",
    "--sandbox-mib": "2048",
    "--cores": "0,2",
    "--service-key": "A" * 43 + "=",
}


def test_every_option_says_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the command line, in the environment, or not at all."""
    monkeypatch.setattr("tilewright.service.worker.options.available_cores", lambda: {0, 1, 2})
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    given = WorkerOptions(
        server="https://s",
        token="secret",
        name="n",
        spool=Path("/spool"),
        targets=("a", "b"),
        cache_bytes=3 << 20,
        sandbox_users=(5000, 5001),
        sandbox_bytes=2 << 30,
        cores=(0, 2),
        service_key=WHOLE["--service-key"],
    )
    arguments = [word for pair in WHOLE.items() for word in pair]
    assert parse_arguments([*arguments, "--target", "a", "--target", "b"], {}) == given
    names = ("server", "token", "spool", "sandbox_users", "cores", "service_key")
    environment = {
        f"TILEWRIGHT_{name.upper()}": WHOLE[f"--{name.replace('_', '-')}"] for name in names
    }
    unsaid = {"name": "here", "targets": (), "cache_bytes": 1 << 30, "sandbox_bytes": 0}
    assert parse_arguments([], environment) == replace(given, **unsaid)  # type: ignore[arg-type]
    least = ["--server", "https://s", "--token", "secret"]
    assert parse_arguments(least, {"XDG_STATE_HOME": "/state"}) == WorkerOptions(
        "https://s", "secret", "here", Path("/state/tilewright"), sandbox_users=(61_000, 61_255)
    )


def test_it_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(["--version"], {})
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"tilewright-worker {package_version()}\n"


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ([], ["an error", "a warning", "news"]),
        (["-q"], ["an error", "a warning"]),
        (["--verbose"], ["an error", "a warning", "news", "a detail"]),
    ],
)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_the_log_is_as_detailed_as_its_options(
    given: list[str], written: list[str], as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    options = parse_arguments([*COMMON, *given, *["--json"] * as_json], {})
    log = ErrorLog(options.log_level, as_json=options.as_json)
    log("an error", logging.ERROR)
    log("a warning")
    log("news", logging.INFO)
    log("a detail", logging.DEBUG)
    lines = capsys.readouterr().err.splitlines()
    if as_json:
        read = [json.loads(line) for line in lines]
        assert [each["event"] for each in read] == written
        assert [each["level"] for each in read][:2] == ["error", "warning"]
        assert all(each["timestamp"].endswith("Z") for each in read)
    else:
        assert [line.partition(" ")[2] for line in lines] == written


def test_the_sandbox_is_set_up_by_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert parse_arguments(COMMON, {}).sandbox_users == (61_000, 61_255)
    assert parse_arguments([*COMMON, "--sandbox-users", "none"], {}).sandbox_users is None
    environment = {"TILEWRIGHT_SANDBOX_USERS": "5000-5001", "TILEWRIGHT_CORES": "0"}
    found = parse_arguments([*COMMON, "--sandbox-mib", "2048"], environment)
    assert (found.sandbox_users, found.cores) == ((5000, 5001), (0,))
    assert found.sandbox_bytes == 2 << 30


@pytest.mark.skipif(sys.platform != "linux", reason="the process list is Linux's")
@pytest.mark.parametrize(
    ("system", "hidden", "said"),
    [
        ("linux", lambda token: True, []),
        ("linux", lambda token: False, ["the token can be read in the process list"]),
        ("linux", lambda token: 1 // 0, ZeroDivisionError),
        ("linux", lambda token: [][1], ["the token may be read by other processes"]),
        ("darwin", lambda token: 1 // 0, []),
    ],
)
def test_secrets_are_hidden_where_a_system_can(
    system: str, hidden: Any, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    log: list[str] = []
    monkeypatch.setattr("tilewright.service.worker.secrecy.sys.platform", system)
    monkeypatch.setattr(secrecy, "hide_process", lambda: asked.append("memory"))
    monkeypatch.setattr(
        secrecy, "hide_argument", lambda token: asked.append(token) or hidden(token)
    )
    if isinstance(said, type):
        with pytest.raises(said):  # after a bug it does not go on
            hide_secrets("secret", log.append)
        return
    hide_secrets("secret", log.append)
    assert asked == (["memory", "secret"] if system == "linux" else [])
    assert len(log) == len(said) and all(map(str.startswith, log, said))


@pytest.mark.parametrize("form", [["--token", "s3cret"], ["--token=s3cret"]])
def test_the_token_does_not_stay_in_the_process_list(form: list[str], tmp_path: Path) -> None:
    """Any user of the machine may read the command lines of all."""
    command = [
        sys.executable,
        "-m",
        "tilewright.service.worker",
        "--server",
        "http://127.0.0.1:9",
        *form,
    ]
    command += ["--spool", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert "waiting for the service" in process.stderr.readline()
            shown = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        finally:
            process.kill()
    assert b"s3cret" not in shown and b"******" in shown


def test_the_service_packages_command_passes_the_options_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tilewright.service.cli import run

    given: list[list[str]] = []
    monkeypatch.setattr("tilewright.service.worker.process.main", lambda a: given.append(a) or 0)
    options = ["--cores", "0", "--sandbox-users", "5000-5001", "--sandbox-mib", "2048"]
    assert run(["server", "worker", *COMMON, *options]) == 0
    found = parse_arguments(given[0], {})
    assert (found.cores, found.sandbox_bytes, found.token) == ((0,), 2 << 30, "t")
    assert "5000-5001" in given[0]


@pytest.mark.skipif(sys.platform != "linux", reason="the call is Linux's")
def test_a_process_hides_from_others_of_its_user() -> None:
    code = (
        "import ctypes; from tilewright.service.worker import secrecy; secrecy.hide_process(); "
        "print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"  # PR_GET_DUMPABLE
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


@pytest.mark.parametrize("via", [(), ("--via", "ssh board")])
def test_a_worker_without_a_harness_ends_with_a_sentence(
    via: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At its start on this machine, before it registers; a device's may fail later."""

    def fail(*_: Any) -> None:
        raise HarnessError("there is no compiler")

    class LateWorker:
        run = fail

        def __init__(self, *_: Any) -> None: ...

    monkeypatch.setattr(process, "hide_secrets", lambda *_: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    if via:
        monkeypatch.setattr(process, "Worker", LateWorker)
    else:
        monkeypatch.setattr(process, "local_harness", fail)
    assert process.main([*COMMON, *via, "--spool", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.endswith(f"{'--via: ' if via else ''}there is no compiler\n")
