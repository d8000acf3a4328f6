"""The spool: whatever a disk did to it, every event that is still whole is sent, once and in its order."""

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


def event(number: int) -> Spooled:
    return Spooled("orders", Event(b"J" * 30 + b"%d" % number, f"e-{number}", time=NOW), None, 0)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spool of four segments of three events, the first one of which was sent."""
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
    spool.append([event(99)])
    assert spool.peek(9) == [event(99)], "and it goes on"
    spool.close()
    return found


def copied(filled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(filled, tmp_path_factory.mktemp("damaged") / "spool"))


def test_all_of_it_is_there(filled: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert drained(copied(filled, tmp_path_factory)) == [event(number) for number in range(1, COUNT)]


@fuzzed()
@given(st.integers(0, 3), BITS, st.integers(1, 6))
def test_a_flipped_bit_costs_the_event_that_it_hit_and_no_other(
    filled: Path, tmp_path_factory: pytest.TempPathFactory, segment: int, bit: int, step: int
) -> None:
    path = copied(filled, tmp_path_factory)
    file = sorted(path.glob("*.log"))[segment]
    content = file.read_bytes()
    file.write_bytes(flipped(content, bit))
    at = bit // 8 % len(content)
    hit = segment * 3 + content[:at].count(b"\n")
    near = {hit, hit + 1} if content[at] == ord("\n") else {hit}
    found = drained(path, step)
    numbers = [int(each.event.id[2:]) for each in found]
    assert found == [event(number) for number in numbers], "nothing damaged is sent"
    assert numbers == sorted(set(numbers))
    assert set(range(1, COUNT)) - set(numbers) <= near


@pytest.mark.parametrize("segment", range(4))
@pytest.mark.parametrize("end", ["\n", "\r"], ids=["line feed", "carriage return"])
def test_a_letter_that_became_the_end_of_a_line_costs_one_event(
    filled: Path, tmp_path: Path, segment: int, end: str
) -> None:
    path = Path(shutil.copytree(filled, tmp_path / "spool"))
    file = sorted(path.glob("*.log"))[segment]
    content = bytearray(file.read_bytes())
    at = content.rindex(b"\n", 0, len(content) - 1) + 40
    content[at] = ord(end)
    file.write_bytes(content)
    lost = segment * 3 + 2
    assert drained(path) == [event(number) for number in range(1, COUNT) if number != lost]
    assert (path / "damaged").read_bytes()


@fuzzed(0.5)
@given(st.integers(0, 10_000), st.one_of(st.just(b""), BYTES))
def test_a_torn_end_is_cut_and_what_is_before_it_is_sent(
    filled: Path, tmp_path_factory: pytest.TempPathFactory, size: int, junk: bytes
) -> None:
    path = copied(filled, tmp_path_factory)
    file = sorted(path.glob("*.log"))[-1]
    content = file.read_bytes()
    kept = content[: size % (len(content) + 1)]
    file.write_bytes(kept + junk)
    whole = COUNT - 3 + kept.count(b"\n")
    found = drained(path)
    assert [each for each in found if each.event.id != "e-99"][: whole - 1] == [
        event(n) for n in range(1, whole)
    ]


@fuzzed(0.5)
@given(st.one_of(BYTES, BITS))
def test_a_damaged_note_of_what_was_sent_loses_nothing(
    filled: Path, tmp_path_factory: pytest.TempPathFactory, damage: bytes | int
) -> None:
    path = copied(filled, tmp_path_factory)
    note = path / "drained"
    note.write_bytes(flipped(note.read_bytes(), damage) if isinstance(damage, int) else damage)
    numbers = [int(each.event.id[2:]) for each in drained(path)]
    assert numbers in (list(range(COUNT)), list(range(1, COUNT)))


def test_files_of_others_are_left_alone(filled: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = copied(filled, tmp_path_factory)
    for name in ("notes.log", "1.log", "x0000000000000001.log", "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠.log"):
        (path / name).write_text("not ours\n")
    assert len(drained(path)) == COUNT - 1
    assert (path / "notes.log").exists()


@fuzzed()
@given(BYTES, TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=2))
def test_a_line_holds_every_event_that_may_be_published(
    data: bytes, text: str, headers: dict[str, str]
) -> None:
    checked = attempt(check_event, Event(data, text, text or "s", text or "t", text, NOW, headers))
    if checked is not REFUSED:
        line = spools._line(Spooled("orders", checked, NOW, -5))
        assert spools._parse(line.rstrip(b"\n")) == Spooled("orders", checked, NOW, -5)
        assert line.count(b"\n") == 1
