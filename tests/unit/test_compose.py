"""docker-compose.yml and the Dockerfile against the code, and against each other."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.command_tree import COMMANDS
from tilewright.service.api.app import create_app
from tilewright.service.settings import Settings
from tilewright.service.worker.options import parse_arguments

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text()
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]

OURS = sorted(name for name, service in SERVICES.items() if "build" in service)
WORKERS = [name for name in OURS if SERVICES[name]["build"]["target"] == "worker"]
SERVERS = [name for name in OURS if name not in WORKERS and name != "tokens"]

WORKER_VARIABLES = set(
    re.findall(r'environment\.get\("(\w+)"', (ROOT / "service/worker/options.py").read_text())
)


def volumes(name: str) -> dict[str, str]:
    """Volume -> where it is mounted."""
    return dict(text.split(":")[:2] for text in SERVICES[name].get("volumes", ()))


def stages() -> dict[str, str]:
    """The Dockerfile's instructions for each target."""
    parts = re.split(r"^FROM \S+ AS (\w+)$", DOCKERFILE, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_there_is_all_that_a_service_needs() -> None:
    assert set(WORKERS) == {"worker"} and set(SERVERS) == {"api", "tuner"}
    assert SERVICES["api"]["deploy"]["replicas"] == 2
    for name, service in SERVICES.items():
        assert set(service.get("depends_on", {})) <= set(SERVICES), name
        assert set(volumes(name)) <= set(COMPOSE["volumes"]), name
        assert set(service["networks"]) <= set(COMPOSE["networks"]), name
    for name in OURS:
        assert SERVICES[name]["build"]["target"] in stages()


@pytest.mark.parametrize(
    ("stage", "variable"),
    [("service", "TILEWRIGHT_DATA_FOLDER"), ("worker", "TILEWRIGHT_SPOOL")],
)
def test_an_image_keeps_its_files_in_its_volume(stage: str, variable: str) -> None:
    """By default: files elsewhere are lost with the container."""
    (volume,) = re.findall(r"^VOLUME (\S+)$", stages()[stage], flags=re.M)
    assert re.findall(rf"^ENV {variable}=(\S+)$", stages()[stage], flags=re.M) == [volume]


@pytest.mark.parametrize("name", OURS)
def test_every_variable_is_a_setting(name: str) -> None:
    known = {f"TILEWRIGHT_{field.upper()}" for field in Settings.model_fields}
    given = set(SERVICES[name]["environment"])
    assert given and given <= (WORKER_VARIABLES if name in WORKERS else known)


@pytest.mark.parametrize("name", SERVERS)
def test_every_command_of_the_service_is_one(name: str) -> None:
    group, command, *arguments = SERVICES[name]["command"]
    COMMANDS[f"{group} {command}"].make_context(command, list(arguments))


@pytest.mark.parametrize("name", WORKERS)
def test_the_workers_command_is_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.service.worker.options.package_version", lambda: "0")
    monkeypatch.setattr(Path, "read_text", lambda self, **how: f"token-of-{self}")
    found = parse_arguments(SERVICES[name]["command"], SERVICES[name]["environment"])
    folder = volumes(name)["worker-token"]
    assert found.token == f"token-of-{folder}/token"
    assert str(found.spool) == volumes(name)["spool"]
    assert found.server == f"http://proxy:{proxy_port()}"


def test_the_token_that_is_made_is_for_measuring_alone() -> None:
    script = SERVICES["tokens"]["command"][-1]
    (line,) = (each for each in script.splitlines() if "tilewright token" in each)
    group, command, *arguments = shlex.split(line.partition(">")[0])[1:]
    context = COMMANDS[f"{group} {command}"].make_context(command, arguments)
    assert context.params["scope"] == ["measure"]
    assert "umask 077" in script and volumes("tokens")["worker-token"] in script
    assert SERVICES["tokens"]["user"] == SERVICES["worker"]["user"], "to whom the file belongs"


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_sees_nothing_of_the_service(name: str) -> None:
    shared = {volume for other in SERVERS for volume in volumes(other)}
    assert not shared & set(volumes(name))
    assert f"worker-token:{volumes(name)['worker-token']}:ro" in SERVICES[name]["volumes"]
    assert not any("DATABASE" in v or "TOKEN" in v for v in SERVICES[name]["environment"])
    near = {n for n in SERVICES if set(SERVICES[n]["networks"]) & set(SERVICES[name]["networks"])}
    assert near == {name, "proxy"}


def test_the_worker_is_a_user_of_its_own() -> None:
    users = {name: re.findall(r"^USER (\w+)$", text, flags=re.M) for name, text in stages().items()}
    assert users["service"] == ["tilewright"] and users["worker"] == ["worker"]
    assert SERVICES["worker"]["user"] == "worker"
    made = dict(re.findall(r"useradd --create-home --uid (\d+) (\w+)", DOCKERFILE))
    assert sorted(made.values()) == ["tilewright", "worker"] and "0" not in made
    # new volumes take the owner of these folders
    for place in volumes("worker").values():
        assert re.search(rf"install -d -o worker -m 700 .*{place}\b", DOCKERFILE)


@pytest.mark.parametrize("name", [*OURS, "proxy"])
def test_every_container_is_confined(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert service.get("cap_add", []) == (["NET_BIND_SERVICE"] if name == "proxy" else [])


def proxy_port() -> int:
    found = re.match(r":(\d+) \{", COMPOSE["configs"]["proxy"]["content"])
    assert found is not None
    return int(found[1])


def test_the_proxy_alone_is_published_and_reaches_every_replica() -> None:
    published = {name for name, service in SERVICES.items() if "ports" in service}
    assert published == {"proxy"}
    assert SERVICES["proxy"]["ports"] == [f"127.0.0.1:{proxy_port()}:{proxy_port()}"]
    arguments = SERVICES["api"]["command"]
    port = arguments[arguments.index("--port") + 1]
    assert f"dynamic a api {port} " in COMPOSE["configs"]["proxy"]["content"]
    assert "inside" in SERVICES["api"]["networks"] and "inside" in SERVICES["proxy"]["networks"]


def test_the_health_that_is_asked_for_is_a_route(tmp_path: Path) -> None:
    module = ROOT.joinpath(*SERVICES["api"]["healthcheck"]["test"][-1].split(".")).with_suffix(
        ".py"
    )
    found = re.search(r"127\.0\.0\.1:\{settings\.port\}(/[\w/]+)", module.read_text())
    assert found is not None
    paths = create_app(Settings(data_folder=tmp_path)).openapi()["paths"]
    assert "get" in paths[found[1]]


def test_an_api_that_others_reach_says_that_a_proxy_is_before_it() -> None:
    """Without it `server run` would not start: tokens would pass in clear."""
    facts = SERVICES["api"]
    assert "0.0.0.0" in facts["command"] and "ports" not in facts
    assert set(facts["environment"]) == {
        *SERVICES["tuner"]["environment"],
        "TILEWRIGHT_TRUSTED_PROXIES",
    }


def test_the_service_says_whether_it_is_well() -> None:
    """The image's check is a module of it, and only containers that serve are checked."""
    (check,) = re.findall(r'^HEALTHCHECK .* CMD \["python", "-m", "([\w.]+)"\]$', DOCKERFILE, re.M)
    assert importlib.util.find_spec(check) is not None
    assert "HEALTHCHECK" in stages()["service"] and "HEALTHCHECK" not in stages()["worker"]
    assert SERVICES["api"]["healthcheck"]["test"] == ["CMD", "python", "-m", check]
    for name in OURS:
        if SERVICES[name]["build"]["target"] == "service" and name != "api":
            assert SERVICES[name]["healthcheck"] == {"disable": True}, name


def test_no_image_runs_as_root_and_what_is_copied_exists() -> None:
    for name in ("service", "worker"):
        user, entry = (stages()[name].index(word) for word in ("\nUSER ", "\nENTRYPOINT "))
        assert user < entry
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.M)
    parts = [part for line in copied for part in line.split()]
    assert parts and [part for part in parts if not (ROOT / part).exists()] == []
