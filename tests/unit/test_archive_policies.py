"""From a configuration in the seed's shape to the archiver's archive_policies."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import wiring
from holdfast.cli.pipeline import archive_policies, archive_policy, destinations
from holdfast.model.errors import InvalidInput

SEED = """
archiver:
  streams:
    - stream: "gbe.events.audit.*"
      destination: "s3"
      bucket: "gbe-archive"
      batch_size: 1000
      batch_timeout: 60s
      format: "jsonl"
      compression: "gzip"
      partition: "daily"
    - {stream: orders, destination: folder, path: /cold, batch_size: 50}
    - {stream: payments, destination: postgres}
"""


def config(tmp_path: Path, text: str, url: str | None = "postgresql://host/db"):  # type: ignore[no-untyped-def]
    file = tmp_path / "holdfast.yaml"
    file.write_text(text)
    return wiring.configured(url, file)


def test_the_seeds_configuration_is_understood(tmp_path: Path) -> None:
    audit, orders, payments = archive_policies(config(tmp_path, SEED), "archiver")
    assert (audit.stream, audit.destination) == ("gbe.events.audit.*", "s3://gbe-archive")
    assert (audit.batch_size, audit.batch_timeout) == (1000, timedelta(seconds=60))
    assert (orders.destination, orders.batch_size) == ("/cold", 50)
    assert payments.destination == "postgresql://host/db?table=archive"
    assert (audit.lag_events, audit.lag_age) == (10_000, timedelta(hours=1))
    assert audit.lock_name == "gbe:lock:archiver:archiver"
    assert len(destinations(config(tmp_path, SEED))) == 3


def test_postgres_without_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="table=name"):
        archive_policies(config(tmp_path, SEED, "redis://host/0"), "archiver")


def test_nothing_to_archive_is_said_so(tmp_path: Path) -> None:
    empty = config(tmp_path, "namespace: gbe\n")
    with pytest.raises(InvalidInput, match="--stream"):
        archive_policies(empty, "archiver")
    with pytest.raises(InvalidInput, match="--destination"):
        destinations(empty)


def test_flags_go_together(tmp_path: Path) -> None:
    empty = config(tmp_path, "namespace: gbe\n")
    with pytest.raises(InvalidInput, match="go together"):
        archive_policy(empty, "orders", None, 1000, "60s", "archiver")
    made = archive_policy(empty, "orders", "/cold", 5, "2m", "second")
    assert (made.batch_size, made.batch_timeout, made.consumer) == (5, timedelta(minutes=2), "second")
