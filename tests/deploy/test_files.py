"""deploy/: what linters say of the files, and whether the program has the options that they use."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import kubernetes_validate
import pytest
import typer.main
import yaml

from antiphon.cli.app import app
from antiphon.seal.key_sources import FILE_VARIABLE
from antiphon.seal.keyring import VARIABLE

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
MANIFESTS: list[dict[str, Any]] = [
    one
    for file in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for one in yaml.safe_load_all(file.read_text())
]
SERVERS = ("server-1", "server-2")
KUBERNETES = ("1.28", "1.31", "1.34")
STYLE = "{extends: default, rules: {line-length: {max: 120}, document-start: disable}}"


def test_the_dockerfile_passes_its_linter() -> None:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    linter = shutil.which("hadolint", path=path)
    assert linter is not None, "hadolint comes with requirements/dev.lock"
    ran = subprocess.run(
        [linter, "--no-color", str(DEPLOY / "Dockerfile")], capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout) == (0, "")


@pytest.mark.parametrize(
    "path", sorted(DEPLOY.rglob("*.yaml")), ids=lambda path: path.relative_to(DEPLOY).as_posix()
)
def test_a_file_passes_the_linter_of_its_language(path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "yamllint", "--strict", "-d", STYLE, str(path)],
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize(
    "manifest", MANIFESTS, ids=lambda one: f"{one['kind']}-{one['metadata']['name']}"
)
def test_a_manifest_fits_the_schema_of_kubernetes(manifest: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def test_a_manifest_that_is_wrong_does_not_fit() -> None:
    wrong = {**MANIFESTS[0], "spec": {**MANIFESTS[0]["spec"], "replica": 2}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES[0], strict=True)


# --- the program that they start ------------------------------------------------------------------


def understood(words: list[str]) -> dict[str, Any]:
    """Give the arguments to the command as it is; raises what a person would be told."""
    command: Any = typer.main.get_command(app).commands[words[0]]  # pyright: ignore[reportAttributeAccessIssue]
    return command.make_context(words[0], list(words[1:])).params


def containers() -> list[dict[str, Any]]:
    pods = [one["spec"]["template"]["spec"] for one in MANIFESTS if one["kind"] == "Deployment"]
    return [container for pod in pods for container in pod["containers"]]


def commands() -> dict[str, list[str]]:
    (entry,) = re.findall(r'^ENTRYPOINT \["(.*)"\]$', DOCKERFILE, re.MULTILINE)
    (command,) = re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert entry == "antiphon"
    found: dict[str, list[str]] = {"Dockerfile": yaml.safe_load(command)}
    found |= {name: COMPOSE["services"][name]["command"] for name in SERVERS}
    found |= {container["name"]: container["args"] for container in containers()}
    return found


@pytest.mark.parametrize(("where", "words"), commands().items(), ids=commands())
def test_the_command_of_a_file_is_one_that_the_program_has(where: str, words: list[str]) -> None:
    params = understood(words)
    assert params["server"] == "/srv/shop.py", where
    if words[0] == "serve":
        assert params["http"] == "0.0.0.0:8400"


def test_what_runs_is_not_root_and_has_nothing_to_write_to() -> None:
    (user,) = re.findall(r"^USER (\d+):\d+$", DOCKERFILE, re.MULTILINE)
    assert user != "0"
    for name in SERVERS:
        service = COMPOSE["services"][name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    for manifest in MANIFESTS:
        if manifest["kind"] != "Deployment":
            continue
        pod = manifest["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsUser"] == int(user)
        assert pod["securityContext"]["fsGroup"] == int(user)
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}


def test_probes_ask_what_the_server_answers() -> None:
    (server,) = [one for one in containers() if one["name"] == "server"]
    assert server["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert server["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert server["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert "http://127.0.0.1:8400/healthz" in DOCKERFILE


def test_keys_come_from_where_the_program_reads_them() -> None:
    for name in SERVERS:
        assert set(COMPOSE["services"][name]["environment"]) == {VARIABLE, "ANTIPHON_STORE"}
    for container in containers():
        variables = {one["name"]: one for one in container["env"]}
        assert set(variables) == {FILE_VARIABLE, "ANTIPHON_STORE"}
        (mounted,) = [one for one in container["volumeMounts"] if one["name"] == "keys"]
        assert variables[FILE_VARIABLE]["value"] == mounted["mountPath"]
    for manifest in MANIFESTS:
        if manifest["kind"] == "Deployment":
            volumes = manifest["spec"]["template"]["spec"]["volumes"]
            (keys,) = [one["secret"] for one in volumes if one["name"] == "keys"]
            assert keys["defaultMode"] == 0o440, "what others can read is refused"


def test_every_pod_is_found_by_its_service() -> None:
    kinds = {one["kind"]: one for one in MANIFESTS if one["metadata"]["name"] == "antiphon"}
    labels = cast("dict[str, str]", kinds["Deployment"]["spec"]["template"]["metadata"]["labels"])
    assert kinds["Service"]["spec"]["selector"] == labels
    assert kinds["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels


def test_the_load_balancer_is_the_one_of_the_docs_with_other_addresses() -> None:
    def plain(text: str) -> list[str]:
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        return [line for line in lines if line and "log" not in line and "server_name" not in line]

    ours = (DEPLOY / "nginx.conf").read_text()
    ours = ours.replace("server-1:", "10.0.0.11:").replace("server-2:", "10.0.0.12:")
    ours = ours.replace("listen 8080;", "listen 8443;")
    assert plain(ours) == plain((ROOT / "docs_src" / "nginx.conf").read_text())
    assert COMPOSE["services"]["nginx"]["volumes"] == ["./nginx.conf:/etc/nginx/nginx.conf:ro"]
