"""The embedded defaults: where they hold, and what goes before them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.config.config import Config
from holdfast.config.load import load, settings


def found(file: Path | None = None, url: list[str] | None = None, **environ: str) -> Config:
    return load(file, flags={"url": url}, environ=environ).config


def test_the_private_store_is_archived_and_ingested_whole() -> None:
    config = found()
    [stream] = config.archive_streams
    assert (stream.stream, stream.destination, stream.path) == (">", "folder", ".holdfast/cold")
    assert config.ingest.channels == [">"]
    assert config.ingest.wal.path == ".holdfast/wal"
    assert config.ingest.warehouse == "duckdb://.holdfast/warehouse.duckdb"
    assert config.ingest.validation[">"].payload == "any"
    origins = {each.key: str(each.origin) for each in settings(load(environ={}))}
    assert origins["ingest.channels"] == "embedded default"
    assert origins["ingest.warehouse"] == "default"


def test_a_store_or_a_file_that_is_named_has_what_it_says_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.yaml"
    file.write_text("namespace: acme\n")
    for config in (
        found(file),
        found(HOLDFAST_CONFIG=str(file)),
        found(url=["redis://h"]),
        found(HOLDFAST_URL="redis://h"),
        found(DATABASE_URL="postgresql://h/d"),
    ):
        assert config.archive_streams == []
        assert config.ingest.channels == []


def test_what_somebody_says_goes_before_them() -> None:
    config = found(HOLDFAST_INGEST__CHANNELS='["orders"]', HOLDFAST_INGEST__BATCH_ROWS="7")
    assert (config.ingest.channels, config.ingest.validation) == (["orders"], {})
    assert len(config.archive_streams) == 1
    assert found(HOLDFAST_INGEST__BATCH_ROWS="7").ingest.channels == [">"]
    assert found(HOLDFAST_ARCHIVER__STREAMS="[]").archive_streams == []
    streams = '[{"stream": "a", "destination": "folder", "path": "b"}]'
    assert [each.stream for each in found(HOLDFAST_ARCHIVAL=streams).archive_streams] == ["a"]


def test_without_spark_there_is_no_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert found() == Config()
