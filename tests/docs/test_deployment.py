"""The Dockerfile, compose file and manifests are valid and match the server's options."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from environments.rehearse_container import is_in_context, parse
from page_blocks import ROOT
from typer.main import get_command

from skipdec.cli import build_app
from skipdec.runtime.serving.http.app import build_app as build_server
from skipdec.runtime.serving.http.config import ServerConfig
from skipdec.runtime.serving.http.metrics import Metrics
from skipdec.runtime.serving.http.middleware import ApiKeys
from skipdec.runtime.serving.http.models import ServedModels

KUBERNETES = "1.37"
DEPLOYMENT = ROOT / "examples" / "deployment"
FILES = sorted((DEPLOYMENT / "kubernetes").glob("*.yaml"))
MANIFESTS = {path.stem: yaml.safe_load(path.read_text()) for path in FILES}
COMPOSE = yaml.safe_load((DEPLOYMENT / "compose.yaml").read_text())["services"]["skipdec"]
STAGES = parse((ROOT / "Dockerfile").read_text())
ENTRYPOINT: list[str] = json.loads(STAGES[-1].last("ENTRYPOINT"))
PODS = {name: MANIFESTS[name]["spec"]["template"]["spec"] for name in ("deployment", "triton")}


def container(name: str) -> dict[str, Any]:
    (found,) = PODS[name]["containers"]
    assert isinstance(found, dict)
    return found


def tool(name: str) -> str:
    """Return the path of a program of the environment; skip the test if it is missing."""
    found = shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed; the extra dev has it")
    return found


def options(command: list[str]) -> dict[str, Any]:
    """Parse a command line of skipdec; raise if it is invalid."""
    program, *arguments = command
    found: Any = get_command(build_app())  # of the click inside typer
    context = found.context_class(found, info_name=program)
    while hasattr(found, "resolve_command"):
        _, found, arguments = found.resolve_command(context, arguments)
    params: dict[str, Any] = found.make_context(program, arguments).params
    return params


def seconds(text: str) -> float:
    return float(re.fullmatch(r"(\d+)s", text)[1])  # type: ignore[index]


def test_the_dockerfile_passes_hadolint() -> None:
    linted = subprocess.run(
        [tool("hadolint"), "--no-color", str(ROOT / "Dockerfile")], capture_output=True, text=True
    )
    assert linted.returncode == 0, linted.stdout


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_is_valid_and_a_wrong_one_is_not(name: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="the extra dev has it")
    kubernetes_validate.validate(MANIFESTS[name], KUBERNETES, strict=True)
    wrong = deepcopy(MANIFESTS[name])
    wrong["spec"]["terminationGracePeriod"] = 60
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


@pytest.mark.parametrize(
    "command",
    [
        STAGES[-1].command(),
        [*ENTRYPOINT, *COMPOSE["command"]],
        [*ENTRYPOINT, *container("deployment")["args"]],
        container("triton")["livenessProbe"]["exec"]["command"],
    ],
)
def test_containers_start_valid_skipdec_commands(command: list[str]) -> None:
    assert options(command)
    with pytest.raises(Exception, match="No such option"):
        options([*command, "--no-such-option"])


def test_the_grace_period_lets_running_requests_finish() -> None:
    given = options([*ENTRYPOINT, *container("deployment")["args"]])
    drain = given["server_shutdown_timeout"]
    pause = container("deployment")["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert PODS["deployment"]["terminationGracePeriodSeconds"] > pause + drain
    assert seconds(COMPOSE["stop_grace_period"]) > ServerConfig().shutdown_timeout
    (exit_timeout,) = (
        float(argument.rpartition("=")[2])
        for argument in container("triton")["args"]
        if argument.startswith("--exit-timeout-secs")
    )
    assert PODS["triton"]["terminationGracePeriodSeconds"] > pause + exit_timeout


def documented_compose() -> list[str]:
    """Return the words of the guide's command, which compose.yaml repeats."""
    guide = (ROOT / "docs" / "guides" / "from-checkpoint-to-service.md").read_text()
    (line,) = re.findall(r"^\$ (BUNDLE=.* docker compose .*)$", guide, re.MULTILINE)
    assert line in (DEPLOYMENT / "compose.yaml").read_text()
    return shlex.split(line)


