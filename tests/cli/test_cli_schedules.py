"""`holdfast schedules`: made, looked at, paused, run and removed, and what each prints."""

from __future__ import annotations

import pytest
from shell import Run, Start

from holdfast.bus.sync import SyncBus

NIGHTLY = ("nightly", "reports")
DEFINITION = ("--cron", "30 2 * * *", "--tz", "Europe/Berlin", "--data", '{"n": 1}')


def test_its_life_from_the_preview_to_the_end(run: Run, hf: SyncBus) -> None:
    shown = run("schedules", "add", *NIGHTLY, *DEFINITION, "--dry-run")
    assert (shown.code, len(shown.out.splitlines())) == (0, 10)
    assert "+01:00" in shown.out or "+02:00" in shown.out
    assert hf.schedules() == []
    made = run("schedules", "add", *NIGHTLY, *DEFINITION, "--header", "a=b", "--json", "--by", "ann").json
    assert (made["cron"], made["data"], made["headers"]) == ("30 2 * * *", {"n": 1}, {"a": "b"})
    assert [tick[:16] for tick in made["upcoming"]] == [
        tick[:16] for tick in run("schedules", "preview", *DEFINITION[:4], "--json").json["ticks"]
    ]
    assert "30 2 * * * Europe/Berlin" in run("schedules", "list").out
    assert run("schedules", "pause", *NIGHTLY).err == "nightly of reports is paused\n"
    [listed] = run("schedules", "list", "reports", "--json").json
    assert (listed["paused"], listed["next"]) == (True, None)
    assert "reports" in run("schedules", "show", *NIGHTLY).out
    run("schedules", "resume", *NIGHTLY)
    assert run("schedules", "show", *NIGHTLY, "--json").json["next"] == made["next"]
    first = run("schedules", "run", *NIGHTLY, "--id", "x").out
    assert run("schedules", "run", *NIGHTLY, "--id", "x").out == f"{first.strip()} duplicate\n"
    assert [entry.event.json() for entry in hf.read("reports")] == [{"n": 1}]
    assert run("schedules", "remove", *NIGHTLY, "--yes", "--json").json["state"] == "removed"
    audit = [entry.event.json() for entry in hf.read("gbe.events.system.audit")]
    assert (audit[0]["actor"], audit[0]["target"]) == ("ann", "reports/nightly")
    assert [each["action"].split()[0] for each in audit] == ["put", "pause", "resume", "run", "run", "remove"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("add", *NIGHTLY, "--cron", "0 0 31 2 *"), "cron '0 0 31 2 *' never ticks"),
        (("add", *NIGHTLY, "--every", "1ms"), "every 1ms is too often; use at least 1s"),
        (("add", *NIGHTLY, "--every", "1h", "--data", "{"), "not JSON"),
        (("add", *NIGHTLY), "give one of them"),
        (("preview", "--cron", "0 3 * * *", "--tz", "Mars"), "'Mars' is not a time zone"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(run: Run, arguments: tuple[str, ...], words: str) -> None:
    answer = run("schedules", *arguments)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert words in answer.err


def test_one_that_is_not_there_is_not_found(run: Run) -> None:
    for verb in ("show", "pause", "resume", "run"):
        answer = run("schedules", verb, *NIGHTLY)
        assert (answer.code, "there is no schedule 'nightly' of 'reports'" in answer.err) == (1, True)


def test_a_removal_asks_first(start: Start, run: Run, hf: SyncBus) -> None:
    hf.schedule(*NIGHTLY, every="1h")
    process = start("schedules", "remove", *NIGHTLY)
    _, err = process.communicate("n\n")
    assert (process.returncode, "will publish no more" in err) == (1, True)
    assert [each.name for each in hf.schedules()] == ["nightly"]
