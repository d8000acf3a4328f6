"""Failed events: list, show, retry, resolve, abandon; in the WAL first, then in the warehouse."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from walkit import Place, position, result, source_rows

from holdfast import failpoints
from holdfast.failpoints import FailpointError
from holdfast.model.errors import Damaged, InvalidInput, NotFound
from holdfast.pipeline.failed.service import FailedEvents
from holdfast.pipeline.ingest.validation import ValidationRule, ValidationRules
from holdfast.pipeline.loader.decisions import Result
from holdfast.pipeline.stores import ObjectStore
from holdfast.pipeline.wal import Wal, WalBatch, segments
from holdfast.pipeline.wal.batch import Segment
from holdfast.pipeline.wal.records import Confirmation, Failure
from holdfast.pipeline.warehouse import Column, FailedEvent, Table, Tables, open_warehouse
from holdfast.pipeline.warehouse.duck import QUERIES

COLUMNS = (Column("session_key", "$.session"), Column("total", "$.total", "integer"))
TABLES = Tables({"orders": Table("events", COLUMNS)})


@pytest.fixture(params=["duckdb", "delta"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """One good event, one that does not parse, one that no column takes, one under an id that is taken."""
    urls = {"duckdb": f"duckdb://{tmp_path}/warehouse.duckdb", "delta": f"delta://{tmp_path}/tables"}
    place = Place(tmp_path, tables=TABLES, warehouse=urls[request.param])
    data = [b'{"total":1}', b"\xff", b'{"total":"x","session":"s-1"}', b'{"total":2}']
    rows = source_rows(["good", "bytes", "typed", "good"], data=data, headers=[("correlation_key", "c-1")])
    assert result(place.loader().load([place.commit(rows)])) == Result.LOADED
    return place


def service(place: Place, rules: ValidationRules | None = None) -> FailedEvents:
    return FailedEvents(place.wal, place.warehouse, place.tables, (rules or ValidationRules()).problem)


def named(place: Place, event_id: str) -> str:
    [found] = [event.id for event in service(place).find() if event.event_id == event_id]
    return found


def test_each_has_its_reason_layer_and_keys(place: Place) -> None:
    found = {event.event_id: event for event in service(place).find()}
    assert {name: (event.failure_reason, event.failure_layer) for name, event in found.items()} == {
        "bytes": ("invalid", "validation"),
        "typed": ("rejected", place.warehouse.layer),
        "good": ("conflict", place.warehouse.layer),
    }
    typed = found["typed"]
    assert (typed.session_key, typed.correlation_key, typed.position) == ("s-1", "c-1", position(3))
    assert (typed.status, typed.retry_count, typed.max_retries_exceeded) == ("pending", 0, False)
    assert found["bytes"].event_payload == '{"data_base64":"/w=="}'
    assert service(place).show(typed.id) == typed


def test_lists_can_be_narrowed(place: Place) -> None:
    failed = service(place)
    assert len(failed.find(limit=2)) == 2
    assert failed.find(channel="other") == []
    failed.abandon(named(place, "bytes"), "ann", "noise")
    assert [event.event_id for event in failed.find(status="abandoned")] == ["bytes"]


def everywhere(channel: str) -> bool:
    return True


def test_pages_go_through_the_list_and_read_no_more_than_they_show(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up(place, "lost", "kept")
    failed = service(place)
    whole = failed.find()
    assert len(whole) == 5
    read: list[str] = []
    read_failure = Wal.read_failure

    def counted(wal: Wal, name: str, each: str) -> Failure | Damaged:
        read.append(each)
        return read_failure(wal, name, each)

    monkeypatch.setattr(Wal, "read_failure", counted)
    for limit, size, most in ((1, 1 << 20, 1), (2, 1 << 20, 2), (100, 1, 1), (100, 1 << 20, 5)):
        paged: list[FailedEvent] = []
        after = None
        while True:
            read.clear()
            found, after = failed.page(everywhere, None, after, limit, size)
            assert 1 <= len(found) <= most
            assert len(read) <= most + 1
            paged += found
            if after is None:
                break
        assert paged == whole
    assert failed.page(lambda channel: channel == "other", None, None, 100, 1 << 20) == ([], None)
    found, after = failed.page(everywhere, "resolved", None, 100, 1)
    assert (found, after is None) == ([], False), "what was looked at counts, also where it is not meant"
    for wrong in ("x", "a/b", "a/b/c/d"):
        with pytest.raises(InvalidInput, match="no place"):
            failed.page(everywhere, None, wrong, 100, 1)


def pages(failed: FailedEvents, limit: int) -> list[FailedEvent]:
    paged: list[FailedEvent] = []
    after = None
    while True:
        found, after = failed.page(everywhere, None, after, limit, 1 << 20)
        paged += found
        if after is None:
            return paged


def test_a_page_of_a_large_batch_that_failed_as_a_whole_reads_one_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, each = Place(tmp_path), 20_000
    ids = [f"e{number:06}" for number in range(5 * each)]
    rows = [
        source_rows(ids[first : first + each], first=1 + first, data=[b'{"pad":"%s"}' % (b"x" * 500)] * each)
        for first in range(0, len(ids), each)
    ]
    expired(place, place.commit(*rows))
    read: list[str] = []
    whole = segments.read

    def counted(store: ObjectStore, segment: Segment) -> pa.Table:
        read.append(segment.name)
        return whole(store, segment)

    monkeypatch.setattr(segments, "read", counted)
    failed = service(place)
    tracemalloc.start()
    try:
        found, _ = failed.page(everywhere, None, None, 100, 1 << 20)
        _, held = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [event.event_id for event in found] == ids[:100]
    assert len(read) == 1
    assert held < 8 << 20, "what is not shown is not made into events"
    read.clear()
    found, _ = failed.page(everywhere, None, f"{found[0].batch}/orders@0@{position(4 * each)}", 100, 1 << 20)
    assert [event.event_id for event in found] == ids[4 * each : 4 * each + 100]
    assert len(read) == 1


@pytest.mark.parametrize("how", ["whole", "cut", "changed", "gone"])
def test_segments_of_a_batch_that_failed_as_a_whole_are_listed_for_themselves(
    tmp_path: Path, how: str
) -> None:
    place = Place(tmp_path)
    rows = [
        source_rows(["a1", "a2"], channel="a"),
        source_rows(["a3", "a4", "a5"], first=3, channel="a"),
        source_rows(["a6"], first=6, channel="a"),
        source_rows(["b1"], channel="b"),
    ]
    batch = place.commit(*rows)
    expired(place, batch)
    failed = service(place)
    before = failed.find()
    assert [event.event_id for event in before] == ["a1", "a2", "a3", "a4", "a5", "a6", "b1"]
    wanted = ["a1", "a2", "a3", "a4", "a5", "a6", "b1"]
    file = place.path_of(batch.segments[1].name)
    data = file.read_bytes()
    match how:
        case "cut":
            file.write_bytes(data[:-9])
            wanted = ["a1", "a2", "a6", "(damaged)", "b1", "(damaged)"]  # nobody knows whose rows it had
        case "changed":
            file.write_bytes(data.replace(b"PAR1", b"PAR2", 1))
            wanted = ["a1", "a2", "a6", "(damaged)", "b1"]
        case "gone":
            file.unlink()
            wanted = ["a1", "a2", "a6", "(damaged)", "b1", "(damaged)"]
    found = failed.find()
    assert [event.event_id for event in found] == wanted
    assert [event for event in found if event.event_id != "(damaged)"] == [
        event for event in before if event.event_id in wanted
    ]
    for limit in range(1, 8):
        assert pages(failed, limit) == found


def expired(place: Place, batch: WalBatch) -> None:
    place.clock.advance(days=8)
    assert result(place.loader().load([batch])) == Result.EXPIRED


def test_what_is_pending_can_come_first(place: Place) -> None:
    failed = service(place)
    failed.resolve(named(place, "bytes"), "ann", "noise")
    failed.abandon(named(place, "typed"), "ann", "noise")
    found = failed.find(pending_first=True)
    assert [event.status for event in found] == ["pending", "abandoned", "resolved"]
    assert failed.find(pending_first=True, limit=1) == found[:1]


def test_a_permanent_failure_is_logged_with_its_context(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    batch = place.commit(source_rows(["again"], first=5, data=[b'{"total":"secret"}']))
    with caplog.at_level("ERROR"):
        assert result(place.loader().load([batch])) == Result.LOADED
    [told] = [record.getMessage() for record in caplog.records if "failed for good" in record.getMessage()]
    [event] = [event for event in service(place).find() if event.event_id == "again"]
    for value in (event.id, "again", "orders", "rejected", event.failure_layer, event.transaction_id):
        assert value in told
    assert str(event.last_error) in told
    assert position(5) in told
    assert batch.name in told


def test_a_batch_that_is_given_up_is_logged_with_its_context(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    batch = place.commit(source_rows(["late"], first=5))
    place.clock.advance(days=365)
    with caplog.at_level("ERROR"):
        assert result(place.loader().load([batch])) == Result.EXPIRED
    [told] = [record.getMessage() for record in caplog.records if "failed for good" in record.getMessage()]
    for value in (batch.name, "orders", "expired", "consumer_wal", position(5), "1 events"):
        assert value in told


DEFAULTS = """
    INSERT INTO failed_events
        (id, transaction_id, event_id, source, event_payload, failure_reason, failure_layer)
    VALUES (uuid(), 't', 'e', 's', '{}', 'r', 'consumer_wal')
    RETURNING status, retry_count, max_retries_exceeded, batch,
              failed_at = created_at AND created_at = updated_at
