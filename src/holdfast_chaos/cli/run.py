"""`holdfast chaos run`: break everything, and see whether anything is lost."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import INCOMPLETE, Json, examples
from holdfast.cli.output import say, write_json, write_line, write_table
from holdfast.model.errors import InvalidInput
from holdfast_chaos.roles import STORES
from holdfast_chaos.schedule import FAULTS

if TYPE_CHECKING:  # the rig takes long to import, and needs the clients of all stores
    from holdfast_chaos.report import Report, Summary

Backends = Annotated[
    str, typer.Option("--backend", metavar="LIST", help=f"Which stores: {', '.join(STORES)}, or all.")
]
Chosen = Annotated[
    str,
    typer.Option(
        "--faults", metavar="LIST", help=f"What to do to them: {', '.join(FAULTS)}, or all, or none."
    ),
]
Minutes = Annotated[float, typer.Option("--minutes", min=0.05, help="How long faults go on at the most.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Repeats a run's faults. Default: a new one.")]
Kills = Annotated[
    int | None, typer.Option("--kills", min=1, help="Enough: so many SIGKILLs of processes of each store.")
]
Servers = Annotated[
    int | None, typer.Option("--server-kills", min=1, help="Enough: so many kill -9 of each server.")
]
Pipeline = Annotated[
    bool, typer.Option("--pipeline/--no-pipeline", help="With archiver and ingest, where installed.")
]
Handlers = Annotated[
    str | None,
    typer.Option("--app", metavar="MODULE:APP", help="Your handlers, on their channels, not the rig's own."),
]
Samples = Annotated[
    Path | None,
    typer.Option("--events", metavar="FILE", help="What is published to your handlers: JSON lines of data."),
]
Page = Annotated[Path | None, typer.Option("--page", metavar="FILE", help="Also write the report as a page.")]
Keep = Annotated[Path | None, typer.Option("--keep", metavar="FOLDER", help="Keep histories and logs here.")]
_SHOWN = 10
_COLUMNS = ("STORE", "KILLS", "SERVER", "NETWORK", "PAUSES", "EVENTS", "REFUSED", "DONE", "DEAD", "VERDICT")
_FAULTLESS = ("STORE", "EVENTS", "CLAIMED", "OPERATIONS", "DONE", "DEAD", "CANCELLED", "WAIT", "EXCUSED")
_EXCUSED = "the machine was too slow for too much of it; repeat it on a quieter one"


def run(
    backend: Backends = "all",
    faults: Chosen = "all",
    minutes: Minutes = 1.0,
    seed: Seed = None,
    kills: Kills = None,
    server_kills: Servers = None,
    pipeline: Pipeline = True,
    app: Handlers = None,
    events: Samples = None,
    page: Page = None,
    keep: Keep = None,
    as_json: Json = False,
) -> None:
    """Break everything on private servers, heal it, and check that nothing was lost or doubled.

    Publishers, workers, operators, sweeper, archiver and ingest go on while they are killed, stopped, cut off
    and restarted with their server. The same seed brings the same faults; only moments vary. With `--faults
    none` there are none, and more must hold: nothing comes twice, nothing stalls, nothing fails. Ends with 1
    where an invariant is violated, and shows the history around it; with 4 where none is, but the machine was
    too slow for a run without faults to prove anything.
    """
    from holdfast_chaos import run as rig
    from holdfast_chaos.store_run import Plan

    stores = _chosen("--backend", backend, STORES)
    if faults == "none" and app is not None:
        raise InvalidInput("--faults none has workers of its own; leave --app out, or name a fault")
    plan = Plan(
        seed=secrets.randbelow(10**9) if seed is None else seed,
        faults=frozenset(() if faults == "none" else _chosen("--faults", faults, FAULTS)),
        seconds=minutes * 60,
        kills=kills,
        server_kills=server_kills,
        pipeline=pipeline and app is None and rig.has_pipeline(),
        app=app,
        samples=events,
    )
    say(f"seed {plan.seed}: {minutes:g} min of {', '.join(sorted(plan.faults)) or 'work without faults'}")
    try:
        report = asyncio.run(rig.run(stores, plan, keep, say))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if page is not None:
        _write_page(report, page)
    if as_json:
        write_json(report.to_json())
    else:
        show(report)
    if not report.holds or not report.conclusive:
        raise typer.Exit(INCOMPLETE if report.holds else 1)


def register(app: typer.Typer) -> None:
    shown = examples(
        "holdfast chaos run --minutes 2",
        "holdfast chaos run --backend postgres --faults kill,server --seed 7 --page report.html",
        "holdfast chaos run --faults none --minutes 5",
        "holdfast chaos run --app shop:app --events orders.jsonl --minutes 5",
    )
    app.command(epilog=shown)(run)


def _chosen(option: str, text: str, known: tuple[str, ...]) -> list[str]:
    wanted = list(known) if text == "all" else [each.strip() for each in text.split(",") if each.strip()]
    if not wanted or set(wanted) - set(known):
        raise InvalidInput(f"{option} {text!r}: use all, or some of {', '.join(known)}")
    return wanted


def _write_page(report: Report, page: Path) -> None:
    from holdfast_chaos.report import write_page

    try:
        write_page(report, page)
    except ImportError:
        raise InvalidInput("--page needs Jinja: pip install 'holdfast[server]'") from None
    say(f"written: {page}")


def show(report: Report) -> None:
    """Print a report for people."""
    for name, why in report.impossible.items():
        say(f"{name} was left out: {why}")
    if not report.faults:
        _show_faultless(report)
        return
    write_table(_COLUMNS, [_row(summary) for summary in report.summaries])
    for summary in report.summaries:
        _show_violations(summary)
    if report.unhit:
        write_line(f"never killed at: {', '.join(report.unhit)}")
    what = (
        f"{report.kills} kills, {report.server_kills} of servers, {report.seconds:.0f} s, seed {report.seed}"
    )
    bound = "" if report.bound is None else f"; a kill breaks one in less than {report.bound:.2%} (95 %)"
    write_line(f"every invariant holds: {what}{bound}" if report.holds else f"VIOLATED: {what}")


def _show_faultless(report: Report) -> None:
    write_table((*_FAULTLESS, "VERDICT"), [_faultless_row(summary) for summary in report.summaries])
    for summary in report.summaries:
        _show_violations(summary)
    waited = max((summary.longest_wait for summary in report.summaries), default=0.0)
    what = f"no fault, {report.seconds:.0f} s, longest wait beside an idle worker {waited:.1f} s"
    if report.holds and not report.conclusive:
        write_line(f"no violation, but this proves nothing: {what}; {_EXCUSED}")
    else:
        write_line(f"every invariant holds: {what}" if report.holds else f"VIOLATED: {what}")


def _faultless_row(summary: Summary) -> list[object]:
    states = [summary.states[name] for name in ("done", "dead", "cancelled")]
    counts = (summary.events, summary.claims, summary.operations.total(), *states)
    return [
        summary.store,
        *counts,
        f"{summary.longest_wait:.1f} s",
        f"{summary.excused:.0%}",
        _result(summary),
    ]


def _show_violations(summary: Summary) -> None:
    for violation in summary.violations[:_SHOWN]:
        write_line(f"{summary.store} {violation.invariant}: {violation.message}")
        for line in summary.excerpts.get(violation.message, [])[-_SHOWN:]:
            write_line(f"    {line}")
    for finding in summary.findings[:_SHOWN]:
        write_line(f"{summary.store}: {finding}")


def _row(summary: Summary) -> list[object]:
    network = summary.server_faults.total() - summary.server_kills - summary.server_faults["disk"]
    counts = (summary.killed, summary.server_kills, network, summary.pauses, summary.events, summary.refused)
    return [summary.store, *counts, summary.states["done"], summary.states["dead"], _result(summary)]


def _result(summary: Summary) -> str:
    if summary.holds:
        return "holds" if summary.conclusive else "unproven"
    return f"{len(summary.violations) + len(summary.findings)} violations"
