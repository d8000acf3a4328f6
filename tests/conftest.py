"""Real servers for the whole suite: one PostgreSQL for the session, one fresh database for each test."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from itertools import count

import hypothesis
import psycopg
import pytest

import holdfast
from holdfast import failpoints
from holdfast.embedded import Postgres

# The same examples in every run: a failure that comes and goes helps nobody.
hypothesis.settings.register_profile("holdfast", derandomize=True, database=None, deadline=None)
hypothesis.settings.load_profile("holdfast")

TEMPLATE = "holdfast_template"
MEMORY, ENOUGH = "/dev/shm", 4 << 30  # noqa: S108 - the server's folder in it is private


# What is dear to start, and therefore started by one of the processes that share the tests.
DEAR = ("spark", "cluster")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Two processes share the tests by file, except that all tests with Spark stay together."""
    for item in items:
        dear = next((name for name in DEAR if name in getattr(item, "fixturenames", ())), None)
        item.add_marker(pytest.mark.xdist_group(dear or str(item.path)))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The session's server. It never waits for a disk, and lives in memory where there is enough: no ordinary
    test cuts the power, and those that do start servers of their own with the durable settings."""
    settings = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "512MB"}
    with pytest.MonkeyPatch.context() as patch:
        if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ENOUGH:
            patch.setattr(tempfile, "tempdir", MEMORY)
        server = Postgres(settings=settings).start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def admin(postgres: Postgres) -> Iterator[psycopg.Connection]:
    """A connection that creates and drops databases."""
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="session")
def template(postgres: Postgres) -> str:
    """A migrated, empty database that the others are copied from: some 20 ms instead of a migration."""
    with holdfast.connect_sync(postgres.create_database(TEMPLATE)):
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
        admin.execute(f"CREATE DATABASE {made[-1]} TEMPLATE {template}")
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
