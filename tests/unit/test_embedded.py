"""The embedded servers, with real processes: they answer, survive, and leave nothing behind."""

import asyncio
import os
import select
import socket
import stat
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import nats
import psycopg
import pytest
import redis
from pyarrow import fs  # type: ignore[import-untyped]
from servers import LIGHT, SERVERS, is_alive, pid_of, python, read_line, wait_for

from holdfast.embedded import (
    S3,
    Nats,
    Postgres,
    Redis,
    Server,
    ServerError,
    ports,
)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


# One server, one owner


@pytest.fixture
def no_umask() -> Iterator[None]:
    """The worst one."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """What another user could read, list or enter; files come and go meanwhile."""
    found = [str(folder)]
    for place, folders, files in os.walk(folder):
        for name in folders + files:
            with suppress(FileNotFoundError):
                mode = os.lstat(os.path.join(place, name)).st_mode
                if mode & 0o077 and not stat.S_ISLNK(mode):
                    found.append(os.path.join(place, name))
    return found if folder.stat().st_mode & 0o077 else found[1:]


@pytest.mark.usefixtures("no_umask")
@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_answers_and_leaves_nothing_behind(kind: type[Server]) -> None:
    with kind() as server:
        wait_for(server.ready)
        folder, pid = server.folder, pid_of(server)
        assert str(server.port) in server.url
        assert (folder / "server.log").stat().st_size > 0
        assert stat.S_IMODE((folder / "secret").stat().st_mode) == 0o600
        assert open_to_others(folder) == []
    assert not server.running
    assert not folder.exists()
    assert not is_alive(pid)
    assert ports.is_free(server.port)


@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_listens_on_the_loopback_interface_only(kind: type[Server]) -> None:
    with kind() as server:
        addresses = {
            str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
        }
        for address in addresses - {"127.0.0.1", "127.0.1.1"}:
            for port in server._ports:
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection((address, port), timeout=2)


@pytest.mark.parametrize("kind", LIGHT)
def test_no_secret_on_a_command_line(kind: type[Server]) -> None:
    with kind() as server:
        shown = subprocess.check_output(["ps", "-A", "-o", "args="], text=True)
        assert server.secret not in shown


def test_before_the_start_there_is_no_url() -> None:
    with pytest.raises(ServerError, match="Redis has not been started"):
        _ = Redis().url


def test_postgres_keeps_what_was_committed_over_kill_and_restart() -> None:
    with Postgres(settings={"work_mem": "5MB"}) as server:
        url = server.url
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE t AS SELECT 1 AS x")
        server.kill()
        assert not server.running
        server.start()
        server.restart()
        assert server.url == url
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT x FROM t").fetchall() == [(1,)]
            assert connection.execute("SHOW work_mem").fetchone() == ("5MB",)


def test_postgres_is_durable(postgres: Postgres) -> None:
    with psycopg.connect(postgres.url) as connection:
        for name in ("fsync", "synchronous_commit", "full_page_writes"):
            assert connection.execute(f"SHOW {name}").fetchone() == ("on",)


def test_postgres_wants_the_password(postgres: Postgres) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(postgres.url.replace(postgres.secret, "guess"))


def test_databases_of_their_own(postgres: Postgres) -> None:
    with psycopg.connect(postgres.create_database("plan b"), autocommit=True) as connection:
        connection.execute("CREATE TABLE t ()")
    with psycopg.connect(postgres.create_database("copy", template="plan b")) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)
    with pytest.raises(ServerError, match='database "copy" already exists'):
        postgres.create_database("copy")


def test_redis_keeps_what_was_written_over_kill_and_restart() -> None:
    with Redis() as server, redis.Redis.from_url(server.url) as client:
        client.set("key", "value")
        server.kill()
        server.start()
        server.restart()
        assert client.get("key") == b"value"
        assert client.config_get("append*") == {
            "appendonly": "yes",
            "appendfsync": "always",
            "appendfilename": "appendonly.aof",
        }


def test_nats_keeps_what_was_published_over_kill_and_restart() -> None:
    async def publish() -> None:
        connection = await nats.connect(server.url)
        stream = connection.jetstream()
        await stream.add_stream(name="S", subjects=["s"])
        await stream.publish("s", b"value")
        await connection.close()

    async def read() -> bytes | None:
        connection = await nats.connect(server.url)
        message = await connection.jetstream().get_msg("S", 1)
        await connection.close()
        return message.data

    with Nats() as server:
        asyncio.run(publish())
        server.kill()
        server.start()
        server.restart()
        assert asyncio.run(read()) == b"value"


def test_s3_keeps_what_was_put_over_a_restart() -> None:
    def client(secret: str) -> fs.S3FileSystem:
        return fs.S3FileSystem(
            access_key=server.access_key,
            secret_key=secret,
            endpoint_override=server.endpoint,
            region=server.region,
        )

    with S3() as server:
        with client(server.secret_key).open_output_stream("bucket/key") as output:
            output.write(b"value")
        server.restart()
        with client(server.secret_key).open_input_stream("bucket/key") as source:
            assert source.read() == b"value"
        with pytest.raises(OSError, match="ACCESS_DENIED"):
            client("guess").open_input_stream("bucket/key")


@pytest.mark.parametrize("kind", LIGHT)
def test_a_paused_server_is_silent_until_it_is_resumed(kind: type[Server]) -> None:
    with kind() as server:
        server.pause()
        assert server.running
        assert not server.ready()
        server.resume()
        wait_for(server.ready)
        server.pause()
        server.restart()
        wait_for(server.ready)


def test_a_pause_reaches_the_sessions_of_postgres(postgres: Postgres) -> None:
    with closing(psycopg.connect(postgres.url)) as connection:
        postgres.pause()
        connection.pgconn.send_query(b"SELECT 1")
        connection.pgconn.flush()
        assert select.select([connection.fileno()], [], [], 0.2)[0] == []
        postgres.resume()
        assert select.select([connection.fileno()], [], [], 10)[0] != []


def test_starting_twice_changes_nothing() -> None:
    with Redis() as server:
        pid = pid_of(server)
        assert server.start() is server
        assert pid_of(server) == pid
    server.stop()


def test_a_server_that_has_started_has_its_pid_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """However soon it answers: whoever kills it would find nobody, or one of long ago."""
    monkeypatch.setattr(Redis, "ready", lambda _: True)
    with Redis() as server:
        former = pid_of(server)
        server.kill()
        assert not is_alive(former)
        server.start()
        assert is_alive(pid_of(server))


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    server = Postgres(tmp_path / "server", settings={"max_connections": "many"})
    with pytest.raises(
        ServerError, match=r'(?s)Postgres in .* ended while it started:.*"max_connections": "many"'
    ):
        server.start()
    assert not server.running


def test_a_server_that_does_not_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Redis, "ready", lambda _: False)
    monkeypatch.setattr(Redis, "start_timeout", 0.3)
    with pytest.raises(
        ServerError, match=r"(?s)did not answer within 0.3 s:.*Ready to accept connections"
    ) as error:
        Redis().start()
    folder = str(error.value).split()[2]
    assert not os.path.exists(folder)


# Folders and ports


def test_a_folder_keeps_its_data_and_its_port(tmp_path: Path) -> None:
    with Redis(tmp_path / "server") as server, redis.Redis.from_url(server.url) as client:
        client.set("key", "value")
    with Redis(tmp_path / "server") as successor, redis.Redis.from_url(successor.url) as client:
        assert successor.url == server.url
        assert client.get("key") == b"value"


def test_a_folder_whose_port_is_taken_gets_another(tmp_path: Path) -> None:
    former = ports.keep(tmp_path, 1)
    with socket.create_server(("127.0.0.1", former[0])), Redis(tmp_path) as server:
        assert server.port != former[0]
    assert ports.keep(tmp_path, 1) == [server.port]


CHOOSE = """
    import secrets, sys
    from holdfast.embedded import ports
    first, choice = iter([int(sys.argv[1])]), secrets.choice
    secrets.choice = lambda span: next(first, None) or choice(span)
    print(ports.choose(1)[0], flush=True)
