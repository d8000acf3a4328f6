"""Queries on the warehouse: what they return, what they cost, and what they cannot reach."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from walkit import START, Place, source_rows

from holdfast.cli import main
from holdfast.model.errors import InvalidInput, NotFound, Unavailable
from holdfast.pipeline.query import QueryLimits, engine, run_query

HUGE = "SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b"
"""Takes minutes."""


@pytest.fixture(params=["duckdb", "delta"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A warehouse of either kind, with three events."""
    urls = {"duckdb": f"duckdb://{tmp_path}/warehouse.duckdb", "delta": f"delta://{tmp_path}/tables"}
    return filled(tmp_path, urls[request.param])


@pytest.fixture
def file(tmp_path: Path) -> Place:
    """A DuckDB file, with three events."""
    return filled(tmp_path, f"duckdb://{tmp_path}/warehouse.duckdb")


def filled(folder: Path, url: str, channel: str = "orders") -> Place:
    place = Place(folder, warehouse=url)
    put(place, "a", "b", "c", channel=channel)
    return place


def put(place: Place, *ids: str, first: int = 1, channel: str = "orders") -> None:
    data = [json.dumps({"total": number * 1.5}).encode() for number, _ in enumerate(ids)]
    place.commit(source_rows(ids, first=first, channel=channel, data=data))
    place.loader().run_once(at_once=True)
    place.warehouse.close()


