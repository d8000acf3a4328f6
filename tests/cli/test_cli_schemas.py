"""Schemas from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shell import Run

from holdfast.bus.sync import SyncBus

SHOP = """
from pydantic import BaseModel

class Order(BaseModel):
    total: float
    note: str | None = None
"""


def test_a_schema_is_shown_set_and_removed(
    run: Run, hf: SyncBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "typed_shop.py").write_text(SHOP)
    missing = run("channels", "schema", "orders")
    assert (missing.code, "no schema was declared" in missing.err) == (1, True)
    made = run("channels", "schema", "orders", "--set", "typed_shop:Order")
    assert [line.split() for line in made.out.splitlines()] == [
        ["FIELD", "TYPE", "REQUIRED"],
        ["total", "number", "yes"],
        ["note", "text", "or", "null", "no"],
    ]
    stored = hf.schema("orders")
    assert stored is not None
    assert run("channels", "schema", "orders", "--json").json["schema"] == stored.schema
    (tmp_path / "order.json").write_text(json.dumps({"properties": {"total": {"type": "integer"}}}))
    refused = run("channels", "schema", "orders", "--set", "order.json")
    assert refused.code == 1
    assert "total: was number, is integer now" in refused.err
    assert (
        run("channels", "schema", "orders", "--set", "order.json", "--force", "--json").json["version"] == 2
    )
    assert "no schema any more" in run("channels", "schema", "orders", "--remove").err
    assert hf.schema("orders") is None


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("missing.json", "there is no file 'missing.json'"),
        ("nowhere:Order", "no module 'nowhere'"),
        ("typed_shop_two:Missing", "no such name"),
        ("typed_shop_two:number", "no type that pydantic can validate"),
        ("broken.json", "not JSON"),
        ("huge.json", "the limit is"),
    ],
)
def test_what_names_no_schema_is_bad_input(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "typed_shop_two.py").write_text("number = 5\n")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "huge.json").write_bytes(b" " * 10_000_000)
    refused = run("channels", "schema", "orders", "--set", source)
    assert refused.code == 2
    assert words in refused.err