"""


def test_where_no_port_is_free_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr("holdfast.embedded.ports.RANGE", range(port, port + 1))
        with pytest.raises(
            ServerError, match=rf"Nats cannot start: no free port .* between {port} and {port}"
        ):
            Nats(tmp_path / "nats").start()
    monkeypatch.undo()
    with Nats(tmp_path / "nats") as server:
        assert server.running


def test_the_port_of_a_server_that_is_down_is_given_to_nobody() -> None:
    with Redis() as server:
        server.kill()
        with python(CHOOSE, server.port) as process:
            assert int(read_line(process)) != server.port
        server.start()


def test_two_servers_do_not_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Redis(tmp_path):
        monkeypatch.setattr(Redis, "grace", 0.1)
        with pytest.raises(ServerError, match=f"{tmp_path} is in use by another server"):
            Redis(tmp_path).start()


def test_a_long_log_is_put_aside(tmp_path: Path) -> None:
    with (tmp_path / "server.log").open("wb") as log:
        log.truncate(17 << 20)
    with Redis(tmp_path):
        assert (tmp_path / "server.log.old").stat().st_size == 17 << 20
        assert (tmp_path / "server.log").stat().st_size < 1 << 20


def test_a_cluster_that_was_half_made_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "data.new" / "base").mkdir(parents=True)
    with Postgres(tmp_path) as server:
        wait_for(server.ready)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "data",
        "ports",
        "secret",
        "server.lock",
        "server.log",
    ]
