"""`holdfast chaos controls`: does the judge find what it must find?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import Json, examples
from holdfast.cli.output import say, write_json, write_line, write_table
from holdfast_chaos.cli.run import Backends
from holdfast_chaos.roles import STORES

if TYPE_CHECKING:  # the rig takes long to import, and needs the clients of all stores
    from holdfast_chaos.controls.control import Control, ControlResult

Only = Annotated[str, typer.Option("--only", metavar="LIST", help="Which defects, by name, or all.")]
_SHOWN = {"missed": "MISSED", "convicted": "CONVICTED"}


def controls(backend: Backends = "all", only: Only = "all", as_json: Json = False) -> None:
    """Switch one guard off at a time, and see that the judge finds the loss.

    Each small scenario is played twice on private servers: as it should be, which must be acquitted, and with
    one deliberate defect, which must be found. Ends with 1 where one is missed or a sound one is convicted.
    """
    from holdfast_chaos.controls import CONTROLS, run_controls

    found = asyncio.run(run_controls(_listed(backend), _listed(only), _tell))
    if as_json:
        write_json({"holds": _holds(found), "findings": found})
    else:
        _show(CONTROLS, found)
    if not _holds(found):
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    shown = examples(
        "holdfast chaos controls", "holdfast chaos controls --backend postgres --only unfenced,id-above-last"
    )
    app.command(epilog=shown)(controls)


def _listed(text: str) -> list[str]:
    """The names in a list; none for all."""
    return [] if text == "all" else [each.strip() for each in text.split(",") if each.strip()]


def _tell(finding: ControlResult) -> None:
    say(f"{finding.store}: {finding.control}: {finding.verdict}")


def _holds(found: Sequence[ControlResult]) -> bool:
    return all(finding.convinces for finding in found)


def _show(known: Sequence[Control], found: Sequence[ControlResult]) -> None:
    verdicts = {(each.control, each.store): each.verdict for each in found}
    stores = [store for store in STORES if any(each.store == store for each in found)]
    played = {each.control for each in found}
    write_table(
        ["NAME", "DEFECT", "BREAKS", *map(str.upper, stores)],
        [
            (each.name, each.defect, each.breaks, *_cells(each.name, stores, verdicts))
            for each in known
            if each.name in played
        ],
    )
    for finding in found:
        if finding.verdict != "found":
            write_line(f"{finding.store} {finding.control}: {finding.verdict}: {finding.detail}")
    write_line(_summary(found))


def _cells(name: str, stores: Sequence[str], verdicts: Mapping[tuple[str, str], str]) -> Iterator[str]:
    for store in stores:
        verdict = verdicts.get((name, store), "")
        yield _SHOWN.get(verdict, verdict)


def _summary(found: Sequence[ControlResult]) -> str:
    counts = {verdict: sum(each.verdict == verdict for each in found) for verdict in ("found", *_SHOWN)}
    rest = len(found) - sum(counts.values())
    text = f"{counts['found']} found, {counts['missed']} missed, {counts['convicted']} sound ones convicted"
    return text + (f", {rest} not possible here" if rest else "")
