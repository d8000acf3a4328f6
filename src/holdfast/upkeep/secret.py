"""The secret of a deployment: random, made once, kept in its first store, shown to nobody."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from holdfast.contracts import Backend


class Secret:
    """Signs what a deployment must recognise as its own: on all servers, and after a restart."""

    def __init__(self, backend: Backend, namespace: str) -> None:
        self._backend, self._key = backend, f"{namespace}.state.secret"
        self._known: bytes | None = None

    async def sign(self, *parts: str) -> str:
        """The signature of some texts, in hexadecimal. No other parts have it, however they are cut."""
        message = "".join(f"{len(part)}:{part}" for part in parts)
        return hmac.new(await self._read(), message.encode("utf-8", "replace"), hashlib.sha256).hexdigest()

    async def _read(self) -> bytes:
        while self._known is None:
            stored = await self._backend.record(self._key)
            if stored is not None:
                self._known = bytes.fromhex(stored.fields["secret"])
            else:  # whoever comes second reads what the first one wrote
                await self._backend.put_record(self._key, {"secret": secrets.token_hex(32)}, 0)
        return self._known
