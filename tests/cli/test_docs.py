"""The documentation: what it shows runs, what it names exists, what is generated is up to date."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import psycopg
import pytest

import holdfast
from holdfast import App
from holdfast.model.states import NEXT, State, Verb
from holdfast.testing import drain

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_LINK = re.compile(r"""(?:\]\(|(?:src|srcset)=")(?!https?:)([^)"#]*)(?:#([^)"]*))?[)"]""")


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return [code for name, code in _BLOCK.findall((ROOT / page).read_text()) if name == language]


def test_the_example_of_the_readme_runs_without_anything_else(tmp_path: Path) -> None:
    example, _ = blocks("README.md", "python")
    assert len(example.splitlines()) <= 20
    [shown] = [code for code in blocks("README.md", "") if code.startswith("published twice")]
    (tmp_path / "example.py").write_text(example)
    stores = ("HOLDFAST_URL", "DATABASE_URL")
    environment = {name: value for name, value in os.environ.items() if name not in stores}
    done = subprocess.run(
        [sys.executable, "-W", "error", "example.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown


async def test_the_worker_of_the_readme_works(database: str) -> None:
    _, module = blocks("README.md", "python")
    names: dict[str, object] = {}
    exec(module, names)  # noqa: S102 - our own page
    app = names["app"]
    assert isinstance(app, holdfast.App)
    [handler] = app.handlers
    await handler.bind(None)(_job({"total": 1}))
    with pytest.raises(holdfast.Terminal):
        await handler.bind(None)(_job({"total": -1}))


def _job(data: object) -> holdfast.Job:
    event = holdfast.Event(data)
    return holdfast.Job("1", "orders", "billing", event, "", 1, 0, 1, lease_until=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "page", ["concepts", "handlers", "schedules", "tasks", "transactions", "typed-events"]
)
async def test_the_python_of_a_page_runs(page: str, database: str, tmp_path: Path) -> None:
    """Programs as they stand; of modules with handlers, what those make of an event."""
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE invoices (order_id text, total integer)")
    for number, code in enumerate(blocks(f"docs/{page}.md", "python")):
        if "asyncio.run(" in code:
            (tmp_path / "program.py").write_text(code)
            environment = os.environ | {"HOLDFAST_URL": database}
            command = [sys.executable, "-W", "error", "program.py"]
            done = await asyncio.to_thread(
                subprocess.run, command, cwd=tmp_path, env=environment, capture_output=True, timeout=60
            )
            assert (done.returncode, done.stderr) == (0, b"")
            continue
        names: dict[str, object] = {}
        exec(code, names)  # noqa: S102 - our own page
        app = names["app"]
        assert isinstance(app, holdfast.App)
        [handler] = app.handlers
        async with holdfast.connect(database) as hf:
            await hf.ensure(handler.channel, handler.consumer, start=handler.start, **handler.policy)
            await hf.publish(handler.channel, {"total": 12, "amount": 12}, id=f"e-{number}", key="k")
            drained = await drain(app, hf)
        assert drained.done > 0
        assert not drained.dead


def test_the_transaction_of_the_postgres_page_joins(database: str) -> None:
    [code] = blocks("docs/postgres.md", "python")
    exec(code, {"psycopg": psycopg, "holdfast": holdfast, "url": database})  # noqa: S102 - our own page
    with holdfast.connect_sync(database) as hf:
        assert [entry.event.id for entry in hf.read("orders")] == ["o-1"]


def test_the_sql_of_the_postgres_page_runs(database: str) -> None:
    with holdfast.connect_sync(database) as hf:
        hf.subscribe("orders", "billing")
    with psycopg.connect(database, autocommit=True) as connection:
        for code in blocks("docs/postgres.md", "sql"):
            for statement in filter(str.strip, code.split(";\n")):
                connection.execute(statement.encode())
    with holdfast.connect_sync(database) as hf:
        [job] = hf.poll("orders", "billing", limit=10)
        assert (job.event.id, job.event.key) == ("o-2", "customer-7")


async def test_the_example_shop_works(database: str) -> None:
    shop: App = run_path(str(ROOT / "examples" / "shop.py"))["app"]
    async with holdfast.connect(database) as hf:
        await hf.subscribe("orders", "billing", backoff=["1s"])
        await hf.publish_many("orders", [holdfast.Event({"total": n}, id=f"o{n}", key="c") for n in (12, -1)])
        stop = asyncio.Event()
        running = asyncio.create_task(shop.run(hf, stop=stop, idle="100ms"))
        live = 4
        while live:
            await asyncio.sleep(0.02)
            found = [job for n in (12, -1) for job in await hf.find_jobs("orders", f"o{n}")]
            live = 4 - sum(job.state in (State.DONE, State.DEAD) for job in found)
        stop.set()
        await running
    states = {(job.event_id, job.consumer): (job.state, job.reason) for job in found}
    assert states.pop(("o-1", "billing")) == (State.DEAD, "terminal")
    assert set(states.values()) == {(State.DONE, None)}


def test_every_test_that_a_page_names_exists() -> None:
    named = {found for page in PAGES for found in _TEST.findall(page.read_text())}
    assert len(named) > 20
    for file, name in sorted(named):
        tree = ast.parse((ROOT / file).read_text())
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        assert name in {node.name for node in tree.body if isinstance(node, functions)}, f"{file}::{name}"


def test_every_link_leads_somewhere() -> None:
    for page in PAGES:
        for target, anchor in _LINK.findall(page.read_text()):
            file = page.parent / target if target else page
            assert file.exists(), f"{page.name}: {target}"
            if anchor:
                assert anchor in anchors(file), f"{page.name}: {target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them: without punctuation, with hyphens."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_reached_from_the_index() -> None:
    index, docs = ROOT / "docs" / "index.md", ROOT / "docs"
    linked = {(docs / target).resolve() for target, _ in _LINK.findall(index.read_text()) if target}
    pages = {page.resolve() for page in docs.glob("*.md")} - {index}
    assert pages <= linked, pages - linked
    assert index.resolve() in {(ROOT / target).resolve() for target, _ in _LINK.findall(PAGES[0].read_text())}


def test_what_the_readme_makes_can_be_made() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([\w-]+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert {"demo", "up", "test"} <= named <= targets


def test_the_tests_of_the_testing_page_pass(tmp_path: Path) -> None:
    conftest, *tests = blocks("docs/testing.md", "python")
    assert len(tests) == 4
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    for place, code in enumerate(tests):
        (tmp_path / f"test_page_{place}.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "4 passed" in done.stdout, done.stdout


def test_the_generated_page_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/docs.py", "--check"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_the_table_of_states_is_that_of_the_model() -> None:
    rows = [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        for line in (ROOT / "docs" / "lifecycle.md").read_text().splitlines()
        if line.startswith("| ") and line.count("|") == 7
    ]
    [head] = [row for row in rows if row[0] == "verb"]
    shown = {row[0]: dict(zip(head[2:], row[2:], strict=True)) for row in rows if row[0] in set(Verb)}
    states = [state for state, verbs in NEXT.items() if verbs]
    assert shown == {verb: {state: NEXT[state].get(verb, "–") for state in states} for verb in Verb}
