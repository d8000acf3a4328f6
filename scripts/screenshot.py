"""Take the pictures of the documentation: the control room of `holdfast up --demo`.

Needs Chromium and Playwright (`CHROMIUM` names another program), and a few minutes: what the
pictures show has really run.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from playwright.sync_api import Page, ViewportSize, sync_playwright

IMAGES = Path(__file__).parent.parent / "docs" / "images"
LARGEST = 300_000
_PROGRAMS = "chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"
PATIENCE, WATCHED = 300.0, 120.0
"""Seconds until there must be something to see, and how long the page then looks on for its curves."""
SIZE = ViewportSize(width=1240, height=900)


def main() -> int:
    """Take the pictures; 1 where one is too large for a page."""
    IMAGES.mkdir(exist_ok=True)
    with demo() as url:
        until_lively(url)
        taken = pictures(url)
    for path in taken:
        sys.stdout.write(f"{path.relative_to(IMAGES.parent.parent)}: {path.stat().st_size:,} bytes\n")
    return int(any(path.stat().st_size > LARGEST for path in taken))


@contextmanager
def demo() -> Iterator[str]:
    """`holdfast up --demo` in a folder of its own; answers its address."""
    foreign = ("HOLDFAST_URL", "HOLDFAST_CONFIG", "DATABASE_URL")
    environment = {name: value for name, value in os.environ.items() if name not in foreign}
    environment["HOLDFAST_SERVER__OPEN"] = "true"  # pictures of pages, and not of how one gets there
    command = [sys.executable, "-m", "holdfast.cli", "up", "--demo", "--json", "--log-folder", "logs"]
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        process = subprocess.Popen(
            [*command, "--port", "0"], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
        )
        try:
            yield address(process)
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=150)


def address(process: subprocess.Popen[str]) -> str:
    """Where its server listens."""
    for text in process.stdout or ():
        line = json.loads(text)
        if (line["part"], line["phase"]) == ("http", "running"):
            return str(line["status"])
    raise SystemExit("holdfast up ended before it served anything")


def until_lively(url: str) -> None:
    """Wait until the drivers have moved events and some handlers have failed for good."""
    deadline = time.monotonic() + PATIENCE
    while not lively(url):
        if time.monotonic() > deadline:
            raise SystemExit(f"there is nothing to see after {PATIENCE:.0f} s")
        time.sleep(2)


def lively(url: str) -> bool:
    """Whether both drivers have done a batch, and there are dead letters."""
    drivers = httpx.get(f"{url}/api/v1/pipeline").json()["drivers"]
    worked = {each["name"] for each in drivers if each["report"]["batches"]}
    dead = httpx.get(f"{url}/api/v1/deadletters/count").json()
    return worked >= {"archive", "ingest"} and dead["count"] > 0


def pictures(url: str) -> list[Path]:
    """The overview in both colours, from pages that have looked on for a while; the dead letters; a query."""
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _PROGRAMS)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        pages: dict[str, Page] = {}
        for scheme in ("light", "dark"):
            context = browser.new_context(color_scheme=scheme, viewport=SIZE, device_scale_factor=1.25)
            pages[scheme] = context.new_page()
            pages[scheme].goto(url)
        pages["light"].wait_for_timeout(WATCHED * 1000)
        taken = [picture(page, f"overview-{scheme}") for scheme, page in pages.items()]
        pages["light"].goto(f"{url}/deadletters")
        taken.append(picture(pages["light"], "dead-letters", whole=False))
        pages["light"].goto(f"{url}/query")
        pages["light"].get_by_role("button", name="Run").click()
        pages["light"].wait_for_selector("table.result")
        return [*taken, picture(pages["light"], "query", whole=False)]


def picture(page: Page, name: str, *, whole: bool = True) -> Path:
    """The page as it stands, whole or as much of it as a screen shows."""
    path = IMAGES / f"{name}.png"
    page.screenshot(path=path, full_page=whole, animations="disabled")
    return path


if __name__ == "__main__":
    sys.exit(main())
