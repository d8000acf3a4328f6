"""The spool: whatever a disk did to it, every event that can be read is sent, once and in its order, and
nothing is lost without a word."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hostile import BITS, BYTES, REFUSED, TEXTS, attempt, flipped, fuzzed
from hypothesis import given
from hypothesis import strategies as st

from holdfast.bus import spool as spools
from holdfast.bus.spool import Spool, Spooled
from holdfast.model.event import Event, check_event

COUNT = 12
NOW = datetime(2026, 7, 1, tzinfo=UTC)
FRAME = 24 + 4096
"""A frame of SQLite's write-ahead log."""


def event(number: int) -> Spooled:
    return Spooled("orders", Event(data(number), f"e-{number}", time=NOW), None, 0)


def data(number: int) -> bytes:
    return b"J" * 30 + b"%02d" % number


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spool that was closed, after the first one of its events was sent."""
    path = tmp_path_factory.mktemp("spool") / "filled"
    for start in range(0, COUNT, 3):
        spool = Spool(path)
        spool.open()
        for number in range(start, start + 3):
            spool.append([event(number)])
        spool.close()
    spool = Spool(path)
    spool.open()
    spool.advance(1)
    spool.close()
    return path


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spool whose process was killed: all of its events are in the write-ahead log."""
    path = tmp_path_factory.mktemp("spool") / "crashed"
    spool = Spool(path.with_name("open"))
    spool.open()
    for number in range(COUNT):
        spool.append([event(number)])
    shutil.copytree(path.with_name("open"), path)
    spool.close()
    return path


def drained(path: Path, step: int = 5) -> list[Spooled]:
    """Everything that a new process would send."""
    spool = Spool(path)
    spool.open()
    found: list[Spooled] = []
    while entries := spool.peek(step):
        found += entries
        spool.advance(len(entries))
        assert len(found) < 100, "it never ends"
    assert not len(spool)
    assert spool.size == 0
    spool.append([event(99)])
    assert spool.peek(9) == [event(99)], "and it goes on"
    spool.close()
    return found


def copied(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(path, tmp_path_factory.mktemp("damaged") / "spool"))


def sent(found: list[Spooled]) -> list[int]:
    """The numbers of events, each of which is whole, in its order and there once."""
    numbers = [int(each.event.id[2:]) for each in found]
    assert found == [event(number) for number in numbers], "nothing damaged is sent"
    assert numbers == sorted(set(numbers))
    return numbers


def test_all_of_it_is_there(filled: Path, crashed: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert drained(copied(filled, tmp_path_factory)) == [event(number) for number in range(1, COUNT)]
    assert drained(copied(crashed, tmp_path_factory)) == [event(number) for number in range(COUNT)]


@fuzzed()
@given(BITS, st.integers(1, 6))
def test_a_flipped_bit_loses_nothing_without_a_word(
    filled: Path, tmp_path_factory: pytest.TempPathFactory, bit: int, step: int
) -> None:
    path = copied(filled, tmp_path_factory)
    file = path / "events.sqlite"
    file.write_bytes(flipped(file.read_bytes(), bit))
    if sent(drained(path, step)) != list(range(1, COUNT)):
        assert list(path.glob("*damaged*")), "what is missing is set aside"


@fuzzed()
@given(st.integers(1, COUNT - 1), st.integers(0, 8 * len(data(0)) - 1), st.integers(1, 6))
def test_a_flipped_bit_in_an_event_costs_that_one_and_no_other(
    filled: Path, tmp_path_factory: pytest.TempPathFactory, number: int, bit: int, step: int
) -> None:
    path = copied(filled, tmp_path_factory)
    file = path / "events.sqlite"
    content = file.read_bytes()
    assert content.count(data(number)) == 1
    file.write_bytes(flipped(content, 8 * content.index(data(number)) + bit))
    assert sent(drained(path, step)) == [each for each in range(1, COUNT) if each != number]
    assert b'"number":%d,' % number in (path / "damaged").read_bytes()


@fuzzed(0.5)
@given(st.one_of(BYTES, st.integers(0, 10_000_000)))
def test_a_torn_or_foreign_database_loses_nothing_without_a_word(
    filled: Path, tmp_path_factory: pytest.TempPathFactory, damage: bytes | int
) -> None:
    path = copied(filled, tmp_path_factory)
    file = path / "events.sqlite"
    content = file.read_bytes()
    left = content[: damage % len(content)] if isinstance(damage, int) else damage
    file.write_bytes(left)
    if sent(drained(path)) != list(range(1, COUNT)):
        assert (path / "events.sqlite.damaged-1").exists()


@fuzzed(0.5)
@given(st.integers(0, 10_000_000), st.one_of(st.just(b""), BYTES))
def test_a_torn_end_is_cut_and_what_is_before_it_is_sent(
    crashed: Path, tmp_path_factory: pytest.TempPathFactory, size: int, junk: bytes
) -> None:
    path = copied(crashed, tmp_path_factory)
    file = path / "events.sqlite-wal"
    content = file.read_bytes()
    assert len(content) == 32 + COUNT * FRAME, "a frame for each event"
    kept = content[: size % (len(content) + 1)]
    file.write_bytes(kept + junk)
    whole = max(0, len(kept) - 32) // FRAME
    assert sent(drained(path))[:whole] == list(range(whole))


@fuzzed()
@given(BITS)
def test_a_flipped_bit_in_the_log_of_a_crashed_process_loses_nothing_without_a_word(
    crashed: Path, tmp_path_factory: pytest.TempPathFactory, bit: int
) -> None:
    path = copied(crashed, tmp_path_factory)
    file = path / "events.sqlite-wal"
    damaged = flipped(file.read_bytes(), bit)
    file.write_bytes(damaged)
    found = sent(drained(path))
    assert found == list(range(len(found))), "the oldest ones"
    if len(found) < COUNT:
        assert (path / "events.sqlite-wal.damaged-1").read_bytes() == damaged


def test_files_of_others_are_left_alone(filled: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = copied(filled, tmp_path_factory)
    for name in ("notes.log", "1.log", "x0000000000000001.log", "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠.log"):
        (path / name).write_text("not ours\n")
    assert len(drained(path)) == COUNT - 1
    assert (path / "notes.log").exists()


@fuzzed()
@given(BYTES, TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=2))
def test_a_row_holds_every_event_that_may_be_published(
    data: bytes, text: str, headers: dict[str, str]
) -> None:
    checked = attempt(check_event, Event(data, text, text or "s", text or "t", text, NOW, headers))
    if checked is not REFUSED:
        entry = Spooled("orders", checked, NOW, -5)
        assert spools._parsed(spools._row(7, entry)) == entry
