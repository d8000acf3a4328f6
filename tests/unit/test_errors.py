"""The error tree, and the public names."""

from __future__ import annotations

import inspect

import pytest

import holdfast
from holdfast.model import errors

TREE = {
    "HoldfastError": Exception,
    "InvalidInput": errors.HoldfastError,
    "InvalidName": errors.InvalidInput,
    "InvalidPolicy": errors.InvalidInput,
    "TooLarge": errors.InvalidInput,
    "NotFound": errors.HoldfastError,
    "IdConflict": errors.HoldfastError,
    "Outdated": errors.HoldfastError,
    "LeaseLost": errors.HoldfastError,
    "LockLost": errors.HoldfastError,
    "DataLost": errors.HoldfastError,
    "ObjectConflict": errors.HoldfastError,
    "Damaged": errors.HoldfastError,
    "Incompatible": errors.HoldfastError,
    "Terminal": errors.HoldfastError,
    "InvalidData": errors.Terminal,
    "Snooze": errors.HoldfastError,
    "Transient": errors.HoldfastError,
    "Overloaded": errors.Transient,
    "Unavailable": errors.Transient,
    "TooManyConnections": errors.Unavailable,
}


def test_the_tree_is_the_drawn_one() -> None:
    found = {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, Exception)
    }
    assert {name: kind.__bases__[0] for name, kind in found.items()} == TREE
    drawing = errors.__doc__ or ""
    assert all(name in drawing for name in TREE)


def test_errors_are_also_what_python_calls_them() -> None:
    assert issubclass(errors.InvalidInput, ValueError)
    assert issubclass(errors.NotFound, LookupError)


def test_what_helps_to_repeat_is_transient_and_nothing_else() -> None:
    transient = {name for name in TREE if issubclass(getattr(errors, name), errors.Transient)}
    assert transient == {"Transient", "Overloaded", "Unavailable", "TooManyConnections"}


def test_a_conflict_names_its_ids() -> None:
    error = errors.IdConflict("orders", [f"o-{n}" for n in range(7)])
    assert (error.channel, error.ids) == ("orders", tuple(f"o-{n}" for n in range(7)))
    assert "'orders'" in str(error)
    assert "'o-4', …" in str(error)
    assert "o-5" not in str(error)


def test_a_lost_lease_names_its_jobs() -> None:
    error = errors.LeaseLost(["1", "2"])
    assert error.jobs == ("1", "2")
    assert "1, 2" in str(error)


def test_a_snooze_knows_its_delay() -> None:
    assert errors.Snooze("30s").delay == "30s"


@pytest.mark.parametrize("name", TREE)
def test_every_error_says_when_it_is_raised(name: str) -> None:
    assert getattr(errors, name).__doc__


def test_the_public_names_are_pinned() -> None:
    assert holdfast.__all__ == [
        "App",
        "Bus",
        "Event",
        "Exponential",
        "HoldfastError",
        "IdConflict",
        "InvalidInput",
        "Job",
        "LeaseLost",
        "NotFound",
        "Overloaded",
        "Receipt",
        "Snooze",
        "Terminal",
        "Transient",
        "Unavailable",
        "connect",
        "connect_sync",
    ]
    assert all(hasattr(holdfast, name) for name in holdfast.__all__)
