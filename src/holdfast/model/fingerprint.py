"""Fingerprints: errors that differ only in numbers, ids, paths or addresses are one cluster."""

from __future__ import annotations

import hashlib
import re

_LONGEST = 4_096
"""What is looked at of an error: a stream's message may bring a longer one."""
_NOISE = (
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE), "<address>"),
    # A scheme has an end: without one, every letter of a long word would begin a search to the word's end.
    (re.compile(r"(?:[a-z][a-z0-9+.-]{0,15}:/)?(?:/[^\s/'\",:;()]+){2,}"), "<path>"),
    (re.compile(r"\b(?=[0-9a-f]*\d)(?=\d*[a-f])[0-9a-f]{12,}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"'[^']*'|\"[^\"]*\""), "<text>"),
    (re.compile(r"\d+(?:\.\d+)*"), "<n>"),
    (re.compile(r"\s+"), " "),
)


def normalise(error: str) -> str:
    """The error with everything that changes from case to case replaced by a placeholder.

    It takes time in proportion to the error's length, whatever stands in it.
    """
    error = error[:_LONGEST]
    for noise, placeholder in _NOISE:
        error = noise.sub(placeholder, error)
    return error.strip()[:500]


def fingerprint(kind: str, error: str) -> str:
    """Sixteen hexadecimal digits that name the cluster of an error."""
    text = f"{kind}: {normalise(error)}"
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
