"""A real browser, and a system behind it. Without Chromium these tests are skipped, except in CI."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, async_playwright
from stage import Stage, stage
from visitor import Visitor

from holdfast.embedded import Postgres

CHROMIUM = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The shell comes first: it is the same engine without the windows, at a fraction of the CPU time."""


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    """One browser for all tests."""
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if found is None:
        why = "Chromium is missing; install it, such as with: apt-get install chromium-headless-shell"
        pytest.fail(why) if os.environ.get("CI") else pytest.skip(why)
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(executable_path=found, args=root)
        yield opened
        await opened.close()


@pytest.fixture(scope="module")
async def theatre(
    browser: Browser, postgres: Postgres, template: str, request: pytest.FixtureRequest
) -> AsyncIterator[Stage]:
    """A system on a database of this module's own, with dead letters in it. It needs no token, unless the
    module has `OPEN = False`."""
    name = request.module.__name__.replace(".", "_")
    is_open = getattr(request.module, "OPEN", True)
    async with stage(postgres.create_database(f"browser_{name}"), open=is_open) as running:
        await running.fill()
        yield running


@pytest.fixture
async def visitor(browser: Browser, theatre: Stage) -> AsyncIterator[Visitor]:
    """Somebody at a screen. No page may have complained when they leave."""
    async with await browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        found = await Visitor.enter(context, theatre.url)
        yield found
        assert found.complaints == []
