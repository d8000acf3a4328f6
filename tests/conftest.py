"""Real servers for the whole suite, one of each kind for the session: a fresh database for each test, and the
others emptied before it."""

import os
import re
import signal
import sys
import zlib
from collections.abc import Callable, Generator, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import hypothesis
import nats
import psycopg
import pytest
import redis
from xdist.scheduler import LoadScopeScheduling

import holdfast
from holdfast import failpoints
from holdfast.backends.postgres import pool
from holdfast.embedded import Nats, Postgres, Redis
from kit import NO_OVERLAP, in_memory

# The same examples in every run: a failure that comes and goes helps nobody.
hypothesis.settings.register_profile("holdfast", derandomize=True, database=None, deadline=None)
hypothesis.settings.load_profile("holdfast")


def _give_children_their_signals() -> None:
    """Where we were started with a signal ignored, as by `nohup make test &`, programs that tests start would
    ignore it too. A handler that does nothing keeps us deaf to it, and ends with the exec of a child."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


_give_children_their_signals()

# The JVMs here live for a minute at most: a second compiler and parallel collectors cost more than they save.
# Classes come from an archive where `make test` made one.
CLASSES = Path(sys.prefix) / "spark.jsa"
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    + (f' "-XX:SharedArchiveFile={CLASSES}"' if CLASSES.exists() else ""),
)

TEMPLATE = "holdfast_template"


ROOT = Path(__file__).parent.parent
JVM = (
    "tests/cli/test_cli_demo.py",
    "tests/cli/test_cli_spark_interrupt.py",
    "tests/pipeline/test_session_signals.py",
    "tests/server/test_children.py",
    "tests/server/test_orphans.py",
)
"""Files whose tests start a JVM in a program of their own."""


@cache
def has_spark(file: str) -> bool:
    """Whether the tests of a file need Spark. What needs none is shared out to all processes."""
    text = (ROOT / file).read_text() if file.startswith("tests/pipeline/") else ""
    return file in JVM or re.search(r"\b(drive_)?spark\b", text) is not None


class ByFile(LoadScopeScheduling):
    """The processes share the tests by file, except that only one of them has Spark: it takes all cores."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "spark" if has_spark(file) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--repeat", type=int, default=1, metavar="N", help="each test of concurrency N times")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    times = metafunc.config.getoption("--repeat")
    if times > 1 and metafunc.definition.get_closest_marker("concurrency"):
        metafunc.fixturenames.append("_turn")
        metafunc.parametrize("_turn", range(times), ids=lambda turn: f"turn{turn}")


def deal(items: list[pytest.Item]) -> None:
    """Of a test with the mark `dealt`, the usual run has each case on one store, in turn: on the others it is
    slow. The first turn follows from the test's name."""
    tests: dict[str, dict[str, list[pytest.Function]]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and (mark := item.get_closest_marker("dealt")):
            by = mark.args[0] if mark.args else "store"
            others = {name: value for name, value in item.callspec.params.items() if name != by}
            tests.setdefault(item.originalname, {}).setdefault(str(others), []).append(item)
    for name, cases in tests.items():
        for turn, found in enumerate(cases.values(), zlib.crc32(name.encode())):
            chosen = found[turn % len(found)]
            for item in found:
                if item is not chosen:
                    item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark comes first, since it takes longest, and the conformance suite last, so that the processes end
    together: its files are many and short."""
    deal(items)
    items.sort(
        key=lambda item: (
            not has_spark(item.nodeid.partition("::")[0]),
            item.path.parent.name == "conformance",
        )
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test logged goes from process to process, and lone surrogates, which some tests log, cannot."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections
    ]
    return report


STORES = ("postgres.session", "postgres.log", "redis.session", "nats.wire.connection", "nats.wire.batches")


@pytest.fixture(scope="session", autouse=True)
def _patience() -> Iterator[None]:
    """A machine that stalls for some seconds is no store that is away. Tests of patience set their own."""
    with pytest.MonkeyPatch.context() as patch:
        for module in STORES:
            patch.setattr(f"holdfast.backends.{module}.PATIENCE", 30.0)
        patch.setattr("holdfast.backends.redis.session._CONNECTING", 30.0)
        patch.setitem(pool.ALERT, "connect_timeout", 30)
        patch.setattr("holdfast.bus.publish._PATIENCE", 30.0)
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The session's server. It never waits for a disk, like the others here: no ordinary test cuts the power,
    and those that do start servers of their own with the durable settings."""
    settings = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "512MB"}
    with in_memory():
        server = Postgres(settings=settings).start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    """The session's Redis."""
    with Redis(appendfsync="no") as server:
        yield server


@pytest.fixture
def empty_redis(redis_server: Redis) -> str:
    """The URL of the session's Redis, with nothing in it."""
    with redis.Redis.from_url(redis_server.url, socket_timeout=60) as client:
        client.flushall()
    return redis_server.url


@pytest.fixture(scope="session")
def nats_server() -> Iterator[Nats]:
    """The session's NATS: in memory, since each batch makes and removes a folder."""
    with in_memory():
        server = Nats(sync_interval="2m").start()
    yield server
    server.stop()


@pytest.fixture
async def empty_nats(nats_server: Nats) -> str:
    """The URL of the session's NATS, without any stream."""
    async with await nats.connect(nats_server.url) as client:
        for each in await client.jetstream().streams_info():
            await client.jetstream().delete_stream(each.config.name or "")
    return nats_server.url


@pytest.fixture(scope="session")
def admin(postgres: Postgres) -> Iterator[psycopg.Connection]:
    """A connection that creates and drops databases."""
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="session")
def template(postgres: Postgres) -> str:
    """A migrated, empty database that the others are copied from: some 20 ms instead of a migration.
    It refuses rows that overlap."""
    url = postgres.create_database(TEMPLATE)
    with holdfast.connect_sync(url), psycopg.connect(url) as connection:
        connection.execute(NO_OVERLAP)
    return TEMPLATE


@pytest.fixture(scope="session")
def _names() -> Iterator[str]:
    return (f"test_{number}" for number in count(1))


@pytest.fixture
def blank(postgres: Postgres, admin: psycopg.Connection, _names: Iterator[str]) -> Iterator[str]:
    """The URL of an empty database that was never migrated."""
    name = next(_names)
    admin.execute(f"CREATE DATABASE {name}")
    yield postgres.database_url(name)
    admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def new_database(
    postgres: Postgres, admin: psycopg.Connection, template: str, _names: Iterator[str]
) -> Iterator[Callable[[], str]]:
    """Makes a migrated, empty database at each call and answers its URL; all go after the test."""
    made: list[str] = []

    def make() -> str:
        made.append(next(_names))
        admin.execute(f"CREATE DATABASE {made[-1]} TEMPLATE {template} STRATEGY FILE_COPY")
        return postgres.database_url(made[-1])

    yield make
    for name in made:
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database(new_database: Callable[[], str]) -> str:
    """The URL of this test's own database, migrated and empty."""
    return new_database()


@pytest.fixture(autouse=True)
def _no_failpoint_left() -> Iterator[None]:
    yield
    failpoints.clear()
