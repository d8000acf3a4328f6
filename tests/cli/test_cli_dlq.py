"""`holdfast dlq`: look, act with a question before, cancel and resume, and what a monitor is told."""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from shell import Answer, Run, Start

import holdfast
from holdfast.bus.sync import SyncBus

CHANNEL, CONSUMER = "orders", "billing"
PATCH = json.dumps([{"op": "replace", "path": "/total", "value": 1}])


@pytest.fixture
def deaths(hf: SyncBus) -> SyncBus:
    """Six dead letters: four of one cluster, two of another."""
    hf.subscribe(CHANNEL, CONSUMER, max_attempts=2)
    hf.publish_many(CHANNEL, [holdfast.Event({"total": number}, f"o-{number}") for number in range(6)])
    for job in hf.poll(CHANNEL, CONSUMER, limit=10):
        number = int(job.event.id[2:])
        error = ValueError(f"no route to host {number}") if number < 4 else KeyError("total")
        hf.finalize(job, success=False, error=error, terminal=True)
    return hf


def items(run: Run, *options: str) -> dict[str, str]:
    """The ids of the list, by event."""
    answer = run("dlq", "list", "--json", *options)
    assert answer.code == 0, answer.err
    return {item["event_id"]: item["id"] for item in answer.json["items"]}


def dead(run: Run) -> int:
    return sum(each["dead"] for each in run("dlq", "status", "--json").json)


def test_status_list_show_and_clusters(run: Run, deaths: SyncBus) -> None:
    assert run("channels", "name", CHANNEL, "Order Events").code == 0
    assert run("consumers", "name", CHANNEL, CONSUMER, "Billing Service").code == 0
    [status] = run("dlq", "status", "--json").json
    assert (status["channel"], status["channel_name"], status["consumer_name"], status["dead"]) == (
        CHANNEL,
        "Order Events",
        "Billing Service",
        6,
    )
    assert "Billing Service" in run("dlq", "status").out
    listed = items(run)
    assert sorted(listed) == [f"o-{number}" for number in range(6)]
    assert sorted(items(run, "--error-class", "KeyError")) == ["o-4", "o-5"]
    assert items(run, "--text", "nowhere") == {}
    page = run("dlq", "list", "--limit", "4")
    assert "there may be more: add --after" in page.err
    shown = run("dlq", "show", listed["o-1"], "--json").json
    assert (shown["data"], shown["errors"][0]["error"]) == ({"total": 1}, "no route to host 1")
    assert '{"total": 1}' in run("dlq", "show", listed["o-1"]).out
    large, small = run("dlq", "clusters", "--json").json
    assert (large["count"], large["pattern"], small["count"]) == (4, "ValueError: no route to host <n>", 2)
    assert items(run, "--fingerprint", small["fingerprint"]).keys() == {"o-4", "o-5"}
    assert run("dlq", "list", "--channel", "other").err == "no dead letter\n"


def test_names_are_seen_and_taken_away(run: Run, deaths: SyncBus) -> None:
    run("consumers", "name", CHANNEL, CONSUMER, "Billing Service")
    assert "Billing Service" in run("consumers", "show", CHANNEL, CONSUMER).out
    run("channels", "name", CHANNEL, "Order Events")
    assert "Order Events" in run("channels", "show", CHANNEL).out
    assert run("channels", "name", CHANNEL, "").code == 0
    assert "Order Events" not in run("channels", "show", CHANNEL).out
    assert run("channels", "name", "nowhere", "Nothing").code == 1
    assert run("consumers", "name", CHANNEL, "nobody", "Nobody").code == 1


def test_a_dry_run_says_how_many_and_changes_nothing(run: Run, deaths: SyncBus) -> None:
    for command in ("requeue", "redrive", "purge"):
        answer = run("dlq", command, "--channel", CHANNEL, "--dry-run")
        assert answer.code == 0
        assert "6 dead letters would be" in answer.out
        told = run("dlq", command, "--error-class", "KeyError", "--dry-run", "--json").json
        assert (told["preview"]["count"], told["preview"]["exact"]) == (2, True)
    answer = run("consumers", "remove", CHANNEL, CONSUMER, "--dry-run")
    assert "6 jobs would be removed for good with their consumer" in answer.out
    assert dead(run) == 6
    assert run("dlq", "operations").err == "no operation was asked for\n"


def test_without_a_filter_it_must_be_said(run: Run, deaths: SyncBus) -> None:
    for command in ("requeue", "redrive", "purge"):
        answer = run("dlq", command, "--yes")
        assert (answer.code, "all" in answer.err) == (2, True)
    assert dead(run) == 6
    assert run("dlq", "purge", "--all", "--yes").code == 0
    assert dead(run) == 0


