# ruff: noqa: E402
"""Chaos on a cluster: drivers and executors of the ingest into Delta, killed after something was staged.

    python tests/chaos/cluster.py                     # what `make chaos-cluster` runs
    python tests/chaos/cluster.py --kills 6 --seed 7
    python tests/chaos/cluster.py --minutes 6 --resume kills.json    # a part of it, and next time the next

A standalone cluster with two workers. In each round events are published and a real driver starts, whose
tasks stage segments and data files. Whenever new files are there, an executor is killed, and after some of
them the driver. What is there is judged after each round (I9, I10, I11), and in the end, after a driver that
nobody killed, it must be exact.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "pipeline")]

import argparse
import json
import math
import os
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter

from hosts import postgres

from holdfast.embedded import SparkCluster
from holdfast_chaos.checks.pipeline import Violation, check_ingest
from holdfast_chaos.scenario import IngestScenario

EXECUTORS = 5
"""Executors that are killed under one driver, before it is killed itself."""
_STARTS = 3
"""Drivers that may drain at the end: Spark gives up one whose Python does not start within ten seconds."""
_TOLD = 4_000  # letters of a log


def main() -> int:
    """0 when everything held."""
    options = _options()
    killed, violations, rounds = _begun(options.resume)
    chance = random.Random(f"{options.seed} {rounds}")
    began = time.monotonic()
    with (
        postgres() as url,
        SparkCluster(workers=2, cores=1, memory="1g") as cluster,
        tempfile.TemporaryDirectory(prefix="holdfast-chaos-") as folder,
    ):
        scenario = IngestScenario(url("cluster"), Path(folder), "delta")
        hunt = Hunt(cluster, Path(folder), chance, killed)
        while killed.total() < options.kills and time.monotonic() - began < 60 * options.minutes:
            scenario.publish(chance.randrange(150, 250))
            scenario.drive_spark(master=cluster.url, beside=hunt)
            violations += check_ingest(scenario.history, scenario.state(), drained=False)
            rounds += 1
            _save(options.resume, killed, violations, rounds)
            _say(f"{dict(killed)} after {time.monotonic() - began:.0f} s, {len(violations)} violations")
        for _ in range(_STARTS):
            code = scenario.drive_spark(master=cluster.url)
            if code == 0:
                break
            _say(f"a driver ended with {code}:\n{scenario.spark_log.read_text(errors='replace')[-_TOLD:]}")
        else:
            violations.append(Violation("I15", f"{_STARTS} drivers in a row ended with {code}"))
        found = scenario.state()
        violations += check_ingest(scenario.history, found, drained=True)
        _save(options.resume, killed, violations, rounds)
        _say(
            f"seed {options.seed}: {killed['driver']} drivers and {killed['executor']} executors killed in "
            f"{time.monotonic() - began:.0f} s; {len(scenario.history)} events, {len(found.rows)} rows, "
            f"{found.failed.total()} failed"
        )
    for each in violations:
        _say(f"{each.invariant}: {each.what}")
    _say("verdict: " + ("VIOLATED" if violations else "nothing lost, nothing doubled, batches whole"))
    return 1 if violations else 0


class Hunt:
    """Kills beside a driver, whenever a file has appeared that was not there before."""

    def __init__(
        self, cluster: SparkCluster, folder: Path, chance: random.Random, killed: Counter[str]
    ) -> None:
        self._cluster, self._folder, self._chance, self._killed = cluster, folder, chance, killed

    def __call__(self, driver: subprocess.Popen[bytes]) -> None:
        """Until the driver ends, or has had its share."""
        left, seen, skip = EXECUTORS, self._staged(), self._chance.randrange(3)
        while driver.poll() is None:
            if len(self._staged() - seen) <= skip:
                time.sleep(0.005)
                continue
            if left and not self._kill_executor():
                continue  # the one before is not replaced yet
            if not left:
                driver.kill()
            self._killed["executor" if left else "driver"] += 1
            left, seen, skip = left - 1, self._staged(), self._chance.randrange(3)

    def _staged(self) -> set[Path]:
        return {*self._folder.glob("wal/segments/*"), *self._folder.glob("tables/events/*/*.parquet")}

    def _kill_executor(self) -> bool:
        """One of this cluster's, with the Python processes that it has started."""
        urls = [f"@127.0.0.1:{worker.port}".encode() for worker in self._cluster.workers]
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")
            except OSError:
                continue
            ours = any(word.endswith(url) for word in words for url in urls)
            if b"org.apache.spark.executor.CoarseGrainedExecutorBackend" in words and ours:
                os.kill(int(path.parent.name), signal.SIGKILL)
                return True
        return False


def _begun(kept: Path | None) -> tuple[Counter[str], list[Violation], int]:
    """What earlier runs have done: kills, what they found, and in how many rounds."""
    if kept is None or not kept.exists():
        return Counter(), [], 0
    found = json.loads(kept.read_text())
    return Counter(found["killed"]), [Violation(*each) for each in found["violations"]], found["rounds"]


def _save(kept: Path | None, killed: Counter[str], violations: list[Violation], rounds: int) -> None:
    if kept is not None:
        fresh = kept.with_suffix(".new")
        fresh.write_text(json.dumps({"killed": killed, "violations": violations, "rounds": rounds}, indent=2))
        fresh.replace(kept)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Kill drivers and executors, and check_ingest what is left.")
    parser.add_argument("--seed", type=int, default=20261117)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no more rounds after so long")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="go on from there, and keep it there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