def query(place: Place, sql: str, *, audit: bool = True, **limits: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(
        asyncio.run(run_query(place.url, sql, QueryLimits(**limits), audit=audit))
    )
    return answer


def test_rows_come_with_the_names_and_types_of_their_columns(place: Place) -> None:
    found = query(
        place, "SELECT id, time, (data ->> 'total')::DECIMAL(9, 2) AS total FROM all_events ORDER BY id"
    )
    assert [each["name"] for each in found["columns"]] == ["id", "time", "total"]
    assert [each["type"] for each in found["columns"]][::2] == ["VARCHAR", "DECIMAL(9,2)"]
    assert found["rows"] == [
        ["a", "2026-03-01T00:00:00Z", 0.0],
        ["b", "2026-03-01T00:00:00Z", 1.5],
        ["c", "2026-03-01T00:00:00Z", 3.0],
    ]
    assert not found["truncated"]


def test_there_are_failed_events_to_ask_for_where_none_has_failed(place: Place) -> None:
    assert query(place, "SELECT count(*) FROM failed_events")["rows"] == [[0]]


def test_values_of_every_kind_are_json(file: Place) -> None:
    sql = """SELECT 2::HUGEINT * 9223372036854775807, 1.50::DECIMAL(9, 2), MAP {'a': [1, NULL]},
             {'x': DATE '2026-01-02'}, 'ab'::BLOB, INTERVAL 1 DAY, 'inf'::DOUBLE, NULL, TIME '12:30:00', true,
             chr(0), 'ü'"""
    numbers, nested = [18446744073709551614, 1.5], [{"a": [1, None]}, {"x": "2026-01-02"}]
    texts = ["6162", "1 day, 0:00:00", None, None, "12:30:00", True, "\0", "ü"]
    assert query(file, sql)["rows"] == [[*numbers, *nested, *texts]]


def test_of_delta_files_the_columns_are_read_that_a_query_needs(tmp_path: Path) -> None:
    place = filled(tmp_path, f"delta://{tmp_path}/tables")
    plan = query(place, "EXPLAIN SELECT id FROM events WHERE channel = 'orders'")["rows"][0][1]
    assert "\"channel\" = 'orders'" in plan
    assert "transaction_hash" not in plan


def test_of_delta_files_those_are_opened_that_a_query_needs(tmp_path: Path) -> None:
    place = filled(tmp_path, f"delta://{tmp_path}/tables")
    place.commit(source_rows(["d"], channel="bills", time=START + timedelta(days=1)))
    place.loader().run_once(at_once=True)
    for each in (tmp_path / "tables" / "events").rglob("event_day=2026-03-01/*.parquet"):
        each.unlink()
    with engine.opened(place.url) as connection:
        for where in ("event_day = '2026-03-02'", "time >= '2026-03-02'", "channel = 'bills'"):
            assert connection.execute(f"SELECT id FROM events WHERE {where}").fetchall() == [("d",)]
    with pytest.raises(Unavailable, match="event_day=2026-03-01"):
        query(place, "SELECT id FROM events")


def test_a_result_is_cut_after_its_rows_and_after_its_bytes(file: Place) -> None:
    by_rows = query(file, "SELECT * FROM range(10)", rows=4)
    assert (by_rows["rows"], by_rows["truncated"]) == ([[0], [1], [2], [3]], True)
    by_bytes = query(file, "SELECT repeat('x', 1000) FROM range(10)", bytes=3_500)
    assert (len(by_bytes["rows"]), by_bytes["truncated"]) == (3, True)
    assert not query(file, "SELECT * FROM range(4)", rows=4)["truncated"]


def test_a_query_that_takes_too_long_is_ended(file: Place) -> None:
    with pytest.raises(InvalidInput, match=r"takes over 0\.3 s; ask for less"):
        query(file, HUGE, seconds=0.3)


@pytest.mark.parametrize(
    "sql", ["SELECT list(range) FROM range(1000000000)", "SELECT repeat('x', 2000000000)"]
)
def test_a_query_that_needs_too_much_memory_is_ended(file: Place, sql: str) -> None:
    with pytest.raises(InvalidInput, match="needs over 64 MiB"):
        query(file, sql, memory=64 << 20, seconds=30.0)


def test_where_there_is_no_warehouse_it_says_so_and_makes_none(tmp_path: Path) -> None:
    for url in (f"duckdb://{tmp_path}/none.duckdb", f"delta://{tmp_path}/none"):
        with pytest.raises(NotFound, match="there is no warehouse"):
            asyncio.run(run_query(url, "SELECT 1", QueryLimits(), audit=True))
    assert not list(tmp_path.iterdir())


def test_the_audit_is_for_those_who_may_read_it(tmp_path: Path) -> None:
    url = f"duckdb://{tmp_path}/warehouse.duckdb"
    place = filled(tmp_path, url)
    assert query(place, "SELECT count(*) FROM events", audit=False)["rows"] == [[3]]
    put(place, "x", channel="gbe.events.system.audit")
    with pytest.raises(InvalidInput, match="only an admin may read"):
        query(place, "SELECT count(*) FROM events", audit=False)
    assert query(place, "SELECT count(*) FROM events")["rows"] == [[4]]


def test_what_a_writer_committed_before_it_was_killed_is_read(file: Place) -> None:
    code = (
        f"import duckdb, os; c = duckdb.connect({str(file.file)!r});"
        "c.execute('SET checkpoint_threshold=\"1GB\"');"
        "c.execute(\"INSERT INTO events SELECT * REPLACE (id || '2' AS id) FROM events\"); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    assert Path(f"{file.file}.wal").exists()
    assert query(file, "SELECT count(*) FROM events")["rows"] == [[6]]


@pytest.mark.concurrency
def test_an_ingest_gets_the_file_however_many_ask(file: Place) -> None:
    async def storm() -> list[bool]:
        asked = [
            asyncio.create_task(run_query(file.url, HUGE, QueryLimits(seconds=0.3), audit=True))
            for _ in range(6)
        ]
        await asyncio.to_thread(wait_until_locked, file.file)
        await asyncio.to_thread(put, file, "d", first=4)
        ended = [each.done() for each in asked]
        await asyncio.wait(asked)
        assert all(isinstance(each.exception(), InvalidInput) for each in asked)
        return ended

    assert not all(asyncio.run(storm()))
    assert file.ids() == ["a", "b", "c", "d"]


@pytest.mark.concurrency
def test_a_query_that_nobody_waits_for_is_ended(file: Place) -> None:
    async def hang_up() -> None:
        asked = asyncio.create_task(run_query(file.url, HUGE, QueryLimits(seconds=60.0), audit=True))
        await asyncio.to_thread(wait_until_locked, file.file)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked

    asyncio.run(hang_up())
    put(file, "d", first=4)
    assert file.ids() == ["a", "b", "c", "d"]


def wait_until_locked(path: Path) -> None:
    """Until a query has its turn."""
    descriptor = os.open(path, os.O_RDONLY)
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        except BlockingIOError:
            os.close(descriptor)
            return


def test_a_query_waits_for_the_ingest_and_gives_up(file: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "PATIENCE", 0.2)
    code = f"import duckdb; c = duckdb.connect({str(file.file)!r}); print('open', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"open\n"
        with pytest.raises(Unavailable, match="the ingest, had the warehouse for"), engine.opened(file.url):
            pass
        writer.communicate(b"\n")
    with engine.opened(file.url) as connection:
        assert connection.execute("SELECT count(*) FROM events").fetchall() == [(3,)]


REFUSED_BY_LOCK = [
    "SELECT * FROM read_csv('{file}')",
    "SELECT * FROM read_text('{file}')",
    "SELECT * FROM read_blob('{file}')",
    "SELECT * FROM read_json('{file}')",
    "SELECT * FROM read_parquet('{parquet}')",
    "SELECT * FROM '{parquet}'",
    "SELECT * FROM query_table('{parquet}')",
    "SELECT * FROM parquet_metadata('{parquet}')",
    "SELECT * FROM sniff_csv('{file}')",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM query('SELECT * FROM read_text(''{file}'')')",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT * FROM read_text(''{file}'')'))",
    "SELECT (SELECT max(content) FROM read_text('{file}'))",
    "WITH x AS (SELECT * FROM read_text('{file}')) SELECT * FROM x",
    "PIVOT (SELECT * FROM read_text('{file}')) ON filename USING count(*)",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{folder}/out.csv'",
    "SELECT * FROM enable_logging(storage = 'file', storage_path = '{folder}/log')",
    "SELECT * FROM enable_profiling()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM held_by_python",
    "COPY (SELECT 1) TO '{folder}/out.csv'",
    "EXPORT DATABASE '{folder}/out'",
    "ATTACH '{other}' AS other",
    "SET lock_configuration = false",
    "SET memory_limit = '100GB'",
    "SET temp_directory = '{folder}/spill'",
    "PRAGMA enable_profiling = 'json'",
    "CALL enable_logging(storage = 'file', storage_path = '{folder}/log')",
]
"""Attacks that work where nothing is locked."""
FAILS_ANYWAY = [
    "LOAD '{folder}/evil.duckdb_extension'",
    "INSTALL '{folder}/evil.duckdb_extension'",
    "SET enable_external_access = true",
    "RESET enable_external_access",
    "SELECT getenv('HOME')",
]
"""Attacks that would need more than this machine has, or that DuckDB always refuses."""
REFUSED_BY_KIND = [
    "INSERT INTO events SELECT * FROM events",
    "UPDATE events SET id = 'x'",
    "DELETE FROM events",
    "DROP TABLE events",
    "CREATE TABLE evil (a INT)",
    "CREATE TEMP TABLE evil AS SELECT 1",
    "CREATE MACRO evil() AS 1",
    "SET VARIABLE a = 1",
    "BEGIN",
    "CHECKPOINT",
    "VACUUM",
    "PRAGMA database_list",
    "PREPARE p AS SELECT 1",
    "USE memory",
    "ATTACH ':memory:' AS other",
    "CALL pragma_version()",
    "SELECT 1; SELECT 2",
    "",
]
"""What is no single statement that reads."""
held_by_python = pa.table({"secret": [1]})


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files that are nobody's business, for the attacks' texts."""
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "secret.json").write_text('{"password": "hunter2"}')
    duckdb.execute(f"COPY (SELECT 1 AS a) TO '{folder}/secret.parquet'")
    duckdb.connect(str(folder / "other.duckdb")).close()
    named = {"file": "secret.json", "parquet": "secret.parquet", "other": "other.duckdb"}
    return {name: str(folder / each) for name, each in named.items()} | {"folder": str(folder)}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection as a query has it."""
    folder = tmp_path_factory.mktemp("locked")
    with engine.opened(filled(folder, f"duckdb://{folder}/warehouse.duckdb").url) as connection:
        engine.lock(connection, 64 << 20)
        yield connection


@pytest.fixture(scope="module")
def locked_delta(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    folder = tmp_path_factory.mktemp("locked")
    with engine.opened(filled(folder, f"delta://{folder}/tables").url) as connection:
        engine.lock(connection, 64 << 20)
        yield connection


@pytest.mark.parametrize("attack", REFUSED_BY_LOCK)
def test_an_attack_works_without_the_lock_and_not_with_it(
    attack: str,
    words: dict[str, str],
    locked: duckdb.DuckDBPyConnection,
    locked_delta: duckdb.DuckDBPyConnection,
) -> None:
    sql = attack.format(**words)
    with duckdb.connect() as unlocked:
        unlocked.execute("CREATE TABLE events AS SELECT 1 AS id")
        unlocked.execute(sql).fetchall()
    for connection in (locked, locked_delta):
        with pytest.raises(duckdb.Error, match=r"disabled|locked|does not exist"):
            connection.execute(sql).fetchall()


@pytest.mark.parametrize("attack", FAILS_ANYWAY)
def test_an_attack_that_needs_more_fails_too(
    attack: str, words: dict[str, str], locked: duckdb.DuckDBPyConnection
) -> None:
    with pytest.raises(duckdb.Error, match=r"disabled|locked|does not exist"):
        locked.execute(attack.format(**words)).fetchall()


@pytest.mark.parametrize("sql", REFUSED_BY_KIND)
def test_only_one_statement_that_reads_is_run(sql: str, locked: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(InvalidInput, match=r"is not allowed|one statement"):
        engine.check(locked, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "FROM events",
        "VALUES (1)",
        "DESCRIBE events",
        "SUMMARIZE events",
        "SHOW TABLES",
        "EXPLAIN SELECT 1",
        "WITH x AS (SELECT 1 AS a) SELECT * FROM x",
        "PIVOT events ON channel USING count(*)",
    ],
)
def test_all_that_reads_is_run(sql: str, locked: duckdb.DuckDBPyConnection) -> None:
    engine.check(locked, sql)
    assert locked.execute(sql).fetchall()


def test_the_process_is_locked_as_well(place: Place, words: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="file system operations are disabled"):
        query(place, "SELECT * FROM read_text('{file}')".format(**words))
    with pytest.raises(InvalidInput, match="DELETE is not allowed"):
        query(place, "DELETE FROM events")


Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shell(file: Place, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Runs `holdfast query` in this process."""

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["query", "--warehouse", file.url, *arguments])
        return int(ended.value.code or 0), *capsys.readouterr()

    return call


def test_the_command_prints_a_table(shell: Shell) -> None:
    code, out, err = shell("SELECT id, 1234 AS number, NULL AS nothing FROM events ORDER BY id LIMIT 1")
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [["id", "number", "nothing"], ["a", "1234", "NULL"]]


def test_the_command_prints_json_and_says_that_there_is_more(shell: Shell) -> None:
    code, out, err = shell("SELECT id FROM events ORDER BY id", "--limit", "2", "--json")
    told = json.loads(out)
    assert (code, told["rows"], told["truncated"]) == (0, [["a"], ["b"]], True)
    assert "more rows than these 2" in err


def test_the_command_reads_a_file(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "q.sql").write_text("-- how many\nSELECT count(*) AS n FROM events;\n")
    code, out, _ = shell("--file", str(tmp_path / "q.sql"))
    assert (code, out.split()) == (0, ["n", "3"])


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["SELEC 1"], 2, "syntax error"),
        (["SELECT 1", "--file", "x.sql"], 2, "not both"),
        (["--file", "/nowhere/x.sql"], 2, "cannot be read"),
        (["SELECT 1", "--timeout", "0s"], 2, "no time"),
        (["SELECT 1", "--memory", "much"], 2, "not a size"),
        (["SELECT 1", "--warehouse", "duckdb:///nowhere/x.duckdb"], 1, "there is no warehouse"),
        (["SELECT 1", "--warehouse", "mysql://x"], 2, "no warehouse for the URL"),
    ],
)
def test_errors_of_the_command_are_one_line_and_a_code(
    shell: Shell, arguments: list[str], code: int, words: str
) -> None:
    found, out, err = shell(*arguments)
    assert (found, out) == (code, "")
    assert words in err
    assert err.count("\n") == 1
