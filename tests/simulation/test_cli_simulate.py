"""`holdfast chaos simulate`."""

from __future__ import annotations

import json

import typer
from typer.testing import CliRunner

from holdfast.model.errors import InvalidInput
from holdfast_chaos.cli.simulate import register
from holdfast_chaos.simulation import trace

app = typer.Typer()
register(app)


def test_a_run_that_holds_says_so_with_its_figures() -> None:
    answer = CliRunner().invoke(app, ["--seeds", "10", "--seed", "5", "--world", "jobs", "--json"])
    assert answer.exit_code == 0
    told = json.loads(answer.stdout)
    assert (told["first_seed"], told["seeds"], told["violation"]) == (5, 10, None)
    assert told["steps"] >= 2000
    assert told["steps_per_second"] > 0
    assert told["kinds"]["jobs"]["claim"] > 0
    assert told["happenings"]["jobs"]["refused by token"] > 0


def test_a_violation_ends_it_with_the_history_that_shows_it() -> None:
    answer = CliRunner().invoke(app, ["--defect", "unfenced"])
    assert answer.exit_code == 1
    assert "VIOLATED in jobs" in answer.stdout
    assert "!! I5" in answer.stdout
    told = json.loads(CliRunner().invoke(app, ["--defect", "unfenced", "--json"]).stdout)["violation"]
    assert told["invariant"] == "I5"
    assert told["history"]


def test_one_seed_is_told_from_its_beginning() -> None:
    answer = CliRunner().invoke(app, ["--seeds", "1", "--seed", "7", "--world", "retention", "--trace"])
    assert answer.stdout.splitlines() == trace("retention", 7)


def test_a_story_needs_one_seed_and_one_world() -> None:
    answer = CliRunner().invoke(app, ["--trace"])
    assert isinstance(answer.exception, InvalidInput)
