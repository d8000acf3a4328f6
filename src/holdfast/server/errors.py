"""Errors that only a server raises: refused requests, each with the status and headers of its response."""

from __future__ import annotations

from holdfast.model.errors import HoldfastError


class Refusal(HoldfastError):
    """A request that is refused, with the status and the headers of the response."""

    status = 400

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the response."""
        return {}


class Denied(Refusal):
    """Somebody may not do something. It is logged, and audited where it is known who it was."""


class Unauthorized(Denied):
    """No credentials, or none that are valid. It does not say which: that would help to guess."""

    status = 401

    @property
    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": 'Bearer realm="holdfast"'}


class Forbidden(Denied):
    """Valid credentials that do not cover this."""

    status = 403

    def __init__(self, verb: str, channel: str | None = None, consumer: str | None = None) -> None:
        where = f"channel {channel!r}" if channel else "all channels"
        of = f"consumer {consumer!r} of " if consumer else ""
        super().__init__(f"the token does not cover {verb} on {of}{where}; use one with that scope")


class CrossSite(Refusal):
    """A request from a page of another site."""

    status = 403


class PayloadTooLarge(Refusal):
    """A body over the server's limit."""

    status = 413


class UnsupportedMediaType(Refusal):
    """A body in a form that is not read here."""

    status = 415


class HeadersTooLarge(Refusal):
    """Headers or an address over the server's limit."""

    status = 431


class TooManyRequests(Refusal):
    """More requests than a rate allows."""

    status = 429

    def __init__(self, seconds: int, what: str = "requests") -> None:
        self.seconds = seconds
        super().__init__(f"too many {what}; wait for {seconds} s")

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(self.seconds)}


class Full(Refusal):
    """More at once than there is room for, for this caller (429) or for all (503)."""

    status = 429

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)


class TimedOut(Refusal):
    """No response within the server's limit; whether it took effect is unknown."""

    status = 504


class Conflict(Refusal):
    """What is asked for does not fit the state in which the thing is."""

    status = 409
