"""Loading: the file, the environment over it, flags over both; then one check of the whole."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path as File
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from holdfast.config.config import Config, Section
from holdfast.config.fields import keys_at
from holdfast.config.layers import DEFAULT, ConfigProblem, InvalidConfig, Layers, Path, ValueOrigin, show_path
from holdfast.config.sources import ignored_variables, read_file, variables
from holdfast.model.duration import format_duration
from holdfast.model.redact import mask

log = logging.getLogger(__name__)

FILE = "HOLDFAST_CONFIG"
FALLBACK = "DATABASE_URL"
_warned: set[str] = set()
"""Variables that were warned about: once in a process is enough."""
# What holds where neither a store nor a file is named: the private store is whole by itself. Everything on it
# is archived into a folder, and put into a DuckDB file, as far as what that takes is installed.
EMBEDDED = ValueOrigin("default", "embedded default")
EVERYTHING = ">"
ARCHIVER = {
    "streams": [
        {"stream": EVERYTHING, "destination": "folder", "path": ".holdfast/cold", "batch_timeout": "15s"}
    ]
}
INGEST = {"channels": [EVERYTHING], "validation": {EVERYTHING: {"payload": "any"}}}
_LONGEST_VALUE = 80
_ADVICE = {
    "int_parsing": "write a whole number, such as 1000",
    "int_type": "write a whole number, such as 1000",
    "string_type": "write text; put it in quotes",
    "list_type": "write a list: [first, second], or one '- item' per line",
    "dict_type": "write a mapping: one 'name: value' per line",
    "model_type": "write a mapping: one 'key: value' per line",
}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration, and where its values come from."""

    config: Config
    layers: Layers


class Setting(NamedTuple):
    """One value. Secrets in URLs are masked."""

    key: str
    value: Any
    origin: ValueOrigin


def load(
    file: str | os.PathLike[str] | None = None,
    *,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Loaded:
    """The effective configuration, or `InvalidConfig` with every problem.

    Without a file: the one that `HOLDFAST_CONFIG` names, if any. `flags` go by dotted path, `server.port`;
    those that are None were not given. `DATABASE_URL` counts where nothing else names a store. Where neither
    a store nor a file is named, the embedded defaults hold.
    """
    environ = os.environ if environ is None else environ
    layers, problems = Layers(), []
    named = file or environ.get(FILE)
    if named:
        document = read_file(File(named))
        layers = Layers(document.origin(None), document.data, document.keys, document.values)
        problems += document.problems
    for variable in variables(environ):
        if isinstance(variable, ConfigProblem):
            problems.append(variable)
        else:
            layers.put(*variable)
    _warn(environ)
    _put_flags(layers, flags or {})
    if "url" not in layers.data and environ.get(FALLBACK):
        layers.put(ValueOrigin("environment", FALLBACK), {"url": environ[FALLBACK]})
    if not named and not layers.data.get("url"):
        _put_embedded_defaults(layers)
    return Loaded(_validated(layers, problems), layers)


def check(file: str | os.PathLike[str]) -> Loaded:
    """The file by itself, whatever the environment says."""
    return load(file, environ={})


def _warn(environ: Mapping[str, str]) -> None:
    for name, instead in ignored_variables(environ).items():
        if name not in _warned:
            _warned.add(name)
            log.warning("%s has no effect: %s", name, instead)


def _put_flags(layers: Layers, flags: Mapping[str, Any]) -> None:
    for path, value in flags.items():
        *above, last = path.split(".")
        data = {last: value}
        for step in reversed(above):
            data = {step: data}
        if value is not None:
            layers.put(ValueOrigin("flag", f"--{last}"), data)


def _validated(layers: Layers, problems: list[ConfigProblem]) -> Config:
    try:
        config = Config.model_validate(layers.data)
    except ValidationError as error:
        seen = {problem.path for problem in problems}
        problems = problems + [each for each in _validation_problems(error, layers) if each.path not in seen]
    else:
        problems = problems + _contradictions(config, layers)
        if not problems:
            return config
    raise InvalidConfig(sorted(problems, key=_sort_key))


def _sort_key(problem: ConfigProblem) -> tuple[str, int, int]:
    return problem.origin.name, problem.origin.line or 0, problem.origin.column or 0


def has_spark() -> bool:
    """Whether the pipeline can run here."""
    return find_spec("pyspark") is not None


def _put_embedded_defaults(layers: Layers) -> None:
    """Put the embedded defaults where nothing else says what is archived, or ingested."""
    if not has_spark():
        return
    if not _is_written(layers, ("archiver", "streams")) and not _is_written(layers, ("archival",)):
        layers.put(EMBEDDED, {"archiver": ARCHIVER})
    if not _is_written(layers, ("ingest", "channels")):
        layers.put(EMBEDDED, {"ingest": INGEST})


def _is_written(layers: Layers, path: Path) -> bool:
    return layers.written(path) == path


def settings(loaded: Loaded) -> list[Setting]:
    """Everything that holds, in the order of the reference."""
    return [
        Setting(show_path(path), value, _origin_of(loaded, path))
        for path, value in _leaves(loaded.config, ())
    ]


def _leaves(section: Section, path: Path) -> Iterator[tuple[Path, Any]]:
    dumped = section.model_dump(mode="json", exclude_unset=False)
    for name, value in section:
        below = (*path, name)
        if isinstance(value, Section):
            yield from _leaves(value, below)
        elif isinstance(value, dict) and value:
            yield from (((*below, key), _short(each)) for key, each in value.items())
        elif isinstance(value, list) and value and isinstance(value[0], Section):
            yield from (((*below, place), _short(each)) for place, each in enumerate(value))
        else:
            yield below, dumped[name]


def _short(value: Any) -> Any:
    """An entry of a mapping or list as somebody would write it."""
    if not isinstance(value, Section):
        return value
    written: dict[str, Any] = value.model_dump(mode="json", exclude_unset=True)
    return written["max_age"] if list(written) == ["max_age"] else written


def _origin_of(loaded: Loaded, path: Path) -> ValueOrigin:
    return loaded.layers.origin(path) if loaded.layers.written(path) == path else DEFAULT


def _validation_problems(error: ValidationError, layers: Layers) -> list[ConfigProblem]:
    """One problem for each thing that the models refuse."""
    return [_problem(each, layers) for each in error.errors(include_url=False)]


def _contradictions(config: Config, layers: Layers) -> list[ConfigProblem]:
    """What is wrong between keys that are each right."""
    return [*_short_window(config, layers), *_open_behind_proxy(config, layers)]


def _open_behind_proxy(config: Config, layers: Layers) -> list[ConfigProblem]:
    if not (config.server.open and config.server.trusted_proxies):
        return []
    path: Path = ("server", "open")
    message = "behind a proxy everybody would be on this machine; leave out server.open or trusted_proxies"
    return [ConfigProblem(layers.origin(path), path, message)]


def _short_window(config: Config, layers: Layers) -> list[ConfigProblem]:
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
    return [ConfigProblem(layers.origin(path), path, message)]


def _problem(error: ErrorDetails, layers: Layers) -> ConfigProblem:
    path: Path = error["loc"]
    # Behind a key that is wrong pydantic puts a step of its own, which somebody may also have written.
    about_key = path[-1:] == ("[key]",) and layers.written(path) != path
    path = layers.written(path[:-1] if about_key else path)
    about_key = about_key or error["type"] == "extra_forbidden"
    return ConfigProblem(layers.origin(path, key=about_key), path, _message(error, path))


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
