"""The terms that the demo and its worker processes agree on."""

from __future__ import annotations

from typing import Any, Final

CHANNEL: Final = "HOLDFAST_DEMO_CHANNEL"
"""The environment variable that names the channel of the orders."""
CONSUMER: Final = "billing"
POLICY: Final[dict[str, Any]] = {
    "lease": "2s",
    "max_attempts": 3,
    "max_abandonments": 5,
    "backoff": ["300ms", "1s"],
}
BOMB_POLICY: Final[dict[str, Any]] = {"lease": "1s", "max_abandonments": 2}


def bombs(channel: str) -> str:
    """The channel for orders that kill their worker, beside that of the others."""
    return f"{channel}.bombs"
