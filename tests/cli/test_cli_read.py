"""Looking: channels, consumers, check; and the program as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from shell import Run

import holdfast
from holdfast.bus.sync import SyncBus
from holdfast.embedded import Postgres


def test_channels_list(run: Run, hf: SyncBus) -> None:
    hf.create_channel("empty")
    hf.subscribe("orders", "billing")
    hf.subscribe("orders", "audit")
    assert run("channels", "list", "--json").json == [
        {"name": "empty", "consumers": []},
        {"name": "orders", "consumers": ["audit", "billing"]},
    ]
    lines = run("channels", "list").out.splitlines()
    assert [line.split() for line in lines] == [
        ["CHANNEL", "CONSUMERS"],
        ["empty", "-"],
        ["orders", "audit,", "billing"],
    ]


def test_channels_show(run: Run, hf: SyncBus) -> None:
    hf.publish_many("orders", [holdfast.Event(n) for n in range(3)])
    shown = run("channels", "show", "orders", "--json").json
    assert (shown["name"], shown["events"], shown["consumers"]) == ("orders", 3, [])
    assert shown["last_published"] >= shown["created_at"]
    assert "events" in run("channels", "show", "orders").out


def test_consumers_list(run: Run, hf: SyncBus) -> None:
    hf.subscribe("orders", "billing", lease="30s")
    hf.subscribe("returns", "audit", ordered=True)
    assert [(c["channel"], c["name"]) for c in run("consumers", "list", "--json").json] == [
        ("orders", "billing"),
        ("returns", "audit"),
    ]
    [only] = run("consumers", "list", "returns", "--json").json
    assert only["policy"]["ordered"] is True
    assert "30s" in run("consumers", "list").out


def test_consumers_show(run: Run, hf: SyncBus) -> None:
    hf.subscribe("orders", "billing", max_attempts=1, backoff=["1s", "10s"])
    hf.publish_many("orders", [holdfast.Event(n) for n in range(4)])
    done, dead = hf.poll("orders", "billing", limit=2)
    hf.finalize(done, success=True)
    hf.finalize(dead, success=False)
    shown = run("consumers", "show", "orders", "billing", "--json").json
    assert shown["stats"]["states"] == {"ready": 2, "done": 1, "dead": 1}
    assert shown["stats"]["oldest_ready"] is not None
    assert shown["consumer"]["policy"]["backoff"] == ["1s", "10s"]
    pairs = dict(
        line.split(maxsplit=1) for line in run("consumers", "show", "orders", "billing").out.splitlines()
    )
    assert (pairs["ready"].strip(), pairs["dead"].strip(), pairs["leased"].strip()) == ("2", "1", "0")


def test_pause_and_resume(run: Run, hf: SyncBus) -> None:
    hf.subscribe("orders", "billing")
    hf.publish("orders", 1)
    assert run("consumers", "pause", "orders", "billing").err == "billing of orders is paused\n"
    assert hf.poll("orders", "billing") == []
    assert run("consumers", "resume", "orders", "billing", "--json").json["paused"] is False
    assert len(hf.poll("orders", "billing")) == 1


def test_subscribe(run: Run, hf: SyncBus) -> None:
    hf.create_channel("graves")
    options = ["--max-attempts", "3", "--max-abandonments", "2", "--lease", "30s", "--backoff", "1s, 10s"]
    options += ["--expires-after", "7d", "--dead-letter", "graves", "--max-depth", "100"]
    made = run("subscribe", "orders", "billing", *options, "--json").json
    assert made["policy"] == {
        "max_attempts": 3,
        "max_abandonments": 2,
        "lease": "30s",
        "backoff": ["1s", "10s"],
        "expires_after": "7d",
        "dead_letter": "graves",
        "on_dead": "keep",
        "ordered": False,
        "max_depth": 100,
    }
    assert "lease" in run("subscribe", "orders", "audit", "--ordered").out


def test_attempts_without_a_limit(run: Run, hf: SyncBus) -> None:
    made = run("subscribe", "orders", "billing", "--max-attempts", "unlimited", "--json").json
    assert made["policy"]["max_attempts"] == "unlimited"
    assert "unlimited" in run("consumers", "list").out.splitlines()[1].split()
    assert "unlimited" in run("consumers", "show", "orders", "billing").out
    [listed] = run("consumers", "list", "--json").json
    assert listed["policy"]["max_attempts"] == "unlimited"


def test_subscribe_to_the_past(run: Run, hf: SyncBus) -> None:
    hf.publish("orders", 1)
    assert run("subscribe", "orders", "early", "--start", "earliest").code == 0
    assert run("subscribe", "orders", "timed", "--start", "2020-01-01T00:00:00Z").code == 0
    assert run("subscribe", "orders", "late").code == 0
    polled = {name: len(hf.poll("orders", name)) for name in ("early", "timed", "late")}
    assert polled == {"early": 1, "timed": 1, "late": 0}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["channels", "show", "nope"], 1, "no channel 'nope'"),
        (["consumers", "show", "orders", "nope"], 1, "no consumer 'nope'"),
        (["consumers", "pause", "orders", "nope"], 1, "no consumer 'nope'"),
        (["subscribe", "orders", "billing", "--lease", "soon"], 2, "'soon' is not a duration"),
        (["subscribe", "orders", "billing", "--lease", "1ms"], 2, "too short"),
        (["subscribe", "orders", "billing", "--max-attempts", "0"], 2, "max_attempts 0"),
        (["subscribe", "orders", "billing", "--max-attempts", "many"], 2, "nor 'unlimited'"),
        (["subscribe", "orders", "billing", "--dead-letter", "nope"], 2, "nope does not exist"),
        (["subscribe", "orders", "billing", "--on-dead", "burn"], 2, "'burn'"),
        (["subscribe", "orders", "billing", "--start", "noon"], 2, "--start 'noon'"),
        (["subscribe", "orders", "UP"], 2, "'UP'"),
        (["nonsense"], 2, "nonsense"),
        (["channels", "list", "--url", "nowhere://x"], 2, "'nowhere'"),
        (["channels", "list", "--url", "postgresql://u:secret@[h/x"], 2, "--url: the URL cannot be read"),
        (
            ["channels", "list", "--url", "postgresql://u:secret@127.0.0.1:1/x"],
            3,
            "127.0.0.1:1/x did not answer",
        ),
        (["migrate", "--url", "postgresql://u:secret@127.0.0.1:1/x"], 3, "did not answer"),
        (["migrate", "--url", "nowhere://x"], 2, "'nowhere'"),
    ],
)
def test_what_goes_wrong_is_one_line_and_an_honest_code(
    run: Run, arguments: list[str], code: int, said: str
) -> None:
    answer = run(*arguments)
    assert (answer.code, answer.out) == (code, "")
    assert said in answer.err
    assert "secret" not in answer.err
    assert "Traceback" not in answer.err
    assert code == 2 or answer.err.count("\n") == 1


def test_nothing_asked_is_the_help_page(run: Run) -> None:
    assert run().code == 2
    assert "Commands:" in run().err
    assert run("--version").out.startswith("holdfast ")
    assert "Examples:" in run("jobs", "requeue", "--help").out


def test_migrate_says_what_it_applied(run: Run, blank: str) -> None:
    first = run("migrate", "--url", blank)
    assert first.out.splitlines()[0] == "0001_store.sql"
    assert first.err == f"{len(first.out.splitlines())} applied\n"
    again = run("migrate", "--url", blank)
    assert (again.out, again.err) == ("", "up to date\n")
    assert run("migrate", "--url", blank, "--json").json == [{"partition": 0, "applied": []}]


def test_the_printed_script_is_the_schema(run: Run, postgres: Postgres, blank: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    script = run("migrate", "--sql").out
    with psycopg.connect(blank, autocommit=True) as connection:
        connection.execute(script, prepare=False)
    assert run("migrate", "--url", blank).err == "up to date\n"
    assert run("migrate", "--sql", "--json").json == {"sql": script}


@pytest.fixture(scope="module")
def durable() -> Iterator[str]:
    with Postgres() as server:
        yield server.url


def test_check_in_words(run: Run, durable: str) -> None:
    answer = run("check", "--url", durable)
    assert answer.code == 0
    assert "fsync" in answer.out
    assert {finding["level"] for finding in run("check", "--url", durable, "--json").json} == {"ok"}


def test_check_ends_with_1_where_a_power_cut_can_lose_everything(run: Run) -> None:
    answer = run("check", "--json")  # the suite's own server does not wait for the disk
    assert answer.code == 1
    assert ("error", "fsync") in [(finding["level"], finding["subject"]) for finding in answer.json]


def test_several_stores_are_one(
    run: Run, new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [new_database(), new_database()]
    monkeypatch.setenv("HOLDFAST_URL", ",".join(urls))
    assert run("subscribe", "orders", "billing").code == 0
    for number in range(12):
        assert run("publish", "orders", str(number), "--id", f"o-{number}").code == 0
    assert run("channels", "show", "orders", "--json").json["events"] == 12
    assert run("consumers", "show", "orders", "billing", "--json").json["stats"]["states"] == {"ready": 12}
    each = [run("channels", "show", "orders", "--json", "--url", url).json["events"] for url in urls]
    assert sum(each) == 12
    assert all(each)
    assert run("jobs", "requeue", "orders", "billing", "o-1").code == 0
    assert run("consumers", "pause", "orders", "billing").code == 0
    assert [c["paused"] for url in urls for c in run("consumers", "list", "--url", url, "--json").json] == [
        True
    ] * 2


def test_a_dead_partition_is_a_finding(run: Run, database: str) -> None:
    answer = run("check", "--url", database, "--url", "postgresql://127.0.0.1:1/x", "--json")
    assert answer.code == 1
    assert answer.json[-1]["store"] == "127.0.0.1:1/x"
    assert (answer.json[-1]["level"], answer.json[-1]["subject"]) == ("error", "store")
    assert run("channels", "list", "--url", database, "--url", "postgresql://127.0.0.1:1/x").code == 3
    assert run("check", "--url", "postgresql://127.0.0.1:1/x").code == 3
