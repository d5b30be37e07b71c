"""What is installed, run and published is pinned: lock files, actions, images, and lower bounds."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from tools.lock_hashes import is_of, normal, requirements

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MENDED = {
    "cryptography": "50.0.0",
    "joserfc": "1.7.4",
    "python-multipart": "0.0.32",
    "starlette": "1.6.0",
    "jinja2": "3.1.6",
}
"""The first versions without an advisory that was published by November 2026."""


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_every_version_of_a_lock_file_has_hashes(lock: Path) -> None:
    text = lock.read_text("utf-8")
    entries = re.findall(r"(?m)^\S+==\S+ \\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", text)
    assert len(entries) == len(requirements(text)) > 0
    assert "".join(entries) == "".join(
        line for line in text.splitlines(keepends=True) if not line.startswith("#")
    )


def test_lock_files_are_installed_by_their_hashes() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    installs = [line for line in makefile.splitlines() if "PIP_" in line and " -r " in line]
    locked = [line for line in installs if ".in " not in f"{line} "]
    assert locked
    assert all("$(PIP_LOCKED)" in line for line in locked)
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text("utf-8")
    for line in dockerfile.splitlines():
        if "pip install" in line:
            assert "--require-hashes" in line or "--no-deps dist/" in line, line


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit(file: Path) -> None:
    used = re.findall(r"uses: (\S+)(.*)", file.read_text("utf-8"))
    assert used
    for action, rest in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v[\d.]+", rest), f"{action}: its version stands beside it"


def test_only_the_jobs_that_build_and_publish_can_sign_and_they_run_no_tests() -> None:
    release = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8"))
    signing = {
        name
        for name, job in release["jobs"].items()
        if (job.get("permissions") or {}).get("id-token") == "write"
    }
    assert signing == {"build", "publish"}
    assert release["permissions"] == {"contents": "read"}
    for name in signing:
        commands = "\n".join(step.get("run", "") for step in release["jobs"][name]["steps"])
        assert not re.search(r"\.ci/run|make |pytest|npm|try_dist", commands), name
    assert {"build", "try"} <= set(release["jobs"]["publish"]["needs"])


def test_base_images_are_pinned_by_digest() -> None:
    bases = re.findall(r"(?m)^FROM (\S+)", (ROOT / "deploy" / "Dockerfile").read_text("utf-8"))
    assert bases
    assert all(re.search(r"@sha256:[0-9a-f]{64}$", base) for base in bases)


def test_everything_that_is_pinned_is_watched() -> None:
    settings = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text("utf-8"))
    watched = {each["package-ecosystem"] for each in settings["updates"]}
    assert watched >= {"pip", "npm", "github-actions", "docker", "docker-compose"}


def test_lower_bounds_have_no_known_advisory_and_the_locks_meet_them() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [Requirement(text) for text in project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        wanted += [Requirement(text) for text in extra]
    floors = {
        normal(each.name): Version(one.version)
        for each in wanted
        for one in each.specifier
        if one.operator == ">="
    }
    for name, version in MENDED.items():
        assert floors[name] >= Version(version), name
    assert "authlib" not in floors
    locked = dict(
        line.split("==") for line in requirements((ROOT / "requirements/dev.lock").read_text())
    )
    for name, version in locked.items():
        assert normal(name) not in floors or Version(version) >= floors[normal(name)], name


@pytest.mark.parametrize(
    ("file", "is_one"),
    [
        ("joserfc-1.8.0-py3-none-any.whl", True),
        ("joserfc-1.8.0.tar.gz", True),
        ("joserfc-1.8.0.post1.tar.gz", False),
        ("joserfc_extra-1.8.0.tar.gz", False),
        ("joserfc-1.8.0-py3-none-any.whl.metadata", False),
    ],
)
def test_hashes_are_those_of_the_version(file: str, is_one: bool) -> None:
    assert is_of(file, "joserfc", "1.8.0") is is_one
