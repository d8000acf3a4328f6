"""Fingerprints: errors that differ only in numbers, ids, paths or addresses are one cluster."""

from __future__ import annotations

import hashlib
import re

_NOISE = (
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE), "<address>"),
    (re.compile(r"(?:[a-z][a-z0-9+.-]*:/)?(?:/[^\s/'\",:;()]+){2,}"), "<path>"),
    (re.compile(r"\b(?=[0-9a-f]*\d)(?=\d*[a-f])[0-9a-f]{12,}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"'[^']*'|\"[^\"]*\""), "<text>"),
    (re.compile(r"\d+(?:\.\d+)*"), "<n>"),
    (re.compile(r"\s+"), " "),
)


def normalise(error: str) -> str:
    """The error with everything that changes from case to case replaced by a placeholder."""
    for noise, placeholder in _NOISE:
        error = noise.sub(placeholder, error)
    return error.strip()[:500]


def fingerprint(kind: str, error: str) -> str:
    """Sixteen hexadecimal digits that name the cluster of an error."""
    text = f"{kind}: {normalise(error)}"
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
