"""As a user would have it: the kit's own fixtures."""

import pytest_asyncio

from holdfast.testing import fixtures

# The suite's conftest cannot load a plugin below the root, so the fixtures are taken by name.
holdfast_server, holdfast_url = fixtures.holdfast_server, fixtures.holdfast_url
bus, sync_bus, clock, failing = fixtures.bus, fixtures.sync_bus, fixtures.clock, fixtures.failing

assert pytest_asyncio
