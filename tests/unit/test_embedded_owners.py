"""Owners of embedded servers: those that die, and those that share one."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
import redis
from servers import SERVERS, is_alive, pid_of, python, read_line, wait_for

from holdfast.embedded import Postgres, Redis, Server, files, guard

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
    return files.is_locked(folder / "server.lock")


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


@pytest.mark.concurrency
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
