"""Every pair of verbs at once, on real stores: `python tests/pairs/run.py --store postgres --rounds 20`.

Each pair runs on each kind of consumer. With `--resume FILE` every finished round is remembered, and an
interrupted run goes on where it was; what was run with other code counts for nothing. Ends with 1 on a
violation.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "pairs")]

from rounds import SIDES, Process, Round, Side, arena, start  # noqa: E402
from selection import STORES, everything  # noqa: E402

from holdfast_chaos.checks import Violation  # noqa: E402
from holdfast_chaos.final_state import ServerUnderTest  # noqa: E402

_PER_STORE = 20
"""Rounds on one store before an empty one takes its place: what earlier ones left slows the checks."""


@dataclass
class Result:
    """One round of a pair, as it is remembered."""

    code: str
    store: str
    first: str
    second: str
    kind: str
    seed: int
    violations: list[str] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, ...]:
        return self.code, self.store, self.first, self.second, self.kind, str(self.seed)


def code(store: str) -> str:
    """A digest of everything that the results of one store depend on."""
    source, rig = ROOT / "src" / "holdfast", ROOT / "src" / "holdfast_chaos"
    folders = [source / "model", rig, source / "backends" / store, ROOT / "tests" / "pairs"]
    files = [source / "contracts.py", *(path for folder in folders for path in folder.rglob("*"))]
    digest = hashlib.sha256()
    for path in sorted(path for path in files if path.suffix in (".py", ".sql", ".lua")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class Memory:
    """Results of rounds, in a file if there is one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path and path.exists() else []
        self.results = {result.key: result for result in (Result(**json.loads(line)) for line in lines)}

    def add(self, result: Result) -> None:
        self.results[result.key] = result
        if self._path:
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")


async def play(
    name: str,
    store: ServerUnderTest,
    rounds: Sequence[tuple[Round, int]],
    sides: Sequence[Side] = (),
    turns: int = 6,
) -> AsyncIterator[tuple[Round, int, list[Violation]]]:
    """Rounds with their seeds, on empty stores; a round that itself fails is a violation."""
    for some in _parts(rounds, _PER_STORE):
        async with arena(name, store, sides) as ground:
            ground.turns = turns
            for each, seed in some:
                yield each, seed, await ground.play(each, seed)


def _parts(rounds: Sequence[tuple[Round, int]], size: int) -> Iterator[Sequence[tuple[Round, int]]]:
    return (rounds[at : at + size] for at in range(0, len(rounds), size))


async def run(name: str, arguments: argparse.Namespace, memory: Memory) -> list[Result]:
    """What is left of the matrix of one store; answers all of its results."""
    version, wanted = code(name), set(arguments.only or ())
    matrix = [
        (each, arguments.seed + turn)
        for turn in range(arguments.rounds)
        for each in everything(name)
        if not wanted or wanted & {each.first, each.second}
    ]
    keys = {Result(version, name, each.first, each.second, str(each.kind), seed).key for each, seed in matrix}
    left = [
        (each, seed)
        for each, seed in matrix
        if Result(version, name, each.first, each.second, str(each.kind), seed).key not in memory.results
    ]
    random.Random(arguments.seed).shuffle(left)  # who stops early has seen something of everything
    print(f"{name}: {len(matrix)} rounds, {len(left)} of them left", file=sys.stderr)  # noqa: T201
    with ExitStack() as stack:
        store = start(name)
        stack.callback(store.server.stop)
        sides = [] if arguments.tasks else [Process() for _ in range(2 * SIDES)]
        for process in sides:
            stack.callback(process.end)
        async for each, seed, found in play(name, store, left, sides, arguments.turns):
            lines = [f"{violation.invariant}: {violation.message}" for violation in found]
            memory.add(Result(version, name, each.first, each.second, str(each.kind), seed, lines))
            for line in lines[:3]:
                print(f"{name}: {each}, seed {seed}: {line}", file=sys.stderr)  # noqa: T201
    return [result for key, result in memory.results.items() if key in keys]


def table(results: Sequence[Result]) -> str:
    """For each store and verb: its pairs, its rounds, and how many of these had violations; then every pair
    that has one."""
    lines = [f"{'store':<10}{'verb':<26}{'pairs':>6}{'rounds':>8}{'with violations':>17}"]
    for store in dict.fromkeys(result.store for result in results):
        mine = [result for result in results if result.store == store]
        for verb in dict.fromkeys(name for result in mine for name in (result.first, result.second)):
            of = [result for result in mine if verb in (result.first, result.second)]
            bad = sum(1 for result in of if result.violations)
            count = len({(result.first, result.second) for result in of})
            lines.append(f"{store:<10}{verb:<26}{count:>6}{len(of):>8}{bad:>17}")
        bad = sum(1 for result in mine if result.violations)
        count = len({(result.first, result.second) for result in mine})
        lines.append(f"{store:<10}{'all':<26}{count:>6}{len(mine):>8}{bad:>17}")
    worst = Counter((each.store, each.first, each.second) for each in results if each.violations)
    for (store, first, second), count in worst.most_common():
        lines.append(f"{store}: {first} beside {second}: {count} rounds with violations")
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", action="append", choices=STORES, help="repeatable; all without it")
    parser.add_argument("--rounds", type=int, default=1, help="of each pair and kind of consumer")
    parser.add_argument("--turns", type=int, default=6, help="how often each side acts in a round")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="remember what is done, and go on from there"
    )
    parser.add_argument("--only", action="append", metavar="VERB", help="only its pairs; repeatable")
    parser.add_argument("--tasks", action="store_true", help="sides are tasks of this process, not processes")
    parser.add_argument("--json", action="store_true", help="every round instead of the table")
    arguments = parser.parse_args(words)
    memory, results = Memory(arguments.resume), list[Result]()
    for name in arguments.store or STORES:
        results += asyncio.run(run(name, arguments, memory))
    shown: Any = json.dumps([asdict(result) for result in results]) if arguments.json else table(results)
    print(shown)  # noqa: T201
    return 1 if any(result.violations for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
