"""`holdfast publish`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from shell import Run, Start

from holdfast.bus.publish import MAX_BATCH
from holdfast.bus.sync import SyncBus
from holdfast.cli.publish import read_events


def test_one_event_carries_everything_that_was_said(run: Run, hf: SyncBus) -> None:
    answer = run(
        *("publish", "orders", '{"n": 1}', "--id", "o-1", "--source", "shop", "--type", "placed"),
        *("--key", "c-7", "--header", "trace=a=b", "--header", "empty="),
    )
    assert answer.code == 0
    [entry] = hf.read("orders")
    assert answer.out == f"o-1 {entry.position}\n"
    event = entry.event
    assert (event.source, event.type, event.key) == ("shop", "placed", "c-7")
    assert event.json() == {"n": 1}
    assert event.headers == {"trace": "a=b", "empty": ""}


def test_the_receipt_as_json(run: Run) -> None:
    first = run("publish", "orders", "1", "--id", "o-1", "--json")
    again = run("publish", "orders", "1", "--id", "o-1", "--json")
    assert first.json == {"id": "o-1", "position": first.json["position"], "duplicate": False}
    assert again.json == first.json | {"duplicate": True}


def test_a_duplicate_is_said_and_is_no_failure(run: Run) -> None:
    run("publish", "orders", "1", "--id", "o-1")
    answer = run("publish", "orders", "1", "--id", "o-1")
    assert answer.code == 0
    assert answer.out.endswith(" duplicate\n")


def test_the_same_as_the_library_publishes_is_a_duplicate(run: Run, hf: SyncBus) -> None:
    hf.publish("orders", {"n": 1, "name": "ü"}, id="o-1")
    assert run("publish", "orders", '{"n":  1, "name": "\\u00fc"}', "--id", "o-1", "--json").json["duplicate"]


def test_other_content_under_the_same_id_fails(run: Run) -> None:
    run("publish", "orders", "1", "--id", "o-1")
    answer = run("publish", "orders", "2", "--id", "o-1")
    assert (answer.code, answer.out) == (1, "")
    assert "'o-1'" in answer.err


def test_a_file_is_published_byte_by_byte(run: Run, hf: SyncBus, tmp_path: Path) -> None:
    file = tmp_path / "order.bin"
    file.write_bytes(b"\x00\xffno json")
    assert run("publish", "orders", f"@{file}").code == 0
    assert hf.read("orders")[0].event.data == b"\x00\xffno json"


def test_without_data_the_event_carries_null(run: Run, hf: SyncBus) -> None:
    assert run("publish", "orders").code == 0
    assert hf.read("orders")[0].event.json() is None


def test_scheduled_and_prioritised(run: Run, hf: SyncBus) -> None:
    hf.subscribe("orders", "billing")
    assert run("publish", "orders", "1", "--id", "late", "--at", "2200-01-01T00:00:00Z").code == 0
    assert run("publish", "orders", "1", "--id", "soon", "--priority", "9").code == 0
    [late], [soon] = hf.find_jobs("orders", "late"), hf.find_jobs("orders", "soon")
    assert (late.state, soon.state, soon.priority) == ("scheduled", "ready", 9)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["orders", "nope"], "not JSON: Expecting value at character 1"),
        (["orders", "@missing.json"], "cannot be read"),
        (["Orders", "1"], "'Orders'"),
        (["orders", "1", "--at", "tomorrow"], "--at 'tomorrow' is not a time"),
        (["orders", "1", "--at", "2030-01-01T00:00:00"], "has no zone"),
        (["orders", "1", "--header", "x"], "--header 'x'"),
        (["orders", "1", "--priority", "101"], "101"),
        (["orders", "1", "--priority", "high"], "--priority"),
        (["orders", "1", "--envelope"], "use it with -"),
        (["orders", "-", "--id", "o-1"], "--id names one event"),
        (["orders", "1", "--key", "a\x1bb"], "control characters"),
        ([], "CHANNEL"),
    ],
)
def test_wrong_input_is_said_in_one_line_and_ends_with_2(run: Run, arguments: list[str], said: str) -> None:
    answer = run("publish", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err
    assert "Traceback" not in answer.err
    assert "\x1b" not in answer.err


def test_lines_of_stdin(start: Start, hf: SyncBus) -> None:
    out, err = start("publish", "orders", "-", "--key", "k").communicate('{"n": 1}\n\n2\n"three"')
    assert [entry.event.json() for entry in hf.read("orders")] == [{"n": 1}, 2, "three"]
    assert {entry.event.key for entry in hf.read("orders")} == {"k"}
    assert [line.split()[0] for line in out.splitlines()] == [e.event.id for e in hf.read("orders")]
    assert err == "3 events published, 0 were there before\n"


def test_lines_that_are_whole_events(start: Start, hf: SyncBus) -> None:
    lines = [
        {"id": "a", "data": {"n": 1}, "key": "k", "headers": {"h": "x"}},
        {"id": "b", "source": "shop", "time": "2024-02-29T12:00:00+01:00"},
        {"id": "a", "data": {"n": 1}, "key": "k"},
    ]
    process = start("publish", "orders", "-", "--envelope", "--json", "--source", "till")
    out, err = process.communicate("\n".join(map(json.dumps, lines)))
    assert [json.loads(line)["duplicate"] for line in out.splitlines()] == [False, False, True]
    first, second = (entry.event for entry in hf.read("orders"))
    assert (first.source, first.key, first.headers) == ("till", "k", {"h": "x"})
    assert (second.source, second.time and second.time.isoformat()) == ("shop", "2024-02-29T11:00:00+00:00")
    assert err == "2 events published, 1 were there before\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{oops", "line 2: not JSON"),
        ("[1]", "line 2: no event"),
        ('{"idd": "x"}', "line 2: no event"),
        ('{"headers": [1]}', "line 2: headers [1]"),
        ('{"id": 7}', "line 2: event id 7 is not text"),
        ('{"time": "now"}', "line 2: time 'now' is not a time"),
    ],
)
def test_a_wrong_line_is_named(start: Start, hf: SyncBus, line: str, said: str) -> None:
    process = start("publish", "orders", "-", "--envelope")
    _, err = process.communicate(f'{{"data": 1}}\n{line}\n')
    assert process.returncode == 2
    assert said in err


def test_what_arrives_is_published_without_waiting_for_the_end(start: Start) -> None:
    process = start("publish", "orders", "-")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("1\n")
    process.stdin.flush()
    assert process.stdout.readline()
    process.stdin.close()
    assert process.wait() == 0


def test_what_stands_before_a_wrong_line_is_published_and_counted(start: Start, hf: SyncBus) -> None:
    process = start("publish", "orders", "-")
    out, err = process.communicate("1\n2\n{oops\n4\n")
    assert process.returncode == 2
    assert [entry.event.json() for entry in hf.read("orders")] == [1, 2]
    assert len(out.splitlines()) == 2
    assert err.startswith("2 events published, 0 were there before\nholdfast: line 3: not JSON")


def test_what_a_batch_that_was_refused_means_is_counted(start: Start, hf: SyncBus) -> None:
    hf.publish("orders", 1, id="a")
    process = start("publish", "orders", "-", "--envelope")
    _, err = process.communicate('{"id": "b"}\n{"id": "a", "data": 2}\n')
    assert process.returncode == 1
    assert err.startswith("0 events published, 0 were there before; 2 more were sent and not acknowledged\n")
    assert "'a'" in err


def test_nobody_reads_the_receipts_and_the_count_is_right(start: Start, hf: SyncBus) -> None:
    process = start("publish", "orders", "-")
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stdin.write("1\n2\n3\n")
    process.stdin.close()
    assert process.stderr.read() == "3 events published, 0 were there before\n"
    assert process.wait() == 1
    assert len(hf.read("orders")) == 3


def test_a_result_that_cannot_be_written_is_said(database: str) -> None:
    command = [sys.executable, "-m", "holdfast.cli", "publish", "orders", "1", "--url", database]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "No space left on device" in done.stderr


def test_a_closed_stdin_is_said(database: str) -> None:
    command = f"{sys.executable} -m holdfast.cli publish orders - --url '{database}' <&-"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "holdfast: stdin is closed; - reads lines from it\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_with_its_count(start: Start, number: signal.Signals, code: int) -> None:
    process = start("publish", "orders", "-")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("1\n")
    process.stdin.flush()
    assert process.stdout.readline()
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == code
    assert err.startswith("1 events published, 0 were there before\n")
    assert "Traceback" not in err


def test_a_file_of_more_lines_than_a_batch_may_have(tmp_path: Path) -> None:
    file = tmp_path / "many.ndjson"
    file.write_bytes(b"1\n" * (MAX_BATCH + 1))
    with file.open("rb") as stream:
        sizes = [len(events) for events in read_events(stream, {}, envelope=False)]
    assert sum(sizes) == MAX_BATCH + 1
    assert max(sizes) <= MAX_BATCH
