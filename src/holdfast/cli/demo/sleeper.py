"""A worker that is frozen in the middle of its work: it claims, is stopped and resumed, and answers late."""

from __future__ import annotations

import os
import sys
import time

import orjson

from holdfast.cli.demo.terms import CHANNEL, CONSUMER
from holdfast.model.errors import LeaseLost
from holdfast.wiring import connect_sync

JOBS = 20


def main() -> None:
    """Tell what was claimed, wait for a line, then tell how many answers were refused."""
    with connect_sync() as bus:
        while not (jobs := bus.poll(os.environ[CHANNEL], CONSUMER, limit=JOBS)):
            time.sleep(0.05)
        _tell({job.event.id: job.token for job in jobs})
        sys.stdin.buffer.readline()
        try:
            bus.finalize_many(jobs, success=True)
        except LeaseLost as error:
            _tell({"refused": len(error.jobs)})
        else:
            _tell({"refused": 0})


def _tell(value: dict[str, int]) -> None:
    sys.stdout.buffer.write(orjson.dumps(value) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
