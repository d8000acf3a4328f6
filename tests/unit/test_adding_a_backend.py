"""`docs/adding-a-backend.md`, followed with a toy: a folder, the nouns, one call of `register`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import holdfast
from holdfast import wiring
from holdfast.cli import main
from holdfast.config.load import check
from holdfast.config.urls import SCHEMES, check_url
from holdfast.contracts import Backend
from holdfast.model.errors import InvalidInput

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-backend.md"

LOG = '''
from holdfast.model.event import LogEntry, Receipt


class Log:
    """The log of each channel, in memory."""

    def __init__(self):
        self.entries = {}

    async def publish(self, channel, events, *, at=None, priority=0, connection=None):
        log = self.entries.setdefault(channel, [])
        positions = [f"1:{len(log) + number:08d}" for number in range(len(events))]
        log += [LogEntry(channel, position, event) for position, event in zip(positions, events)]
        return [Receipt(event.id, position) for position, event in zip(positions, events)]

    async def read(self, channel, after, limit):
        log = self.entries.get(channel, [])
        return [entry for entry in log if after is None or entry.position > after][:limit]
'''
BACKEND = '''
from datetime import UTC, datetime

from holdfast.contracts import Applied, Capabilities, Finding, Reading

from toy.log import Log


class Lifecycle:
    """Nothing is ever due."""

    async def due(self, limit):
        return Reading([], [], 0, False)

    async def apply(self, actions):
        return Applied()


class ToyBackend:
    """A store in memory. It knows the log; the other nouns are still to be written."""

    capabilities = Capabilities()
    channels = leases = deadletters = cursors = locks = retention = groups = records = None

    def __init__(self, url):
        self.url = url
        self.log, self.lifecycle = Log(), Lifecycle()

    async def open(self):
        return []

    async def close(self):
        pass

    def fork(self):
        return ToyBackend(self.url)

    async def now(self):
        return datetime(2030, 1, 31, 9, tzinfo=UTC)

    async def epoch(self):
        return 1

    async def advance(self, by):
        raise NotImplementedError

    async def check(self):
        return [Finding("warning", "durability", "what a toy acknowledges is lost with its process")]

    async def listen(self, channels, wake, failed=lambda _: None):
        raise NotImplementedError
'''


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the backend, and its registration."""
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "__init__.py").write_text("from toy.backend import ToyBackend as ToyBackend")
    (folder / "log.py").write_text(LOG)
    (folder / "backend.py").write_text(BACKEND)
    monkeypatch.syspath_prepend(tmp_path)

    def factory(url: str, connections: int, config: object) -> Backend:
        from toy import ToyBackend  # type: ignore[import-not-found]

        made: Backend = ToyBackend(url)
        return made

    for registered in (SCHEMES, wiring._FACTORIES):  # so that it is taken back after the test
        monkeypatch.setitem(registered, "toy", None)
    wiring.register(("toy",), factory, example="toy://shelf")


@pytest.mark.usefixtures("toy")
async def test_a_registered_backend_is_used_through_connect() -> None:
    async with holdfast.connect("toy://shelf") as bus:
        [partition] = bus.partitions.all
        assert (await partition.backend.now()).year == 2030
        receipt = await bus.publish("orders", {"total": 12}, id="o-1")
        assert [(entry.event.id, entry.position) for entry in await bus.read("orders")] == [
            ("o-1", receipt.position)
        ]


@pytest.mark.usefixtures("toy")
def test_commands_and_files_know_its_scheme(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "holdfast.yaml"
    file.write_text("url: [toy://one, toy://two]\n")
    assert check(file).config.url == ("toy://one", "toy://two")
    with pytest.raises(SystemExit) as ended:
        main(["check", "--url", "toy://shelf", "--json"])
    assert ended.value.code == 0
    [finding] = json.loads(capsys.readouterr().out)
    assert (finding["store"], finding["subject"]) == ("shelf", "durability")


@pytest.mark.usefixtures("toy")
def test_a_mistyped_scheme_is_answered_with_an_example_of_each() -> None:
    with pytest.raises(InvalidInput, match=r"no backend for the URL scheme 'toys'; use .* or toy://shelf"):
        check_url("toys://shelf")


def test_without_its_registration_the_scheme_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no backend for the URL scheme 'toy'"):
        holdfast.connect("toy://shelf")


def test_the_configuration_knows_the_schemes_that_are_registered_and_no_others() -> None:
    assert SCHEMES.keys() == wiring._FACTORIES.keys()


def test_the_page_names_every_noun_of_the_contract() -> None:
    nouns = [name for name, value in vars(Backend).items() if isinstance(value, property)]
    assert len(nouns) == 10
    assert [noun for noun in nouns if f"`{noun}`" not in PAGE.read_text()] == []
