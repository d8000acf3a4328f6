"""Faults: what the models refuse, in words, at its place."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from holdfast.config.config import Config
from holdfast.config.fields import keys_at
from holdfast.config.layers import Layers
from holdfast.config.problems import Path, Problem
from holdfast.config.urls import mask
from holdfast.model.duration import format_duration

_LONGEST_VALUE = 80
_ADVICE = {
    "int_parsing": "write a whole number, such as 1000",
    "int_type": "write a whole number, such as 1000",
    "string_type": "write text; put it in quotes",
    "list_type": "write a list: [first, second], or one '- item' per line",
    "dict_type": "write a mapping: one 'name: value' per line",
    "model_type": "write a mapping: one 'key: value' per line",
}


def faults(error: ValidationError, layers: Layers) -> list[Problem]:
    """One problem for each thing that the models refuse."""
    return [_problem(each, layers) for each in error.errors(include_url=False)]


def contradictions(config: Config, layers: Layers) -> list[Problem]:
    """What is wrong between keys that are each right."""
    return [*_short_window(config, layers), *_open_behind_a_proxy(config, layers)]


def _open_behind_a_proxy(config: Config, layers: Layers) -> list[Problem]:
    if not (config.server.open and config.server.trusted_proxies):
        return []
    path: Path = ("server", "open")
    message = "behind a proxy everybody would be on this machine; leave out server.open or trusted_proxies"
    return [Problem(layers.origin(path), path, message)]


def _short_window(config: Config, layers: Layers) -> list[Problem]:
    """Ids that are forgotten before their events."""
    window = config.sweeper.dedupe_window
    path: Path = ("sweeper", "dedupe_window")
    ages = {name: keep.max_age for name, keep in config.retention.items() if keep.max_age is not None}
    longest = max(ages, key=lambda name: ages[name], default=None)
    if longest is None or ages[longest] <= window:
        return []
    if layers.written(path) != path:
        path = ("retention", longest)
    message = (
        f"ids are forgotten after {format_duration(window)} (sweeper.dedupe_window), before their events, "
        f"which {longest!r} keeps for {format_duration(ages[longest])}: a repeat would be published twice; "
        f"set sweeper.dedupe_window to at least {format_duration(ages[longest])}"
    )
    return [Problem(layers.origin(path), path, message)]


def _problem(error: ErrorDetails, layers: Layers) -> Problem:
    path: Path = error["loc"]
    # Behind a key that is wrong pydantic puts a step of its own, which somebody may also have written.
    about_key = path[-1:] == ("[key]",) and layers.written(path) != path
    path = layers.written(path[:-1] if about_key else path)
    about_key = about_key or error["type"] == "extra_forbidden"
    return Problem(layers.origin(path, key=about_key), path, _message(error, path))


def _message(error: ErrorDetails, path: Path) -> str:
    value, context = _shown(error["input"]), error.get("ctx", {})
    match error["type"]:
        case "value_error":
            return mask(str(context["error"]))
        case "missing":
            return f"the key {error['loc'][-1]!r} is missing; add it"
        case "extra_forbidden":
            return f"unknown key, with the value {value}; {_instead(path)}"
        case "literal_error":
            return f"{value} is not known here; write {context['expected']}"
        case "greater_than_equal":
            return f"{value} is too small; write at least {context['ge']}"
        case "less_than_equal":
            return f"{value} is too large; write at most {context['le']}"
        case kind:
            return f"{value} is of the wrong kind; {_ADVICE.get(kind, error['msg'])}"


def _instead(path: Path) -> str:
    known = keys_at(path[:-1])
    close = get_close_matches(str(path[-1]), known, 1)
    return f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"


def _shown(value: Any) -> str:
    try:
        text = mask(repr(value))
    except (ValueError, RecursionError):  # Python prints no integer of more than 4300 digits
        return f"a value of the type {type(value).__name__} that is too large"
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
