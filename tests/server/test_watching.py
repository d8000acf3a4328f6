"""The dashboard and the alert rules: well formed, and every metric in them comes in a real scrape."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from scene import eventful

import holdfast
from holdfast.server.catalog import GROUPS

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "holdfast.json"
_METRIC = re.compile(r"\b(?:holdfast_\w+|consumer_wal_\w+|dead_job_count)\b")
_FIELDS = {"alert", "expr", "for", "labels", "annotations"}


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [each for each in json.loads(DASHBOARD.read_text())["panels"] if each["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    """Every expression, with what Grafana fills in filled in."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            filled = target["expr"].replace("$__rate_interval", "5m")
            yield panel["title"], filled.replace("$channel", ".*").replace("$consumer", ".*")


async def test_every_metric_that_is_watched_comes_in_a_scrape(bus: holdfast.Bus, tmp_path: Path) -> None:
    async with eventful(bus, tmp_path) as system:
        found = set(await system.metrics())
    named = {(where, name) for where, text in queries() for name in _METRIC.findall(text)}
    assert len({name for _, name in named}) > 30
    assert {(where, name) for where, name in named if name not in found} == set()


def test_every_label_in_an_expression_is_one_of_the_catalog() -> None:
    known = {label for group in GROUPS for family in group.families for label in family.labels} | {"le"}
    for where, text in queries():
        grouped = {name for names in re.findall(r"by \(([^)]*)\)", text) for name in re.split(r",\s*", names)}
        matched = set(re.findall(r"(\w+)(?:=~|!=|!~|=)\"", text))
        assert grouped | matched <= known, where


def test_every_expression_is_promql() -> None:
    promql = pytest.importorskip("promql_parser")
    for where, text in queries():
        try:
            promql.parse(text)
        except ValueError as error:
            raise AssertionError(f"{where}: {text}: {error}") from None


def test_the_rules_are_as_prometheus_wants_them() -> None:
    document = yaml.safe_load(RULES.read_text())
    assert set(document) == {"groups"}
    assert len({group["name"] for group in document["groups"]}) == len(document["groups"])
    for group in document["groups"]:
        assert set(group) == {"name", "rules"}
    for rule in rules():
        assert set(rule) | {"for"} == _FIELDS, rule["alert"]
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s")), rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
    assert len({rule["alert"] for rule in rules()}) == len(rules())


def test_what_the_texts_of_a_rule_name_is_among_its_labels() -> None:
    """A label that the expression has taken away would be empty in the message."""
    for rule in rules():
        shown = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        kept = {
            name for group in re.findall(r"by \(([^)]*)\)", rule["expr"]) for name in re.split(r",\s*", group)
        }
        assert shown <= (kept or {"part", "instance"}), rule["alert"]


def test_every_alert_is_explained_to_operators() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    rows = re.findall(r"^\| `(Holdfast\w+)` \|", page, re.MULTILINE)
    assert sorted(rows) == sorted(rule["alert"] for rule in rules())


def test_the_dashboard_is_as_grafana_wants_it() -> None:
    document = json.loads(DASHBOARD.read_text())
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= set(document)
    assert "id" not in document  # Grafana gives it one
    every = document["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    for panel in every:
        place = panel["gridPos"]
        assert set(place) == {"h", "w", "x", "y"}
        assert place["x"] + place["w"] <= 24
    for panel in panels():
        assert panel["type"] in ("timeseries", "stat")
        assert panel["title"]
        assert panel["description"]
        assert panel["datasource"]["uid"] == "${datasource}"
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0


def test_no_two_panels_of_the_dashboard_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_variables_of_the_dashboard_are_the_ones_that_it_uses() -> None:
    document = json.loads(DASHBOARD.read_text())
    known = {each["name"] for each in document["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(document["panels"]))) - {"__rate_interval"}
    assert used == known
