"""From the configuration to the plan of an ingest."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.cli.pipeline import plan_of
from holdfast.config.load import check, load
from holdfast.model.errors import InvalidInput
from holdfast.pipeline.warehouse import Column

EXAMPLE = Path(__file__).parents[2] / "examples" / "holdfast.yaml"


def written(folder: Path, text: str) -> Path:
    (folder / "h.yaml").write_text(text)
    return folder / "h.yaml"


def test_the_example_maps_playback_events() -> None:
    plan = plan_of(check(EXAMPLE).config)
    table = plan.tables.of("gbe.events.playback")
    assert table.name == "playback_events"
    assert table.columns[0] == Column("session_key", "$.session_key")
    assert Column("user_name", "$.user.name") in table.columns
    assert Column("bandwidth", "$.bandwidth", "decimal(18,3)") in table.columns
    assert plan.rules.problem("gbe.events.playback", b"{}") == "required fields are missing: session_key"
    assert (plan.warehouse, plan.wal.path) == ("duckdb:///data/warehouse.duckdb", "/data/wal-consumer")


def test_the_environment_goes_over_the_file_and_a_flag_over_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONSUMER_WAL_PATH", "/from/environment")
    monkeypatch.setenv("CONSUMER_WAL_ENTRY_TTL", "1h")
    monkeypatch.setenv("HOLDFAST_INGEST__WAL__PATH", "/from/the/other/name")
    assert plan_of(load(EXAMPLE).config).wal.path == "/from/environment"
    flagged = plan_of(load(EXAMPLE, flags={"ingest.wal.path": "/from/flag"}).config).wal
    assert (flagged.path, flagged.entry_ttl) == ("/from/flag", timedelta(hours=1))


def test_a_schema_is_read_and_checked(tmp_path: Path) -> None:
    text = "ingest:\n  channels: [a]\n  validation:\n    a: {schema_file: %s}\n"
    (tmp_path / "s.json").write_text('{"required": ["x"]}')
    plan = plan_of(check(written(tmp_path, text % (tmp_path / "s.json"))).config)
    assert plan.rules.problem("a", b"{}") == "$: 'x' is a required property"
    for content in ("{", '{"type": 7}'):
        (tmp_path / "s.json").write_text(content)
        with pytest.raises(InvalidInput, match="no JSON Schema"):
            plan_of(check(written(tmp_path, text % (tmp_path / "s.json"))).config)
    with pytest.raises(InvalidInput, match="cannot be read"):
        plan_of(check(written(tmp_path, text % (tmp_path / "gone.json"))).config)


def test_without_channels_there_is_nothing_to_do(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="nothing to ingest"):
        plan_of(check(written(tmp_path, "namespace: x\n")).config)
