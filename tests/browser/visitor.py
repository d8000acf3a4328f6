"""A visitor: a page in a browser, and everything that it complained about."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from playwright.async_api import BrowserContext, ConsoleMessage, Locator, Page, expect

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
TELL = """document.addEventListener("securitypolicyviolation",
  (event) => console.error(`CSP: ${event.violatedDirective} ${event.blockedURI}`))"""
expect.set_options(timeout=20_000)
STATUS = "Failed to load resource: the server responded with a status of "


@dataclass
class Visitor:
    """Somebody at a screen."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)
    """Errors and warnings of the console, violated policies, exceptions."""

    @classmethod
    async def enter(cls, context: BrowserContext, url: str) -> Self:
        """A new page that writes its complaints down."""
        page = await context.new_page()
        found = cls(page, url)
        page.on("console", found._heard)
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        await page.add_init_script(TELL)
        return found

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def forgive(self, status: int) -> None:
        """Take away what the browser says about an answer that the test has asked for."""
        told = [each for each in self.complaints if each.startswith(f"error: {STATUS}{status}")]
        assert told, f"no answer had the status {status}: {self.complaints}"
        self.complaints = [each for each in self.complaints if each not in told]

    async def go(self, path: str) -> None:
        """Open a page that must be there."""
        answer = await self.page.goto(self.url + path)
        assert answer is not None
        assert answer.status == 200, path

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name)

    def link(self, name: str) -> Locator:
        return self.page.get_by_role("link", name=name)

    async def ask_about_all(self, act: str) -> None:
        """Press the button that asks about everything that the filter means."""
        await self.page.locator(".actions[role=group]").get_by_role("link", name=f"{act}…").click()

    @property
    def dialog(self) -> Locator:
        return self.page.locator("dialog[open]")

    async def sideways(self) -> int:
        """By how many pixels the page is wider than the screen."""
        width: int = await self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        return width

    async def cut_off(self) -> list[str]:
        """Tables that one has to scroll sideways, by their headings."""
        script = """[...document.querySelectorAll('.scroll')]
          .filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.innerText.slice(0, 80))"""
        found: list[str] = await self.page.evaluate(script)
        return found

    async def barriers(self) -> list[str]:
        """What keeps people out, by axe-core: serious and critical findings."""
        await self.page.evaluate(AXE)
        found: dict[str, Any] = await self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{each['id']}: {each['nodes'][0]['html']}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
        ]

    async def send(self, path: str, **form: str) -> int:
        """Post a form from the page that is open, with its session; answers the status."""
        script = """async ([path, form]) =>
          (await fetch(path, {method: "POST", body: new URLSearchParams(form)})).status"""
        status: int = await self.page.evaluate(script, [path, form])
        return status

    async def csrf(self) -> str:
        """What the forms of this page carry."""
        return await self.page.locator("input[name=csrf]").first.input_value()
