"""Loading: the file, the environment over it, flags over both; then one check of the whole."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path as File
from typing import Any

from pydantic import ValidationError

from holdfast.config.config import Config
from holdfast.config.document import read
from holdfast.config.embedded import lay_embedded
from holdfast.config.environment import variables, without_meaning
from holdfast.config.faults import contradictions, faults
from holdfast.config.layers import Layers
from holdfast.config.problems import InvalidConfig, Origin, Problem

log = logging.getLogger(__name__)

FILE = "HOLDFAST_CONFIG"
FALLBACK = "DATABASE_URL"
_warned: set[str] = set()
"""Variables that were warned about: once in a process is enough."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration, and where its values come from."""

    config: Config
    layers: Layers


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
        document = read(File(named))
        layers = Layers(document.place(None), document.data, document.keys, document.values)
        problems += document.problems
    for variable in variables(environ):
        if isinstance(variable, Problem):
            problems.append(variable)
        else:
            layers.lay(*variable)
    _warn(environ)
    _lay_flags(layers, flags or {})
    if "url" not in layers.data and environ.get(FALLBACK):
        layers.lay(Origin("environment", FALLBACK), {"url": environ[FALLBACK]})
    if not named and not layers.data.get("url"):
        lay_embedded(layers)
    return Loaded(_validated(layers, problems), layers)


def check(file: str | os.PathLike[str]) -> Loaded:
    """The file by itself, whatever the environment says."""
    return load(file, environ={})


def _warn(environ: Mapping[str, str]) -> None:
    for name, instead in without_meaning(environ).items():
        if name not in _warned:
            _warned.add(name)
            log.warning("%s has no effect: %s", name, instead)


def _lay_flags(layers: Layers, flags: Mapping[str, Any]) -> None:
    for path, value in flags.items():
        *above, last = path.split(".")
        data = {last: value}
        for step in reversed(above):
            data = {step: data}
        if value is not None:
            layers.lay(Origin("flag", f"--{last}"), data)


def _validated(layers: Layers, problems: list[Problem]) -> Config:
    try:
        config = Config.model_validate(layers.data)
    except ValidationError as error:
        seen = {problem.path for problem in problems}
        problems = problems + [each for each in faults(error, layers) if each.path not in seen]
    else:
        problems = problems + contradictions(config, layers)
        if not problems:
            return config
    raise InvalidConfig(sorted(problems, key=_place))


def _place(problem: Problem) -> tuple[str, int, int]:
    return problem.origin.name, problem.origin.line or 0, problem.origin.column or 0
