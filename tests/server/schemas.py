# ruff: noqa: E402
"""Schemathesis at length: all of its checks, with an admin's token and with one for a single channel.

    python tests/server/schemas.py                       # what `make schemathesis` runs
    python tests/server/schemas.py --cases 20 --tokens channel --log found.log

A real server that is not open, on a PostgreSQL of its own, with something in it to ask about; made anew for
each token. What schemathesis says goes to the log, with a command that repeats each finding; the numbers of
cases and findings are printed.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import argparse
import asyncio
import json
import logging
import os
import tempfile
from typing import IO, Any

from running import running
from schema_hooks import WORLD
from world import CHANNEL, World, settle

import holdfast
from holdfast.embedded import Postgres
from holdfast.model.scopes import scope_of
from holdfast.server.auth.tokens import Tokens

SCOPES = {"admin": ("admin", None, None), "channel": ("channel", CHANNEL, None)}
SERVER = {"port": 0, "open": False, "limits": {"rate": 0}}


def main() -> int:
    """0 when nothing was found with any token, and every operation was asked."""
    options = _options()
    logging.disable(logging.WARNING)  # each refusal is one
    with Postgres() as postgres, options.log.open("w") as log:
        wells = [_told(name, postgres, options, log) for name in options.tokens]
    sys.stdout.write(f"{options.log} says more\n")
    return 0 if all(wells) else 1


def _told(name: str, postgres: Postgres, options: argparse.Namespace, log: IO[str]) -> bool:
    """Ask with one token, and print how that was; returns whether all is well."""
    with tempfile.TemporaryDirectory(prefix="holdfast-schemathesis-") as folder:
        report = Path(folder) / "report.json"
        asyncio.run(_ask(postgres.create_database(name), SCOPES[name], report, options, log))
        found: dict[str, Any] = json.loads(report.read_text())
    cases, operations = found["test_cases"], found["operations"]
    told = f"{cases['generated']} cases of {operations['tested']} operations in {found['running_time']:.0f} s"
    sys.stdout.write(f"{name}: {told}, {cases['unique_failures']} findings, {cases['errored']} errors\n")
    sys.stdout.flush()
    return found["exit_code"] == 0 and operations["tested"] == operations["total"]


async def _ask(
    url: str, scope: tuple[str, Any, Any], report: Path, options: argparse.Namespace, log: IO[str]
) -> None:
    async with holdfast.connect(url) as bus:
        world = await settle(bus)
        token = (await Tokens(bus, "gbe").create(scope_of(*scope))).text
        async with running(bus, server=SERVER) as system:
            await system.readiness(200)
            command = _command(str(system.client.base_url), token, report, options)
            asked = await asyncio.create_subprocess_exec(
                *command, cwd=report.parent, env=_environment(world), stdout=log, stderr=log
            )
            await asked.wait()


def _environment(world: World) -> dict[str, str]:
    hooks = str(HERE / "schema_hooks.py")
    return os.environ | {"SCHEMATHESIS_HOOKS": hooks, WORLD: json.dumps(world.names)}


def _command(address: str, token: str, report: Path, options: argparse.Namespace) -> list[str]:
    return [
        str(Path(sys.executable).with_name("schemathesis")),
        f"--config-file={HERE / 'schemathesis.toml'}",
        "run",
        f"{address}/openapi.json",
        f"--url={address}",
        f"--header=Authorization:Bearer {token}",
        "--checks=all",
        "--continue-on-failure",
        f"--max-examples={options.cases}",
        f"--seed={options.seed}",
        f"--report-json-path={report}",
        "--generation-database=none",
        "--suppress-health-check=all",
        "--no-color",
    ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Hold a server to its OpenAPI document.")
    parser.add_argument("--cases", type=int, default=250, help="made up for each operation")
    parser.add_argument("--tokens", nargs="+", choices=list(SCOPES), default=list(SCOPES))
    parser.add_argument("--seed", type=int, default=20261117)
    parser.add_argument("--log", type=Path, default=Path("schemathesis.log"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
