"""Does a test notice? `make mutants` changes one thing at a time, and runs the tests that should fail.

A mutant is killed when a test fails, and survives when none does. Which ones are tried follows from the seed.
With `--resume FILE` every verdict is remembered, and an interrupted run goes on where it was; what was found
with another text of the same file counts for nothing. Ends with 1 where too few are killed: see `--least`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "mutants")]

from mutate import Mutant, mutants  # noqa: E402

SOURCE = ROOT / "src" / "holdfast"
_LONGEST = 1200.0
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Group:
    """Files that the same tests are about."""

    files: tuple[str, ...]
    tests: tuple[str, ...]
    store: str = ""

    def command(self) -> list[str]:
        chosen = ["-k", self.store] if self.store else []
        plain = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", "-n", "2", "--dist=loadfile"]
        return [sys.executable, "-m", "pytest", *plain, *chosen, *self.tests]


GROUPS = {
    "postgres": Group(
        ("backends/postgres/sql/*.sql", "backends/postgres/migrations/*.sql"),
        ("tests/conformance", "tests/postgres", "tests/pairs"),
        "postgres",
    ),
    "redis": Group(
        ("backends/redis/lua/**/*.lua",), ("tests/conformance", "tests/redis", "tests/pairs"), "redis"
    ),
    "nats": Group(("backends/nats/state/*.py",), ("tests/conformance", "tests/nats", "tests/pairs"), "nats"),
    "model": Group(
        ("model/*.py", "upkeep/rules.py"),
        ("tests/unit", "tests/simulation", "tests/conformance"),
        "not redis and not nats",
    ),
}


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant."""

    text: str
    name: str
    group: str
    killed: bool
    by: str
    seconds: float


def digest(mutant: Mutant, source: str) -> str:
    """Tells a mutant of this text of a file from one of another text."""
    return hashlib.sha256(mutant.applied(source).encode()).hexdigest()[:16]


def found(group: Group) -> Iterator[tuple[Mutant, str]]:
    """Return every mutant of a group's files, with what tells it from others."""
    for pattern in group.files:
        for path in sorted(SOURCE.glob(pattern)):
            source = path.read_text()
            for mutant in mutants(str(path.relative_to(SOURCE)), source):
                yield mutant, digest(mutant, source)


class Tree:
    """A copy of the package, in which one file at a time is different."""

    def __init__(self, folder: Path) -> None:
        self._package = folder / "holdfast"
        shutil.copytree(SOURCE, self._package, ignore=shutil.ignore_patterns("__pycache__"))
        for other in ("holdfast_chaos", "pyspark_holdfast"):
            (folder / other).symlink_to(ROOT / "src" / other)
        self._environment = os.environ | {"PYTHONPATH": f"{folder}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}

    def tested(self, group: Group, mutant: Mutant | None) -> tuple[bool, str]:
        """Return whether a test failed, and which one. Without a mutant nothing is different."""
        path = self._package / (mutant.path if mutant else "__init__.py")
        source = path.read_text()
        try:
            if mutant is not None:
                path.write_text(mutant.applied(source))
            return self._run(group.command())
        finally:
            path.write_text(source)

    def _run(self, command: Sequence[str]) -> tuple[bool, str]:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=_LONGEST)
        except subprocess.TimeoutExpired:
            return True, f"nothing ended within {_LONGEST:g} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()
        failed = _FAILED.search(said)
        return process.returncode != 0, failed[1] if failed else said.strip().rpartition("\n")[2]


def table(verdicts: Sequence[Verdict]) -> str:
    """For each group how many were tried and killed, then every survivor."""
    lines = [f"{'files':<10}{'mutants':>9}{'killed':>8}{'':>7}"]
    for group in [*dict.fromkeys(each.group for each in verdicts), ""]:
        mine = [each for each in verdicts if group in ("", each.group)]
        killed = sum(each.killed for each in mine)
        share = 100 * killed / max(len(mine), 1)
        lines.append(f"{group or 'all':<10}{len(mine):>9}{killed:>8}{share:>6.0f}%")
    lines += [f"survived: {each.name}" for each in verdicts if not each.killed]
    return "\n".join(lines)


def run(arguments: argparse.Namespace) -> list[Verdict]:
    """Try what is left of the chosen mutants; returns all verdicts about them."""
    chosen = [
        (name, mutant, text) for name in arguments.group or GROUPS for mutant, text in found(GROUPS[name])
    ]
    random.Random(arguments.seed).shuffle(chosen)
    chosen = chosen[: arguments.count]
    file: Path | None = arguments.resume
    lines = file.read_text().splitlines() if file is not None and file.exists() else []
    known = {verdict.text: verdict for verdict in (Verdict(**json.loads(line)) for line in lines)}
    left = [each for each in chosen if each[2] not in known]
    say(f"{len(chosen)} mutants, {len(left)} of them left")
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder))
        for name in dict.fromkeys(each[0] for each in left):
            failed, by = tree.tested(GROUPS[name], None)
            if failed:
                raise SystemExit(f"the tests of {name} fail without any mutant: {by}")
        for number, (name, mutant, text) in enumerate(left, start=1):
            began = time.monotonic()
            killed, by = tree.tested(GROUPS[name], mutant)
            verdict = Verdict(text, mutant.name, name, killed, by, round(time.monotonic() - began, 1))
            known[text] = verdict
            if file is not None:
                with file.open("a") as out:
                    out.write(json.dumps(asdict(verdict)) + "\n")
            outcome = "killed" if killed else "SURVIVED"
            say(f"{number}/{len(left)} {outcome} {mutant.name} ({verdict.seconds} s; {by})")
    return [known[text] for _, _, text in chosen]


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--group", action="append", choices=GROUPS, help="repeatable; all without it")
    parser.add_argument("--count", type=int, default=300, help="how many mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--least", type=float, default=95, metavar="PERCENT", help="of them must be killed")
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="remember what is done, and go on from there"
    )
    parser.add_argument("--list", action="store_true", help="only name them")
    arguments = parser.parse_args(words)
    if arguments.list:
        names = [mutant.name for name in arguments.group or GROUPS for mutant, _ in found(GROUPS[name])]
        print("\n".join(names))  # noqa: T201
        return 0
    verdicts = run(arguments)
    print(table(verdicts))  # noqa: T201
    killed = sum(each.killed for each in verdicts)
    return 0 if verdicts and 100 * killed / len(verdicts) >= arguments.least else 1


if __name__ == "__main__":
    sys.exit(main())
