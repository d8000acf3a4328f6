"""The reference: every command, flag, setting, metric, route, page, failpoint and event stands in the docs.

The expectation comes from the program itself, never from the script that writes the pages.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import click
import typer
import yaml
from pydantic import BaseModel

from holdfast import failpoints
from holdfast.cli.program import program
from holdfast.config.config import Config
from holdfast.server import catalog
from holdfast.server.app import bare_app
from holdfast.server.catalog import Family
from holdfast.server.pages import MODULES
from holdfast.server.routes import routes_of
from holdfast.upkeep import announcements

ROOT = Path(__file__).parents[2]


def text(page: str) -> str:
    return (ROOT / "docs" / page).read_text()


def leaves(command: click.Command, path: str = "holdfast") -> Iterator[tuple[str, click.Command]]:
    """The commands that do something, by the words that call them."""
    below = getattr(command, "commands", None)
    if not below or getattr(command, "invoke_without_command", False):
        yield path, command
    for name, each in (below or {}).items():
        yield from leaves(each, f"{path} {name}")


def settings(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, str]]:
    """Every key with the path of its section; a key that holds sections is one of theirs."""
    for name, field in model.model_fields.items():
        yield path, name
        for below in _models(field.annotation):
            yield from settings(below, f"{path}.{name}".strip("."))


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _models(inner)


def hits() -> set[str]:
    """The failpoints that the code has."""
    found = set()
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(attr="hit"), args=[ast.Constant(value=str(name))]):
                    found.add(name)
    return found


def test_every_command_and_flag_is_documented() -> None:
    seen = 0
    root = cast(click.Command, typer.main.get_command(program()))
    for path, command in leaves(root):
        if path == "holdfast":
            continue
        section = text("cli.md").partition(f"## {path}\n")[2].partition("\n## ")[0]
        assert section, path
        for flag in (flag for each in command.params for flag in (*each.opts, *each.secondary_opts)):
            if flag.startswith("--"):
                assert re.search(rf"{flag}(?![\w-])", section), f"{path}: {flag}"
                seen += 1
    assert seen > 100


def test_every_command_can_be_loaded_without_the_others() -> None:
    def names(app: typer.Typer) -> list[str]:
        return list(cast(Any, typer.main.get_command(app)).commands)

    every = names(program())
    assert {name: names(program(name)) for name in every} == {name: [name] for name in every}


def test_every_setting_is_documented() -> None:
    parts = re.split(r"^## (.*)$", text("configuration.md"), flags=re.MULTILINE)[1:]
    sections = {
        re.sub(r"\[0\]|\.(PATTERN|NAME|TEXT)", "", heading): body
        for heading, body in zip(parts[::2], parts[1::2], strict=True)
    }
    example = (ROOT / "examples" / "holdfast.yaml").read_text()
    known = list(settings(Config))
    assert len(known) > 60
    for path, name in known:
        if path == "archival":
            continue  # another spelling of archiver.streams
        whole = f"{path}.{name}".strip(".")
        row = f"\n| `{name}` |" in sections.get(path or "At the top", "")
        assert row or whole in sections, whole
        assert re.search(rf"\b{name}\b", example), whole


def test_every_metric_is_documented() -> None:
    page = text("metrics.md")
    families = [each for each in vars(catalog).values() if isinstance(each, Family)]
    assert len(families) > 30
    for each in families:
        suffix = "_total" if each.kind == "counter" else ""
        assert f"| `{each.name}{suffix}` |" in page, each.name


def test_every_route_is_documented() -> None:
    paths = yaml.safe_load(text("open-api-spec/api-spec.yaml"))["paths"]
    documented = {(path, method.upper()) for path, methods in paths.items() for method in methods}
    served = {(route.path, method) for route in routes_of(bare_app()) for method in route.methods or ()}
    assert len(served) > 20
    assert served == documented | {("/openapi.json", "GET")}, served ^ documented
    assert "`/openapi.json`" in text("rest.md")


def test_every_page_is_documented() -> None:
    page = text("control-room.md")
    paths = {route.path for module in MODULES for route in module.router.routes}
    assert len(paths) > 15
    for path in sorted(paths):
        assert f"`{path}`" in page, path


def test_every_page_that_is_documented_exists() -> None:
    paths = {route.path for module in MODULES for route in module.router.routes}
    tables = [line for line in text("control-room.md").splitlines() if line.startswith("| ")]
    named = {path for line in tables for path in re.findall(r"`(/[^`]*)`", line)}
    assert named <= paths, named - paths


def test_every_failpoint_is_documented_and_hit_somewhere() -> None:
    page = text("failpoints.md")
    assert hits() == set(failpoints.KNOWN)
    for name in failpoints.KNOWN:
        assert f"| `{name}` |" in page, name


def test_every_system_event_is_documented() -> None:
    page = text("system-events.md")
    kinds = [
        each
        for each in vars(announcements).values()
        if isinstance(each, type)
        and issubclass(each, announcements.Announcement)
        and each is not announcements.Announcement
    ]
    assert len(kinds) > 3
    for kind in kinds:
        section = page.partition(f"## gbe.events.system.{kind.topic}\n")[2].partition("\n## ")[0]
        for field in kind.model_fields:
            assert f"| `{field}` |" in section, f"{kind.topic}: {field}"


def test_every_alert_is_documented() -> None:
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())
    alerts = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    assert len(alerts) > 10
    for alert in alerts:
        assert f"| `{alert}` |" in text("operations.md"), alert