def composed(value: str, environment: Mapping[str, str]) -> str:
    """Interpolate a value as compose does: ``${NAME:?reason}`` requires a non-empty value."""
    match = re.fullmatch(r"\$\{(\w+):\?([^}]+)\}", value)
    assert match is not None, value
    assert environment.get(match[1]), match[2]
    return environment[match[1]]


def container_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the service's variables; compose passes on a name without a value if it is set."""
    declared = COMPOSE["environment"]
    assert isinstance(declared, list), "a mapping sets missing variables to an empty text"
    given = (entry.partition("=") for entry in declared)
    values = {name: value if mark else environment.get(name) for name, mark, value in given}
    return {name: value for name, value in values.items() if value is not None}


def test_the_documented_compose_command_mounts_the_local_bundle(
    tmp_path: Path,
) -> None:
    assignment, *command = documented_compose()
    assert command[:3] == ["docker", "compose", "-f"]
    assert (ROOT / command[3]).is_file()
    name, _, value = assignment.partition("=")
    bundle = tmp_path / "restaurants-int8"
    (mount,) = COMPOSE["volumes"]
    source = Path(composed(mount["source"], {name: value.replace("$PWD", str(tmp_path))}))
    assert source.is_absolute()  # compose resolves paths from its file's folder
    assert source == bundle
    assert mount["target"] in COMPOSE["command"]
    assert mount["bind"] == {"create_host_path": False}
    context = DEPLOYMENT / COMPOSE["build"]["context"]
    assert (context / "Dockerfile").samefile(ROOT / "Dockerfile")


@pytest.mark.parametrize(
    ("environment", "is_open"), [({}, True), ({"SKIPDEC_API_KEY": "secret"}, False)]
)
def test_a_composed_server_starts_with_and_without_a_key(
    environment: dict[str, str], is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SKIPDEC_API_KEY", raising=False)
    for name, value in container_environment(environment).items():
        monkeypatch.setenv(name, value)
    keys = ApiKeys.read(None)
    assert keys.accept(b"") is is_open
    assert keys.accept(b"Bearer secret")


def test_probes_request_paths_and_ports_of_the_server() -> None:
    server = build_server(ServedModels(["tiny"]), ServerConfig(), ApiKeys())
    paths = set(server.openapi()["paths"])
    server_container = container("deployment")
    (port,) = server_container["ports"]
    assert port["containerPort"] == ServerConfig().port == int(STAGES[-1].last("EXPOSE"))
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert server_container[probe]["httpGet"]["path"] in paths
        assert server_container[probe]["httpGet"]["port"] == port["name"]
    health = json.loads(STAGES[-1].last("HEALTHCHECK").partition("CMD ")[2])
    (url,) = re.findall(r"http://127.0.0.1:8000(/[\w/]+)", " ".join(health))
    assert url in paths
    assert MANIFESTS["service"]["spec"]["ports"][0]["targetPort"] == port["name"]


def test_the_autoscaler_watches_a_metric_of_the_server() -> None:
    (metric,) = MANIFESTS["autoscaler"]["spec"]["metrics"]
    assert (
        f"# TYPE {metric['pods']['metric']['name']} gauge"
        in Metrics(ServedModels(["tiny"]).stats).text().decode().splitlines()
    )


@pytest.mark.parametrize("name", PODS)
def test_containers_are_unprivileged_and_write_only_to_memory(name: str) -> None:
    assert PODS[name]["securityContext"]["runAsNonRoot"] is True
    uid, gid = STAGES[-1].last("USER").split(":")
    assert PODS[name]["securityContext"]["runAsUser"] == int(uid) == int(gid) > 0
    assert container(name)["securityContext"]["readOnlyRootFilesystem"] is True
    mounts = {mount["name"]: mount for mount in container(name)["volumeMounts"]}
    for volume in PODS[name]["volumes"]:
        if "emptyDir" not in volume:
            assert mounts[volume["name"]]["readOnly"] is True
    assert COMPOSE["read_only"] is True
    assert all(mount["read_only"] for mount in COMPOSE["volumes"])


@pytest.mark.parametrize(
    "path", ["docs/index.md", ".git/config", "scripts/test.sh", "engines/kernels/_native.abi3.so"]
)
def test_other_files_are_not_in_the_build_context(path: str) -> None:
    assert not is_in_context(path, (ROOT / ".dockerignore").read_text())
