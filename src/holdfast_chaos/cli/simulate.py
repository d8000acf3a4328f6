"""`holdfast chaos simulate`: thousands of histories of our own decisions, each repeatable from its seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.options import Json, examples
from holdfast.cli.output import write_json, write_line, write_table
from holdfast.model.errors import InvalidInput

if TYPE_CHECKING:  # the WAL brings pyarrow
    from holdfast_chaos.simulation import SeedsOutcome

Seeds = Annotated[int, typer.Option("--seeds", min=1, help="How many.")]
First = Annotated[int, typer.Option("--seed", min=0, help="The first one; the others follow it.")]
Worlds = Annotated[
    list[str] | None,
    typer.Option("--world", metavar="NAME", help="jobs, retention or wal; may be repeated. Default: all."),
]
DefectName = Annotated[
    str | None,
    typer.Option("--defect", metavar="NAME", help="Leave one guard out, and see whether that is found."),
]
Trace = Annotated[bool, typer.Option("--trace", help="Print everything that happens from the one seed.")]


def simulate(
    seeds: Seeds = 1000,
    seed: First = 0,
    worlds: Worlds = None,
    defect: DefectName = None,
    trace: Trace = False,
    as_json: Json = False,
) -> None:
    """Play lifecycle, retry, retention and WAL decisions in random orders under a virtual clock.

    Everything follows from the seed: who acts, who crashes, what is lost on the way, when time passes. The
    first violation ends it, with the smallest history that shows it. 0: every invariant held. 1: one did not.
    """
    from holdfast_chaos import simulation

    names = tuple(worlds or simulation.WORLDS)
    if trace:
        if len(names) != 1 or seeds != 1:
            raise InvalidInput("--trace tells one story; add --seeds 1 and one --world")
        for line in simulation.trace(names[0], seed, defect=defect):
            write_line(line)
        return
    outcome = simulation.simulate(range(seed, seed + seeds), names, defect=defect)
    write_json(_document(outcome, seed)) if as_json else _show(outcome)
    if outcome.found is not None:
        raise typer.Exit(1)


def _document(outcome: SeedsOutcome, seed: int) -> dict[str, Any]:
    return {
        "first_seed": seed,
        "seeds": outcome.seeds,
        "steps": outcome.steps,
        "cpu_seconds": round(outcome.seconds, 3),
        "steps_per_second": round(outcome.steps_per_second),
        "seeds_per_minute": round(outcome.seeds_per_minute),
        "kinds": outcome.kinds,
        "happenings": outcome.happenings,
        "violation": outcome.found,
    }


def _show(outcome: SeedsOutcome) -> None:
    write_table(
        ("WORLD", "STEPS", "CRASHES", "ANSWERS LOST", "REFUSED"),
        [
            (name, kinds.total(), kinds["crash"], happened["answer lost"], _refused(happened))
            for name, kinds in outcome.kinds.items()
            for happened in [outcome.happenings[name]]
        ],
    )
    found = outcome.found
    if found is not None:
        for line in found.history:
            write_line(f"    {line}")
        write_line(f"VIOLATED in {found.world}, seed {found.seed}: {found.invariant}: {found.message}")
        return
    speed = f"{outcome.steps_per_second:,.0f} steps a second, {outcome.seeds_per_minute:,.0f} seeds a minute"
    write_line(f"holds: {outcome.seeds:,} seeds, {outcome.steps:,} steps, {speed}")


def _refused(happened: dict[str, int]) -> int:
    """What came too late, or twice, and changed nothing."""
    return sum(count for name, count in happened.items() if "refused" in name)


def register(app: typer.Typer) -> None:
    """Add the command to the group."""
    shown = examples(
        "holdfast chaos simulate --seeds 5000",
        "holdfast chaos simulate --seed 4711 --seeds 1 --world jobs --trace",
        "holdfast chaos simulate --defect unfenced",
    )
    app.command(epilog=shown)(simulate)