def test_it_asks_before_it_acts(start: Start, run: Run, deaths: SyncBus) -> None:
    for answer, left in (("n\n", 6), ("y\n", 2)):
        process = start("dlq", "purge", "--error-class", "ValueError", "--by", "ann")
        _, said = process.communicate(answer, timeout=60)
        assert "4 dead letters will be removed for good. Go on?" in said
        assert dead(run) == left
    assert "is done: 4 of 4 done, 0 skipped" in said
    [operation] = run("dlq", "operations", "--json").json
    assert (operation["actor"], operation["state"], operation["progress"]["done"]) == ("ann", "done", 4)


def test_requeue_and_delete_by_id(run: Run, deaths: SyncBus) -> None:
    listed = items(run)
    done = run("dlq", "requeue", listed["o-0"], listed["o-1"], "--yes", "--json").json
    assert (done["state"], done["progress"]["done"]) == ("done", 2)
    assert len(deaths.poll(CHANNEL, CONSUMER, limit=10)) == 2
    assert run("dlq", "delete", listed["o-2"], "--yes").code == 0
    again = run("dlq", "delete", listed["o-2"], "--yes")
    assert (again.code, "there is no dead letter" in again.err) == (1, True)
    refused = run("dlq", "delete", listed["o-3"], "--only-exhausted", "--yes")
    assert (refused.code, "has used 1 of 2 attempts" in refused.err) == (1, True)
    assert run("dlq", "delete", "nonsense", "--yes").code == 2
    assert dead(run) == 3


def test_a_patch_shows_the_difference(run: Run, deaths: SyncBus, tmp_path: Path) -> None:
    item = items(run)["o-5"]
    shown = run("dlq", "patch", item, "--patch", PATCH, "--dry-run")
    assert ('-  "total": 5' in shown.out, '+  "total": 1' in shown.out) == (True, True)
    file = tmp_path / "fix.json"
    file.write_text(PATCH)
    assert run("dlq", "patch", item, "--patch", f"@{file}", "--yes").code == 0
    [job] = deaths.poll(CHANNEL, CONSUMER)
    assert job.event.json() == {"total": 1}
    for wrong in ("{", "{}", "@nowhere.json", '[{"op": "steal"}]'):
        assert run("dlq", "patch", item, "--patch", wrong, "--yes").code == 2


def test_a_canary_that_fails_ends_with_1(run: Run, deaths: SyncBus) -> None:
    answer = run(
        "dlq", "redrive", "--channel", CHANNEL, "--canary", "2", "--patience", "0s", "--yes", "--rate", "1000"
    )
    assert answer.code == 1
    assert "0 of 2 in the canary succeeded, 90% were asked for" in answer.err
    [operation] = run("dlq", "operations", "--json").json
    assert f"to go on: holdfast dlq resume {operation['id']}" in answer.err
    assert (operation["state"], dead(run)) == ("stopped", 4)
    assert run("dlq", "resume", operation["id"]).code == 0
    assert dead(run) == 0


def test_ctrl_c_cancels_and_says_how_to_go_on(start: Start, run: Run, deaths: SyncBus) -> None:
    process = start("dlq", "purge", "--channel", CHANNEL, "--rate", "0.5", "--yes")
    while dead(run) == 6:
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    [operation] = run("dlq", "operations", "--json").json
    assert operation["state"] == "cancelled"
    assert operation["progress"]["done"] == 6 - dead(run)
    assert f"to go on: holdfast dlq resume {operation['id']}" in said
    assert run("dlq", "cancel", operation["id"]).code == 1


def test_an_operation_is_looked_at_and_cancelled(run: Run, deaths: SyncBus) -> None:
    run("dlq", "purge", "--error-class", "KeyError", "--yes", "--by", "ann")
    [operation] = run("dlq", "operations", "--json").json
    shown = run("dlq", "operations", operation["id"], "--json").json
    assert shown == operation
    assert shown["filter"] == {"kinds": ["job"], "kind": "KeyError"}
    assert "2 of 2 done" in run("dlq", "operations").out
    assert run("dlq", "operations", "0198-nothing").code == 1
    assert run("dlq", "resume", operation["id"]).code == 1


def test_verify_finds_and_repairs_a_wrong_count(run: Run, deaths: SyncBus, database: str) -> None:
    assert (run("dlq", "verify").code, run("dlq", "verify").err) == (0, "every count is right\n")
    with psycopg.connect(database, autocommit=True) as connection:
        change = "UPDATE holdfast.dead_deltas SET change = change + 3 WHERE id = (SELECT min(id) FROM {})"
        connection.execute(change.format("holdfast.dead_deltas").encode())
    wrong = run("dlq", "verify", "--json")
    assert wrong.code == 1
    assert {d["counted"] - d["found"] for d in wrong.json["drift"]} == {3}
    assert dead(run) == 9
    assert run("dlq", "verify", "--repair", "--by", "ann").code == 0
    [told] = [json.loads(entry.event.data) for entry in deaths.read("gbe.events.system.audit")]
    assert (told["actor"], told["action"], "made right" in told["outcome"]) == ("ann", "verify", True)
    assert (dead(run), run("dlq", "verify").code) == (6, 0)


