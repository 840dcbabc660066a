"""The manifests in deploy/ against their linters, the code, and each other."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from distributed.cli.dask_scheduler import main as dask_scheduler
from distributed.cli.dask_worker import main as dask_worker
from fastapi.testclient import TestClient
from yamllint import linter
from yamllint.config import YamlLintConfig

from tests.command_tree import COMMANDS
from tilewright.db.storage import Storage
from tilewright.service.api.app import create_app
from tilewright.service.settings import Settings
from tilewright.service.worker.options import parse_arguments

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "deploy").glob("*/*.yaml"))
KUBERNETES = "1.30"

Manifest = dict[str, Any]


def manifests() -> Iterator[tuple[str, Manifest]]:
    for path in FILES:
        for document in yaml.safe_load_all(path.read_text()):
            yield f"{path.name}: {document['kind']} {document['metadata']['name']}", document


MANIFESTS = dict(manifests())
PODS: dict[str, Manifest] = {
    document["metadata"]["name"]: document["spec"]["template"]
    for document in MANIFESTS.values()
    if document["kind"] in ("Deployment", "StatefulSet")
}
OURS = sorted(set(PODS) - {"postgres"})


def container(name: str) -> dict[str, Any]:
    (only,) = PODS[name]["spec"]["containers"]
    return dict(only)


def named(kind: str) -> dict[str, Manifest]:
    """The manifests of a kind by name."""
    found = (document for document in MANIFESTS.values() if document["kind"] == kind)
    return {document["metadata"]["name"]: document for document in found}


@pytest.mark.parametrize("path", [*FILES, ROOT / "docker-compose.yml"], ids=lambda path: path.name)
def test_the_files_are_tidy(path: Path) -> None:
    config = YamlLintConfig(file=str(ROOT / ".yamllint.yaml"))
    assert not list(linter.run(path.read_text(), config))


@pytest.mark.parametrize("name", MANIFESTS)
def test_kubernetes_knows_every_field(name: str) -> None:
    kubernetes_validate.validate(MANIFESTS[name], KUBERNETES, strict=True)


def test_there_is_all_that_a_service_needs() -> None:
    assert set(PODS) == {"api", "tuner", "postgres", "worker", "dask-scheduler", "dask-worker"}
    assert named("Deployment")["api"]["spec"]["replicas"] == 2
    for kind in ("Deployment", "StatefulSet"):
        for name, each in named(kind).items():
            labels = each["spec"]["template"]["metadata"]["labels"]
            assert each["spec"]["selector"]["matchLabels"] == labels == {"app": name}


def variables(name: str) -> dict[str, str]:
    """Our variables of a container, those of its ConfigMap among them."""
    found = {each["name"]: each.get("value", "") for each in container(name).get("env", ())}
    for source in container(name).get("envFrom", ()):
        found.update(named("ConfigMap")[source["configMapRef"]["name"]]["data"])
    return {key: value for key, value in found.items() if key.startswith("TILEWRIGHT_")}


@pytest.mark.parametrize("name", ["api", "tuner"])
def test_every_variable_is_a_setting(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = variables(name)
    assert {*given} <= {f"TILEWRIGHT_{field.upper()}" for field in Settings.model_fields}
    assert "$(DATABASE_PASSWORD)@postgres/" in given["TILEWRIGHT_DATABASE_URL"]
    for key, value in given.items():
        monkeypatch.setenv(key, value)
    mounts = [each["mountPath"] for each in container(name)["volumeMounts"]]
    assert str(Settings().data_folder) in mounts, "of the data folder nothing else is kept"


@pytest.mark.parametrize("name", ["api", "tuner"])
def test_every_command_of_the_service_is_one(name: str) -> None:
    group, command, *arguments = container(name)["args"]
    COMMANDS[f"{group} {command}"].make_context(command, list(arguments))


def test_the_workers_command_is_one(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    arguments = container("worker")["args"]
    place = arguments.index("--token-file") + 1
    token = Path(arguments[place])
    given = [*arguments[:place], str(tmp_path / "token"), *arguments[place + 1 :]]
    known = parse_arguments(given, variables("worker"))
    assert (
        known.server == "http://api" and named("Service")["api"]["spec"]["ports"][0]["port"] == 80
    )
    volumes = {each["name"]: each for each in PODS["worker"]["spec"]["volumes"]}
    mounts = {each["mountPath"]: each for each in container("worker")["volumeMounts"]}
    assert volumes[mounts[str(token.parent)]["name"]]["secret"]["secretName"] == "tilewright-worker"
    assert str(known.spool) in mounts


def test_the_worker_sees_nothing_of_the_service() -> None:
    text = yaml.safe_dump(PODS["worker"])
    for name in ("tilewright-data", "tilewright-database", "DATABASE", "configMapRef"):
        assert name not in text
    (rule, names) = named("NetworkPolicy")["worker"]["spec"]["egress"]
    assert rule["to"] == [{"podSelector": {"matchLabels": {"app": "api"}}}]
    assert rule["ports"] == [{"port": container("api")["ports"][0]["containerPort"]}]
    assert {each["port"] for each in names["ports"]} == {53}


@pytest.mark.parametrize("name", sorted(PODS))
def test_every_container_is_confined(name: str) -> None:
    pod, held = PODS[name]["spec"], container(name)["securityContext"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert held["capabilities"] == {"drop": ["ALL"]} and not held["allowPrivilegeEscalation"]
    assert name == "postgres" or held["readOnlyRootFilesystem"] is True


def test_users_and_images_are_those_of_the_dockerfile() -> None:
    text = (ROOT / "Dockerfile").read_text()
    users = {name: int(uid) for uid, name in re.findall(r"--uid (\d+) (\w+)", text)}
    images = re.findall(r"^#   docker build .*-t ([\w-]+) \.$", text, flags=re.M)
    for name in OURS:
        image, _, version = container(name)["image"].partition(":")
        assert image in images and version
        user = "worker" if image == "tilewright-worker" else "tilewright"
        assert PODS[name]["spec"]["securityContext"]["runAsUser"] == users[user]


@pytest.mark.parametrize("name", sorted(PODS))
def test_images_name_no_registry(name: str) -> None:
    assert re.fullmatch(r"[a-z-]+:[\w.]+", container(name)["image"])


def test_ports_and_probes_are_the_services(settings_and_storage: tuple[Settings, Storage]) -> None:
    api = container("api")
    (port,) = api["ports"]
    assert str(port["containerPort"]) == api["args"][api["args"].index("--port") + 1]
    (served,) = named("Service")["api"]["spec"]["ports"]
    assert served["targetPort"] == port["name"]
    (rule,) = named("Ingress")["api"]["spec"]["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert backend == {"name": "api", "port": {"name": served["name"]}}
    with TestClient(create_app(*settings_and_storage)) as client:
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = api[probe]["httpGet"]
            assert asked["port"] == port["name"]
            answer = client.get(asked["path"])
            assert answer.status_code in (200, 503) and "status" in answer.json()
    assert api["livenessProbe"]["httpGet"]["path"] != api["readinessProbe"]["httpGet"]["path"]


@pytest.fixture
def settings_and_storage(tmp_path: Path) -> Iterator[tuple[Settings, Storage]]:
    storage = Storage.open(f"sqlite:///{tmp_path}/t.db", tmp_path / "blobs")
    yield Settings(data_folder=tmp_path), storage
    storage.close()


def test_what_is_named_is_there() -> None:
    claims, maps = named("PersistentVolumeClaim"), named("ConfigMap")
    secrets = set(
        re.findall(r"create secret generic (\S+)", (ROOT / "deploy/README.md").read_text())
    )
    for name, pod in PODS.items():
        volumes = {each["name"]: each for each in pod["spec"].get("volumes", ())}
        for volume in volumes.values():
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims
            if "secret" in volume:
                assert volume["secret"]["secretName"] in secrets
        for source in container(name).get("envFrom", ()):
            assert source["configMapRef"]["name"] in maps
        for each in container(name).get("env", ()):
            if "valueFrom" in each:
                assert each["valueFrom"]["secretKeyRef"]["name"] in secrets
        for mount in container(name)["volumeMounts"]:
            assert mount["name"] in volumes or name == "postgres"


def test_dask_is_started_with_options_that_it_has() -> None:
    scheduler, worker = container("dask-scheduler"), container("dask-worker")
    assert scheduler["command"] == ["dask", "scheduler"]
    dask_scheduler.make_context("scheduler", list(scheduler["args"]))
    _, kind, address = worker["command"]
    assert kind == "worker"
    dask_worker.make_context("worker", [address, *worker["args"]])
    (port,) = named("Service")["dask-scheduler"]["spec"]["ports"]
    assert address == f"tcp://dask-scheduler:{port['port']}"
    assert scheduler["ports"][0]["containerPort"] == port["port"]
    text = (ROOT / "deploy/kubernetes-dask/dask.yaml").read_text()
    found = re.search(r"deployment/tuner TILEWRIGHT_BUILDERS=(\S+)", text)
    assert found is not None
    assert Settings(builders=found[1]).builders == address.replace("tcp://", "dask://")
    assert "dask" in re.findall(r"tilewright\[([\w,]+)\]", (ROOT / "Dockerfile").read_text())[0]


def test_the_api_says_that_a_proxy_is_before_it() -> None:
    """Without it `server run` would not start: tokens would pass in clear."""
    api = container("api")
    assert "0.0.0.0" in api["args"] and "api" in named("Ingress")
    assert "TILEWRIGHT_TRUSTED_PROXIES" in {each["name"] for each in api["env"]}


def test_systemd_starts_the_worker_as_it_is(tmp_path: Path) -> None:
    """Its options and variables exist, and its confinement allows everything that the sandbox of
    candidates needs."""
    text = (ROOT / "deploy" / "systemd" / "tilewright-worker.service").read_text()
    lines = [line.partition("=") for line in text.splitlines() if re.match(r"[A-Z]\w+=", line)]
    unit = {name: value for name, _, value in lines}
    (tmp_path / "token").write_text("secret")
    line = re.sub(r"\$\{(CREDENTIALS|STATE)_DIRECTORY\}", str(tmp_path), unit["ExecStart"])
    command, *options = line.split()
    assert command.endswith("/bin/tilewright-worker")
    variables = dict(v.partition("=")[::2] for k, _, v in lines if k == "Environment")
    parsed = parse_arguments(options, variables)
    assert (parsed.server, parsed.token) == ("https://tilewright.example", "secret")
    assert parsed.spool == tmp_path
    assert unit["User"] != "root" and unit["LoadCredential"].startswith("token:")
    assert not {"RestrictNamespaces", "MemoryDenyWriteExecute", "NoExecPaths"} & set(unit)
    if shutil.which("systemd-analyze") is not None:
        path = ROOT / "deploy" / "systemd" / "tilewright-worker.service"
        asked = ["systemd-analyze", "verify", str(path)]
        said = subprocess.run(asked, capture_output=True, text=True, check=False).stderr
        # the command lies on the board, not here
        assert [line for line in said.splitlines() if "is not executable" not in line] == []
