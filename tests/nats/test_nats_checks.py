"""What `check` says of a server's real settings."""

from __future__ import annotations

from holdfast.backends.nats import NatsBackend


async def test_what_only_the_system_account_knows_is_said_to_be_unknown(backend: NatsBackend) -> None:
    findings = {finding.subject: finding for finding in await backend.check()}
    told = findings["sync_interval"]
    assert (told.level, "two minutes" in told.message, "always" in told.message) == ("warning", True, True)
    assert [findings[name].level for name in ("storage", "replicas", "version")] == ["ok"] * 3
