"""The lock: what `make setup` installs is complete for every Python and platform that we support.

Nothing is installed or downloaded: the metadata of what is installed here says what it needs elsewhere.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib import metadata
from itertools import product
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MATRIX = run_path(str(ROOT / "scripts" / "wheels.py"))
EXTRAS = {
    "dev": ["postgres", "redis", "nats", "spark", "server", "otel", "dev"],
    "bench": ["postgres", "redis", "nats", "bench"],
}
SYSTEMS = {"linux": "Linux", "darwin": "Darwin"}

Lock = dict[str, tuple[Requirement, int]]


def lock(name: str) -> Lock:
    """The pinned requirements of a file by name, each with the number of its hashes."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    found: Lock = {}
    for entry in re.findall(r"^[A-Za-z0-9].*(?:\n    --hash.*)*", text, re.MULTILINE):
        requirement = Requirement(entry.partition("\\")[0])
        assert requirement.name not in found, "one version for all, or pip has to choose"
        found[canonicalize_name(requirement.name)] = (
            requirement,
            len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", entry)),
        )
    return found


def environment(python: str, system: str, machine: str) -> dict[str, str]:
    """What markers are asked about there."""
    return {
        **{name: str(value) for name, value in default_environment().items()},
        "implementation_version": python,
        "platform_machine": machine,
        "platform_system": SYSTEMS[system],
        "python_full_version": python,
        "python_version": python.rpartition(".")[0],
        "sys_platform": system,
    }


def applies(requirement: Requirement, where: dict[str, str], extras: set[str]) -> bool:
    """Whether it is needed there, by somebody who is installed with these extras."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({**where, "extra": extra}) for extra in {"", *extras})


def faults(locked: Lock, wanted: list[Requirement], where: dict[str, str]) -> list[str]:
    """What pip would refuse there, for these requirements and all that they bring."""
    found: list[str] = []
    queue, seen = [*wanted], set[tuple[str, frozenset[str]]]()
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        pin, hashes = locked.get(name, (None, 0))
        if pin is None or not applies(pin, where, set()):
            found.append(f"{requirement} is not locked")
            continue
        [version] = [clause.version for clause in pin.specifier if clause.operator == "=="]
        if not requirement.specifier.contains(version, prereleases=True):
            found.append(f"{requirement} is locked at {version}")
        if not hashes:
            found.append(f"{name} has no hashes")
        if (name, frozenset(requirement.extras)) in seen:
            continue
        seen.add((name, frozenset(requirement.extras)))
        python, needs = described(name)
        if where["python_full_version"] not in python:
            found.append(f"{name} {version} is not for this Python")
        queue += [need for need in needs if applies(need, where, set(requirement.extras))]
    return found


@cache
def described(name: str) -> tuple[SpecifierSet, list[Requirement]]:
    """The Pythons that it is for and what it needs. Nothing is known of what is not installed here, being for
    other Pythons or platforms, or for the benchmarks."""
    try:
        about = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return SpecifierSet(), []
    return SpecifierSet(about.metadata.get("Requires-Python") or ""), [
        *map(Requirement, about.requires or [])
    ]


def wanted(name: str, where: dict[str, str]) -> list[Requirement]:
    """What our own extras ask for there."""
    optional = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(line for extra in EXTRAS[name] for line in optional[extra])]
    return [need for need in map(Requirement, lines) if applies(need, where, set())]


@pytest.mark.parametrize("name", EXTRAS)
@pytest.mark.parametrize(("python", "target"), [*product(MATRIX["PYTHONS"], MATRIX["PLATFORMS"].values())])
def test_the_lock_is_complete(name: str, python: str, target: tuple[str, str]) -> None:
    where = environment(python, *target)
    assert faults(lock(name), wanted(name, where), where) == []


@pytest.mark.parametrize("name", ["redis", "pytest", "numpy", "hiredis", "async-timeout"])
def test_a_lock_that_lacks_something_is_found(name: str) -> None:
    """Directly, through another one, through an extra, for an old Python only."""
    locked, where = lock("dev"), environment("3.11.2", "linux", "x86_64")
    del locked[name]
    assert faults(locked, wanted("dev", where), where)


@pytest.mark.parametrize("change", ["redis==5.1", "redis==8.1.0; python_version > '3.11'"])
def test_a_lock_with_a_wrong_version_or_marker_is_found(change: str) -> None:
    locked, where = lock("dev"), environment("3.11.2", "linux", "x86_64")
    locked["redis"] = Requirement(change), 1
    assert faults(locked, wanted("dev", where), where)


def test_the_two_locks_agree() -> None:
    """They go into the same environment."""
    dev, bench = lock("dev"), lock("bench")
    assert [name for name in dev.keys() & bench.keys() if dev[name] != bench[name]] == []


@pytest.mark.parametrize("name", EXTRAS)
def test_the_lock_names_no_place(name: str) -> None:
    """Packages come from wherever the reader's own pip is told to look."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert re.findall(r"://|--(?:extra-)?index|--find-links|--trusted-host| @ ", text) == []


def test_what_is_said_of_python_is_what_is_locked() -> None:
    """`requires-python`, the check of the Makefile, the README and the matrix say the same."""
    allowed = SpecifierSet(PROJECT["requires-python"])
    machine: dict[str, Any] = run_path(str(ROOT / "scripts" / "machine.py"))
    oldest, newest = machine["OLDEST"], machine["NEWEST"]
    assert all(python in allowed for python in MATRIX["PYTHONS"])
    for minor in range(30):
        assert (f"3.{minor}.0" in allowed) == (oldest <= (3, minor) <= newest)
        assert (f"3.{minor}.0" in MATRIX["PYTHONS"]) == (oldest <= (3, minor) <= newest)
    said = f"Python 3.{oldest[1]} to 3.{newest[1]}"
    assert all(
        said in (ROOT / page).read_text() for page in ("README.md", "Makefile", "docs/installation.md")
    )
    assert {tuple(target) for target in MATRIX["PLATFORMS"].values()} == {
        (system, machine) for system, machines in machine["MACHINES"].items() for machine in machines
    }
