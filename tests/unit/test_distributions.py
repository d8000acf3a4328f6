"""Two distributions from one source: `holdfast`, and `holdfast-chaos` with the crash rig.

Nothing is built: the wheels have what their configurations name.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
RIG = ROOT / "packaging" / "holdfast-chaos"


def configuration(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def wheel(folder: Path) -> dict[str, Any]:
    target: dict[str, Any] = configuration(folder)["tool"]["hatch"]["build"]["targets"]["wheel"]
    return target


def test_the_wheel_of_holdfast_has_no_crash_rig() -> None:
    assert wheel(ROOT) == {"packages": ["src/holdfast", "src/pyspark_holdfast"]}
    assert not [path for path in (ROOT / "src" / "holdfast").rglob("chaos") if path.is_dir()]


def test_the_wheel_of_the_rig_has_the_rig_and_nothing_else() -> None:
    included = wheel(RIG)["force-include"]
    assert {(RIG / source).resolve(): target for source, target in included.items()} == {
        ROOT / "src" / "holdfast_chaos": "holdfast_chaos",
        ROOT / "LICENSE": "holdfast_chaos/LICENSE",
    }
    assert wheel(RIG).keys() == {"bypass-selection", "force-include"}, "hatchling selects nothing by itself"


def test_every_package_is_in_one_of_them() -> None:
    packages = {path.parent.name for path in (ROOT / "src").glob("*/__init__.py")}
    assert packages == {"holdfast", "pyspark_holdfast", "holdfast_chaos"}


def test_the_rig_needs_holdfast_of_its_own_version() -> None:
    """It uses private modules."""
    holdfast, rig = (configuration(folder)["project"] for folder in (ROOT, RIG))
    assert (rig["name"], rig["version"]) == ("holdfast-chaos", holdfast["version"])
    assert rig["requires-python"] == holdfast["requires-python"]
    extras = rig["optional-dependencies"].values()
    needed = [Requirement(each) for each in [*rig["dependencies"], *(one for some in extras for one in some)]]
    ours = [each for each in needed if each.name == "holdfast"]
    assert {str(each.specifier) for each in ours} == {f"=={holdfast['version']}"}
    assert {extra for each in ours for extra in each.extras} <= holdfast["optional-dependencies"].keys()
    assert Requirement(rig["dependencies"][0]).extras == {"postgres", "redis", "nats"}