@pytest.mark.parametrize(
    ("warn", "crit", "code", "status"), [(6, 9, 0, "OK"), (5, 6, 1, "WARNING"), (0, 5, 2, "CRITICAL")]
)
def test_a_monitor_is_told(run: Run, deaths: SyncBus, warn: int, crit: int, code: int, status: str) -> None:
    answer = run("dlq", "check", "--warn", str(warn), "--crit", str(crit))
    assert answer.code == code
    assert answer.out.startswith(f"DEAD LETTERS {status} - 6 dead letters, 1 consumer")
    assert answer.out.endswith(f" | 'orders/billing'=6;{warn};{crit};0\n")
    assert answer.out.count("\n") == 1
    told = run("dlq", "check", "--warn", str(warn), "--crit", str(crit), "--json")
    assert (told.code, told.json["status"]) == (code, status)


def test_a_monitor_is_told_when_nothing_can_be_said(run: Run) -> None:
    answer = run(
        "dlq", "check", "--warn", "1", "--crit", "2", "--url", "postgresql://nobody@127.0.0.1:1/none"
    )
    assert (answer.code, answer.out.startswith("DEAD LETTERS UNKNOWN - ")) == (3, True)


def test_a_consumer_is_emptied(start: Start, run: Run, deaths: SyncBus) -> None:
    deaths.publish(CHANNEL, {}, id="waits")
    deaths.publish(CHANNEL, {}, id="later", at=datetime.now(UTC) + timedelta(hours=1))
    answer = run("consumers", "empty", CHANNEL, CONSUMER, "--dry-run")
    assert "2 jobs would be cancelled; nothing was changed\n1 scheduled, 1 ready\n" in answer.out
    told = run("consumers", "empty", CHANNEL, CONSUMER, "--dry-run", "--json").json
    assert (told["kind"], told["preview"]["count"]) == ("empty_consumer", 2)
    assert told["preview"]["jobs"] == {"ready": 1, "scheduled": 1}
    for said, left in (("n\n", 2), ("y\n", 0)):
        process = start("consumers", "empty", CHANNEL, CONSUMER, "--by", "ann")
        _, asked = process.communicate(said, timeout=60)
        assert "2 jobs will be cancelled. Go on?" in asked
        stats = run("consumers", "show", CHANNEL, CONSUMER, "--json").json["stats"]["states"]
        assert stats.get("ready", 0) + stats.get("scheduled", 0) == left
    assert "is done: 2 of 2 done, 0 skipped" in asked
    assert (stats["cancelled"], dead(run)) == (2, 6)
    done = run("consumers", "empty", CHANNEL, CONSUMER, "--yes", "--json")
    assert (done.code, done.json["state"], done.json["progress"]["done"]) == (0, "done", 0)
    assert run("consumers", "empty", CHANNEL, "nobody", "--yes").code == 1


def test_a_consumer_is_removed(run: Run, deaths: SyncBus) -> None:
    answer = run("consumers", "remove", CHANNEL, CONSUMER, "--yes")
    assert answer.code == 0, answer.err
    assert run("dlq", "status", "--json").json == []
    assert run("consumers", "remove", CHANNEL, CONSUMER, "--yes").code == 1


def test_the_audit_can_be_read(run: Run, deaths: SyncBus) -> None:
    run("channels", "name", CHANNEL, "Order Events", "--by", "ann")
    run("dlq", "purge", "--all", "--yes", "--by", "bob")
    told = [json.loads(entry.event.data) for entry in deaths.read("gbe.events.system.audit")]
    assert [(each["actor"], each["action"], _word(each)) for each in told] == [
        ("ann", "name", "done"),
        ("bob", "purge", "asked"),
        ("bob", "purge", "done"),
    ]


def _word(told: dict[str, Any]) -> str:
    word: str = told["outcome"].partition(":")[0]
    return word


def test_wrong_input_is_told(run: Run, deaths: SyncBus) -> None:
    wrong: list[tuple[str, ...]] = [
        ("list", "--kind", "letters"),
        ("list", "--since", "yesterday"),
        ("list", "--channel", "NO"),
        ("list", "--after", "nonsense"),
        ("show", "nonsense"),
        ("requeue", "job:orders:billing:1", "--channel", CHANNEL, "--yes"),
        ("redrive", "--channel", CHANNEL, "--rate", "0", "--yes"),
        ("purge", "--kind", "stream", "--all", "--yes"),
    ]
    for each in wrong:
        answer: Answer = run("dlq", *each)
        assert (answer.code, answer.out) == (2, ""), each
        assert answer.err.startswith("holdfast: ")
    assert run("dlq", "show", f"job:{CHANNEL}:{CONSUMER}:999").code == 1
