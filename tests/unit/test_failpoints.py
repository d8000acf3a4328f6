"""Failpoints: what each action does, what is refused, and that every point in the code is a known one."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import failpoints
from holdfast.failpoints import KNOWN, VARIABLE, FailpointError

POINT = "worker.after_claim"
SOURCES = Path(failpoints.__file__).parent


@pytest.fixture(autouse=True)
def _all_off() -> Iterator[None]:
    failpoints.clear()
    yield
    failpoints.clear()


def run(code: str, variable: str = "") -> "subprocess.CompletedProcess[str]":
    """Run code that has `failpoints` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", f"from holdfast import failpoints\n{code}"],
        env=os.environ | {VARIABLE: variable},
        capture_output=True,
        text=True,
    )


def test_nothing_happens_when_off() -> None:
    for name in KNOWN:
        failpoints.hit(name)


def test_raise() -> None:
    failpoints.activate(POINT, "raise")
    failpoints.hit("worker.after_ack")
    with pytest.raises(FailpointError, match=POINT):
        failpoints.hit(POINT)


def test_a_callable_is_called_with_every_hit() -> None:
    hits: list[str] = []
    failpoints.activate(POINT, lambda: hits.append("hit"))
    failpoints.hit(POINT)
    failpoints.hit(POINT)
    assert len(hits) == 2


def test_after_skips_the_first_hits() -> None:
    failpoints.activate(POINT, "raise", after=2)
    failpoints.hit(POINT)
    failpoints.hit(POINT)
    for _ in range(2):
        with pytest.raises(FailpointError):
            failpoints.hit(POINT)


def test_activating_again_counts_anew() -> None:
    for _ in range(2):
        failpoints.activate(POINT, "raise", after=1)
        failpoints.hit(POINT)


def test_deactivate() -> None:
    failpoints.activate(POINT, "raise")
    failpoints.deactivate(POINT)
    failpoints.deactivate(POINT)
    failpoints.hit(POINT)


def test_active_ends_with_its_block() -> None:
    with pytest.raises(FailpointError), failpoints.active(POINT, "raise"):
        failpoints.hit(POINT)
    failpoints.hit(POINT)


def test_active_can_skip_hits() -> None:
    with failpoints.active(POINT, "raise", after=1):
        failpoints.hit(POINT)
        with pytest.raises(FailpointError):
            failpoints.hit(POINT)


def test_kill_is_a_death_without_a_last_word() -> None:
    done = run(
        f"""
        try:
            failpoints.activate("{POINT}", "kill")
            failpoints.hit("{POINT}")
        finally:
            print("survived")
    """.replace("\n        ", "\n")
    )
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == ""


def test_stop_waits_for_sigcont() -> None:
    code = f"from holdfast import failpoints; failpoints.hit({POINT!r}); print('went on')"
    variable = {VARIABLE: f"{POINT}=stop"}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | variable, stdout=subprocess.PIPE
    ) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        os.kill(process.pid, signal.SIGCONT)
        assert process.communicate()[0] == b"went on\n"
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("variable", "outcome"),
    [
        ("", "passed"),
        (" ; ", "passed"),
        (f"{POINT}=raise", "raised at 0"),
        (f"{POINT}=raise:2", "raised at 2"),
        (f"worker.after_ack=kill; {POINT}=raise:1;", "raised at 1"),
    ],
)
def test_the_environment(variable: str, outcome: str) -> None:
    code = f"""
for number in range(4):
    try:
        failpoints.hit("{POINT}")
    except failpoints.FailpointError:
        print("raised at", number)
        break
else:
    print("passed")
"""
    assert run(code, variable).stdout.strip() == outcome


@pytest.mark.parametrize(
    "value", [POINT, f"{POINT}=", f"{POINT}=explode", f"{POINT}=kill:", f"{POINT}=kill:-1"]
)
def test_a_malformed_environment_is_refused(value: str) -> None:
    done = run("", value)
    assert done.returncode == 1
    assert f"ValueError: {VARIABLE}: {value!r} is not of the form" in done.stderr


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown failpoint 'worker\.typo': .*worker\.after_claim"):
        failpoints.activate("worker.typo", "raise")
    assert "unknown failpoint 'typo'" in run("", "typo=kill").stderr


def test_an_unknown_action_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown action 'explode'"):
        failpoints.activate(POINT, "explode")  # type: ignore[arg-type]


def test_a_negative_number_of_hits_is_refused() -> None:
    with pytest.raises(ValueError, match="after=-1"):
        failpoints.activate(POINT, "raise", after=-1)


def test_every_point_in_the_code_is_known() -> None:
    text = "\n".join(path.read_text() for path in SOURCES.rglob("*.py"))
    assert set(re.findall(r'failpoints\.hit\(\s*"([^"]*)"', text)) <= set(KNOWN)


def test_every_point_in_the_code_is_named_by_a_literal() -> None:
    """Otherwise the test above would not see it."""
    for path in SOURCES.rglob("*.py"):
        assert not re.findall(r'failpoints\.hit\((?!\s*")', path.read_text()), path
