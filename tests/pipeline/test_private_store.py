"""Without a URL: the private store of this folder, and never a new and empty one."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.model.errors import InvalidInput
from holdfast.pipeline.options import Options
from holdfast.pipeline.source import BatchReader


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BatchReader:
    monkeypatch.chdir(tmp_path)
    for name in ("HOLDFAST_URL", "DATABASE_URL", "HOLDFAST_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return BatchReader(Options.of({"channel": "orders"}))


def test_where_there_is_one_it_is_joined(reader: BatchReader) -> None:
    with holdfast.connect_sync() as hf:
        hf.publish("orders", {}, id="o-1")
    [task] = reader.partitions()
    [batch] = reader.read(task)
    assert batch.column("id").to_pylist() == ["o-1"]


def test_where_there_is_none_nothing_is_started(reader: BatchReader, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no store is named: set the option url, or HOLDFAST_URL"):
        reader.partitions()
    assert list(tmp_path.iterdir()) == []
