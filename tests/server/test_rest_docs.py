"""docs/rest.md: its examples run, one after the other, against a real server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from running import running

import holdfast
from holdfast.contracts import Backend
from holdfast.model.scopes import VERBS
from kit import bury, claim, publish, subscribe

PAGE = Path(__file__).parents[2] / "docs" / "rest.md"
CHANNEL, CONSUMER = "order-events", "payment-service"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = "-- end of block --"


def timeless(text: str) -> object:
    """JSON without the times in it."""
    return json.loads(re.sub(r'"[0-9]{4}-[0-9]{2}-[0-9]{2}T[^"]*"', "0", text))


def blocks() -> list[tuple[str, str]]:
    return _BLOCK.findall(PAGE.read_text())


async def prepare(store: Backend) -> None:
    """Two dead jobs that were buried early, and one that waits."""
    await subscribe(store, CONSUMER, channel=CHANNEL)
    await store.channels.set_display(CHANNEL, None, "Order Events")
    await store.channels.set_display(CHANNEL, CONSUMER, "Payment Service")
    await publish(store, "a", "b", "c", channel=CHANNEL)
    for job in await claim(store, 2, channel=CHANNEL, consumer=CONSUMER):
        assert await bury(store, job)


async def test_the_shell_of_the_page_runs_and_answers_what_it_shows(bus: holdfast.Bus, database: str) -> None:
    await prepare(bus.partitions.all[0].backend)
    shells = [code for language, code in blocks() if language == "sh"]
    script = "".join(f"{code}\necho; echo '{_MARK}'\n" for code in shells)
    async with running(bus) as system:
        environment = {
            **os.environ,
            "HOLDFAST": str(system.client.base_url).rstrip("/"),
            "HOLDFAST_URL": database,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        done = await asyncio.to_thread(
            subprocess.run,
            ["bash", "-euo", "pipefail", "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert done.returncode == 0, done.stderr
    answers = done.stdout.split(_MARK)[:-1]
    assert len(answers) == len(shells)
    compared = 0
    for place, (language, code) in enumerate(blocks()):
        if language == "json":
            before = sum(1 for other, _ in blocks()[:place] if other == "sh")
            assert timeless(answers[before - 1]) == timeless(code), answers[before - 1]
            compared += 1
    assert compared == 8
    assert json.loads(answers[0])["status"] == "alive"
    said = done.stdout.splitlines()
    for line in ("{'to': 'Lyon'}", "today-17", "no such street", '{"published":2,"duplicates":0}'):
        assert line in said


async def test_the_signature_of_the_page_is_accepted(bus: holdfast.Bus) -> None:
    from holdfast.model.scopes import ADMIN
    from holdfast.server.auth.tokens import Tokens

    await prepare(bus.partitions.all[0].backend)
    token = (await Tokens(bus, "gbe").create(ADMIN)).text
    [code] = [code for language, code in blocks() if language == "python"]
    async with running(bus, server={"port": 0, "require_signatures": True}) as system:
        names = {"token": token, "url": str(system.client.base_url).rstrip("/")}
        await asyncio.to_thread(exec, code, names)
    [consumer] = json.loads(names["answer"])["consumers"]
    assert consumer["deadCount"] == 2


def test_every_scope_and_every_problem_is_on_the_page() -> None:
    from holdfast.server import errors
    from holdfast.server.problems import STATUSES

    text = PAGE.read_text()
    for kind in VERBS:
        assert f"| `{kind}" in text
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    refused = [
        each
        for each in kinds
        if issubclass(each, errors.Refusal) and each not in (errors.Refusal, errors.Denied)
    ]
    for status in {each.status for each in refused} | set(STATUSES.values()):
        assert f"\n| {status} |" in text, status
    for each in refused:
        slug = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", each.__name__).lower()
        [row] = [line for line in text.splitlines() if line.startswith(f"| {each.status} |")]
        assert f"`{slug}`" in row


def test_every_route_is_on_the_page_with_its_verb() -> None:
    from holdfast.server.app import bare_app

    rows = re.findall(r"^\| `([A-Z]+) (/\S*)` \| (\S+) \| .+ \|$", PAGE.read_text(), re.MULTILINE)
    described = [
        (method.upper(), path, operation.get("x-holdfast-verb", "–"))
        for path, methods in bare_app().openapi()["paths"].items()
        for method, operation in methods.items()
    ]
    assert sorted(rows) == sorted(described)