"""


def test_duckdb_has_the_indexes_and_the_defaults_also_in_an_older_file(tmp_path: Path) -> None:
    file = tmp_path / "warehouse.duckdb"
    with duckdb.connect(str(file)) as connection:  # as it was made before it had any
        connection.execute(re.sub(r" DEFAULT [^,\n]+", "", QUERIES["schema"]))
        connection.execute(
            "INSERT INTO failed_events SELECT uuid(), 't', 'old', NULL, NULL, 's', '{}', now(), "
            "'r', 'l', NULL, 0, NULL, false, 'pending', NULL, NULL, NULL, now(), now(), 'c', 0, 'p', 'b'"
        )
    for _ in range(2):  # a second time changes nothing
        warehouse = open_warehouse(f"duckdb://{file}", TABLES)
        assert [event.event_id for event in warehouse.failed()] == ["old"]
        warehouse.close()
    with duckdb.connect(str(file)) as connection:
        indexes = connection.execute("SELECT index_name FROM duckdb_indexes() ORDER BY 1").fetchall()
        assert [name for (name,) in indexes] == [
            f"idx_failed_events_{column}" for column in ("failed_at", "source", "status", "transaction_id")
        ]
        assert connection.execute(DEFAULTS).fetchall() == [("pending", 0, False, "", True)]


def test_the_warehouse_shows_the_same_as_the_wal(place: Place) -> None:
    failed = service(place)
    assert failed.mirror() == 3
    failed.resolve(named(place, "good"), "ann", "a twin from a test")
    assert failed.mirror() == 3
    assert failed.mirror() == 0
    by_id = sorted(place.warehouse.failed(), key=lambda event: event.id)
    assert by_id == sorted(failed.find(), key=lambda event: event.id)
    [resolved] = place.warehouse.failed("resolved")
    assert (resolved.resolved_by, resolved.resolution_notes) == ("ann", "a twin from a test")
    assert place.query("SELECT event_payload->>'$.session' FROM failed_events WHERE event_id = 'typed'") == [
        ("s-1",)
    ]


def test_a_mirror_cut_short_is_done_again(place: Place) -> None:
    with failpoints.active("loader.before_commit", "raise"):
        put = place.warehouse.put_failed

        def put_and_die(events: object) -> None:
            put(events)  # type: ignore[arg-type]
            raise FailpointError

        place.warehouse.put_failed = put_and_die  # type: ignore[method-assign]
        with pytest.raises(FailpointError):
            service(place).mirror()
        place.warehouse.put_failed = put  # type: ignore[method-assign]
    assert service(place).mirror() == 3
    assert len(place.warehouse.failed()) == 3


def test_a_retry_that_fails_again_says_why(place: Place) -> None:
    for name, reason in (("bytes", "not JSON"), ("typed", "x"), ("good", "other content")):
        event = service(place).retry(named(place, name), "ann")
        assert (event.status, event.retry_count) == ("pending", 1)
        assert reason in (event.last_error or "")
        assert event.last_retry_at == place.clock()
    assert place.ids() == ["good"]


def test_a_retry_that_succeeds_resolves(place: Place) -> None:
    any_bytes = ValidationRules({"orders": ValidationRule(payload="any")})
    event = service(place, any_bytes).retry(named(place, "bytes"), "ann")
    assert (event.status, event.resolved_by) == ("resolved", "ann")
    assert place.ids() == ["bytes", "good"]
    assert place.query("SELECT data_base64, position FROM events WHERE id = 'bytes'") == [
        ("/w==", position(2))
    ]
    with pytest.raises(InvalidInput, match="is resolved"):
        service(place).retry(event.id, "ann")


def test_a_retry_cut_short_can_be_repeated_and_loads_once(place: Place) -> None:
    failed, name = (
        service(place, ValidationRules({"orders": ValidationRule(payload="any")})),
        named(place, "bytes"),
    )
    with failpoints.active("loader.after_commit", "raise"), pytest.raises(FailpointError):
        failed.retry(name, "ann")
    assert failed.show(name).status == "retrying"
    assert failed.retry(name, "ann").status == "resolved"
    assert place.ids() == ["bytes", "good"]


def test_a_retry_while_the_warehouse_is_away_is_left_to_the_loader(place: Place) -> None:
    failed, name = (
        service(place, ValidationRules({"orders": ValidationRule(payload="any")})),
        named(place, "bytes"),
    )
    place.warehouse.close()
    there = Path(place.url.partition("://")[2])
    hidden = there.rename(there.with_suffix(".away"))
    there.write_text("something in its way")
    assert failed.retry(name, "ann").status == "retrying"
    there.unlink()
    hidden.rename(there)
    assert failed.resume() == 1
    assert (failed.show(name).status, failed.show(name).resolved_by) == ("resolved", "ann")
    assert failed.resume() == 0
    assert place.ids() == ["bytes", "good"]


def test_what_expired_with_its_batch_can_be_retried_one_by_one(tmp_path: Path) -> None:
    place = Place(tmp_path)
    batch = place.commit(source_rows(["a", "b"]))
    place.clock.advance(days=8)
    assert result(place.loader().load([batch])) == Result.EXPIRED
    failed = service(place)
    assert failed.mirror() == 2
    assert failed.retry(named(place, "a"), "ann").status == "resolved"
    assert place.ids() == ["a"]
    assert {event.event_id: event.status for event in failed.find()} == {"a": "resolved", "b": "pending"}


def test_a_damaged_batch_that_was_given_up_is_quarantined_and_holds_up_no_other(tmp_path: Path) -> None:
    place = Place(tmp_path)
    damaged = place.commit(source_rows(["a"]))
    other = place.commit(source_rows(["b"], first=2))
    place.clock.advance(days=8)
    assert [result for _, result in place.loader().run_once()] == [Result.EXPIRED, Result.EXPIRED]
    segment = tmp_path / "wal" / damaged.segments[0].name
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-1])
    failed = service(place)
    assert failed.mirror() == 1
    assert [event.batch for event in place.warehouse.failed()] == [other.name]
    assert place.wal.survey().quarantined == {damaged.name}
    segment.write_bytes(whole)
    place.wal.repair(damaged, damaged.segments, "a copy")
    assert failed.mirror() == 1
    assert len(place.warehouse.failed()) == 2


def given_up(place: Place, *names: str) -> list[WalBatch]:
    """A batch of one event for each name; all of them have expired."""
    batches = [place.commit(source_rows([name], first=10 + number)) for number, name in enumerate(names)]
    place.clock.advance(days=8)
    assert {result(place.loader().load([batch])) for batch in batches} == {Result.EXPIRED}
    return batches


def own_record(place: Place, batch: WalBatch) -> Path:
    """The record of the one event of the first batch that failed by itself, as `typed`."""
    [found] = [event for event in service(place).find() if event.event_id == "typed"]
    return place.path_of(f"failed/{found.batch}/{found.channel}@{found.partition}@{found.position}.json")


DAMAGES: dict[str, Callable[[Place, WalBatch], Path]] = {
    "segment": lambda place, batch: place.path_of(batch.segments[0].name),
    "batch": lambda place, batch: place.path_of(f"pending/{batch.name}.json"),
    "rest": lambda place, batch: place.path_of(f"failed/{batch.name}/rest.json"),
    "failure": own_record,
}


@pytest.mark.parametrize(
    ("kind", "how"), [*((kind, "cut") for kind in DAMAGES), ("segment", "gone"), ("batch", "gone")]
)
def test_what_cannot_be_read_is_one_entry_and_hides_no_other(place: Place, kind: str, how: str) -> None:
    first, _ = given_up(place, "lost", "kept")
    before = {event.event_id: event for event in service(place).find()}
    file = DAMAGES[kind](place, first)
    whole = file.read_bytes()
    file.unlink() if how == "gone" else file.write_bytes(whole[: len(whole) // 2])
    hidden = "typed" if kind == "failure" else "lost"
    failed = service(place)
    for found in (failed.find(), failed.find(pending_first=True), failed.find(status="pending")):
        events = {event.event_id: event for event in found}
        assert len(events) == len(found) == len(before)
        entry = events.pop("(damaged)")
        assert events == {name: event for name, event in before.items() if name != hidden}
        assert (entry.failure_reason, entry.status, entry.channel) == ("damaged", "pending", "orders")
        assert file.stem in str(entry.last_error) or first.name in str(entry.last_error)
    assert failed.show(entry.id) == entry
    assert failed.show(before["kept"].id) == before["kept"], "also beside it"
    with pytest.raises(InvalidInput, match="repaired"):
        failed.retry(entry.id, "ann")
    assert failed.abandon(entry.id, "ann", "the log is gone, too").status == "abandoned"
    assert failed.show(entry.id).status == "abandoned"
    file.write_bytes(whole)
    after = {event.event_id: event.status for event in failed.find()}
    assert after == dict.fromkeys(before, "pending") | ({"typed": "abandoned"} if kind == "failure" else {})


def test_a_damaged_note_of_an_operator_hides_no_event_and_stops_no_round(place: Place) -> None:
    failed, name = service(place), named(place, "bytes")
    failed.retry(named(place, "typed"), "ann")
    failed.resolve(name, "ann", "by hand")
    [note] = place.path_of(f"acts/{failed.show(name).batch}/{name}").iterdir()
    note.write_bytes(b"")
    found = {event.event_id: event for event in failed.find()}
    assert set(found) == {"good", "bytes", "typed"}
    assert (found["bytes"].status, name in str(found["bytes"].last_error)) == ("pending", True)
    assert failed.resume() == 0
    assert failed.mirror() == 3
    assert place.wal.survey().quarantined == set()


def test_what_does_not_exist_is_not_found(place: Place) -> None:
    with pytest.raises(NotFound):
        service(place).show("00000000-0000-0000-0000-000000000000")


def test_an_event_that_fails_in_two_batches_has_failed_once(place: Place) -> None:
    """Two drivers overlap, one of which has lost its lock: the same places in batches of other ranges."""
    data = [b"\xff", b'{"total":"x"}', b'{"total":2}', b'{"total":3}']
    again = source_rows(["bytes", "typed", "good", "new"], data=data, first=2)
    assert result(place.loader().load([place.commit(again)])) == Result.LOADED
    assert sorted(event.event_id for event in service(place).find()) == ["bytes", "good", "typed"]
    counts = [(each.rows, each.inserted, each.failed) for each in confirmations(place)]
    assert counts == [(4, 1, 3)] * 2, "each batch is accounted for"
    service(place).mirror()
    assert place.query("SELECT count(*) FROM failed_events") == [(3,)]
    assert service(place).unresolved() == 3


def confirmations(place: Place) -> list[Confirmation]:
    found = map(place.wal.confirmation, place.wal.records.names("confirmed"))
    return [each for each in found if each is not None]
