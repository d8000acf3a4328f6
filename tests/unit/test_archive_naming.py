"""Names in an archive, policies, and when a channel is due: pure decisions."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import HoldfastError, InvalidInput, InvalidName, ObjectConflict, Unavailable
from holdfast.model.log import Cut, Lag
from holdfast.model.position import format_position
from holdfast.pipeline import driver
from holdfast.pipeline.archive.manifests import Manifest, decode_manifest, manifest_name
from holdfast.pipeline.archive.objects import (
    ObjectRange,
    Written,
    day_folder,
    domain,
    object_name,
    parse_object,
)
from holdfast.pipeline.archive.policy import ArchivePolicy, refuse_conflicts
from holdfast.pipeline.archive.source import end_of_objects
from holdfast.pipeline.offsets import ChannelPartition
from holdfast.pipeline.session import explain_failure
from holdfast.pipeline.stores import check_key
from holdfast.upkeep.announcements import lag_alert

A, B, C = (format_position(1, 7, number) for number in (1, 2, 3))


@pytest.mark.parametrize(
    ("channel", "expected"),
    [
        ("gbe.events.audit.change", "audit"),
        ("other.events.auth.login.failed", "auth"),
        ("gbe.events.audit", "audit"),
        ("gbe.tasks.mail.queue", "gbe.tasks.mail.queue"),
        ("orders", "orders"),
    ],
)
def test_the_domain_is_the_third_token_of_events(channel: str, expected: str) -> None:
    assert domain(channel) == expected


def test_an_object_is_named_as_in_the_seed() -> None:
    day = (datetime(2026, 2, 14, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).days
    name = object_name(ObjectRange("gbe.events.audit.change", 0, A, B), day)
    assert name == f"archive/audit/2026/02/14/gbe.events.audit.change-p000-{A}_{B}.jsonl.gz"


def test_days_sort_as_text_from_the_first_year_to_the_last() -> None:
    days = [date.min, date(999, 12, 31), date(1969, 12, 31), date(2026, 2, 14), date.max]
    folders = [day_folder(day) for day in days]
    assert folders[0] == "0001/01/01"
    assert folders == sorted(folders)
    for day, folder in zip(days, folders, strict=True):
        name = object_name(ObjectRange("orders", 0, A, B), (day - date(1970, 1, 1)).days)
        assert name.startswith(f"archive/orders/{folder}/orders-p000-")


NAMES = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}(\.[a-z0-9_-]{1,20}){0,3}", fullmatch=True)
POSITIONS = st.builds(
    format_position, st.integers(1, 99), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)
)


@given(
    channel=NAMES,
    partition=st.integers(0, 2000),
    first=POSITIONS,
    last=POSITIONS,
    day=st.integers(-9999, 99999),
)
def test_a_name_tells_what_is_inside(channel: str, partition: int, first: str, last: str, day: int) -> None:
    batch = ObjectRange(channel, partition, first, last)
    assert parse_object(check_key(object_name(batch, day))) == batch


@pytest.mark.parametrize(
    "name", ["archive/x/2026/01/01/notes.txt", "archive/x/batch_001.jsonl.gz", "manifests/a"]
)
def test_a_name_of_somebody_else_tells_nothing(name: str) -> None:
    assert parse_object(name) is None


def test_manifests_of_a_channel_sort_as_its_log_does() -> None:
    names = [manifest_name("orders", 0, after) for after in (None, A, B, format_position(2, 0, 0))]
    assert names == sorted(names)


# manifests


def _manifest(after: str | None = None) -> Manifest:
    objects = (
        Written("archive/b", "orders", 1, B, C, 2, 20, "bb"),
        Written("archive/a", "orders", 1, A, A, 1, 10, "aa"),
    )
    return Manifest(ChannelPartition(1, "orders"), after, objects)


def test_a_manifest_is_read_back_and_always_the_same() -> None:
    made = _manifest()
    assert (made.first, made.last, made.rows) == (A, C, 3)
    shuffled = Manifest(made.spot, made.after, made.objects[::-1])
    assert made.encode() == shuffled.encode()
    read = decode_manifest(made.encode(), made.name)
    assert read.encode() == made.encode()
    assert set(read.objects) == set(made.objects)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: data.replace(b'"rows":3', b'"rows":4')]
)
def test_a_damaged_manifest_is_said_to_be_damaged(damage) -> None:  # type: ignore[no-untyped-def]
    made = _manifest()
    with pytest.raises(ObjectConflict, match="damaged"):
        decode_manifest(damage(made.encode()), made.name)


def test_a_manifest_under_another_name_is_refused() -> None:
    with pytest.raises(ObjectConflict):
        decode_manifest(_manifest(A).encode(), _manifest(B).name)


# policies


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"batch_size": 2_000_000}, {"max_rows": 10}])
def test_portions_that_cannot_work_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidInput):
        ArchivePolicy("orders", "/archive", **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidName):
        ArchivePolicy("or ders", "/archive")


def test_one_cursor_cannot_serve_two_destinations() -> None:
    wide, narrow = ArchivePolicy("gbe.events.>", "/a"), ArchivePolicy("gbe.events.audit.*", "/b")
    refuse_conflicts([wide, narrow], ["gbe.events.auth.login"])
    with pytest.raises(InvalidInput, match=r"gbe\.events\.audit\.change"):
        refuse_conflicts([wide, narrow], ["gbe.events.auth.login", "gbe.events.audit.change"])
    other = ArchivePolicy("gbe.events.audit.*", "/b", consumer="second")
    refuse_conflicts([wide, other], ["gbe.events.audit.change"])


# pace


@pytest.mark.parametrize(
    ("rows", "aged", "end"),
    [
        ([], False, None),
        ([9], False, None),
        ([9], True, 0),
        ([10], False, 0),
        ([10, 10, 9], False, 1),
        ([10, 10, 9], True, 2),
        ([10, 12], False, 1),
    ],
)
def test_full_objects_go_at_once_and_the_rest_when_it_is_old(
    rows: list[int], aged: bool, end: int | None
) -> None:
    cuts = [Cut(str(place), count, 0) for place, count in enumerate(rows)]
    assert end_of_objects(cuts, 10, aged=aged) == (None if end is None else str(end))


# lag

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("events", "age", "alarming"),
    [(0, None, False), (10_000, 60, False), (10_001, 60, True), (1, 3600, False), (1, 3601, True)],
)
def test_lag_is_judged_by_count_and_by_age(events: int, age: int | None, alarming: bool) -> None:
    oldest = None if age is None else NOON - timedelta(seconds=age)
    policy = ArchivePolicy("orders", "/a")
    found = lag_alert("orders", policy.consumer, Lag(events, oldest), NOON, policy.lag_events, policy.lag_age)
    assert (found is not None) == alarming
    if found is not None:
        assert (found.count, found.age_seconds, found.kind) == (events, age, "lag")


# checkpoints


@pytest.mark.parametrize(
    ("planned", "done", "cursor", "agree"),
    [
        (B, A, A, True),  # the batch after the cursor is under way
        (B, A, B, True),  # it is archived, and Spark does not know yet
        (B, B, B, True),
        (B, A, C, False),  # another driver was here
        (C, B, A, False),  # it would skip B
        (B, "", None, True),
        ("", "", A, False),
    ],
)
def test_a_cursor_is_between_what_is_done_and_what_is_planned(
    planned: str, done: str, cursor: str | None, agree: bool
) -> None:
    spot = ChannelPartition(0, "orders")
    assert driver.checkpoint_agrees({spot: planned}, {spot: done}, {spot: cursor}) == agree


def _checkpoint(folder: Path, ends: list[str], commits: int) -> Path:
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    for number, end in enumerate(ends):
        text = b"\n".join([b"v1", b"{}", orjson.dumps({"0": {"orders": end}})])
        (folder / "offsets" / str(number)).write_bytes(text)
    for number in range(commits):
        (folder / "commits" / str(number)).write_bytes(b"v1\n{}")
    return folder


def test_a_checkpoint_at_odds_with_the_cursors_is_discarded(tmp_path: Path) -> None:
    cursors: dict[ChannelPartition, str | None] = {ChannelPartition(0, "orders"): B}
    folder = _checkpoint(tmp_path / "c", [A, B, C], 2)
    assert not driver.discard_stale_checkpoint(folder, cursors)
    assert driver.discard_stale_checkpoint(folder, {ChannelPartition(0, "orders"): A})
    assert not folder.exists()
    assert not driver.discard_stale_checkpoint(folder, cursors), "where there is none, there is nothing to do"
    damaged = _checkpoint(folder, [A, B], 1)
    (damaged / "offsets" / "1").write_bytes(b"v1\n{}")
    assert driver.discard_stale_checkpoint(damaged, cursors)


# failures


def test_a_failure_is_said_in_our_own_words() -> None:
    inner = Unavailable("s3 did not answer")
    assert explain_failure(inner) is inner
    wrapped = RuntimeError(
        "Job aborted due to stage failure:\nTraceback (most recent call last):\n  File …\n"
        "holdfast.model.errors.Unavailable: s3 did not answer\n\tat org.apache.spark.api.python…"
    )
    found = explain_failure(wrapped)
    assert (type(found), str(found)) == (Unavailable, "s3 did not answer")
    lost = explain_failure(RuntimeError("x\nholdfast.model.errors.LockLost: the lock\n"))
    assert (type(lost), str(lost)) == (HoldfastError, "LockLost: the lock")
    assert "ValueError: no" in str(explain_failure(RuntimeError("x\nTraceback\nValueError: no\n at y")))
    crashed = "An error occurred.\n: org.apache.spark.SparkException: Python worker exited\n at y"
    assert "SparkException: Python worker exited" in str(explain_failure(RuntimeError(crashed)))
