"""The embedded defaults: what holds where neither a store nor a file is named.

The private store is whole by itself: everything on it is archived into a folder, and put into a DuckDB file,
as far as what that takes is installed.
"""

from __future__ import annotations

from importlib.util import find_spec

from holdfast.config.layers import Layers
from holdfast.config.problems import Origin, Path

EMBEDDED = Origin("default", "embedded default")
EVERYTHING = ">"
ARCHIVER = {
    "streams": [
        {"stream": EVERYTHING, "destination": "folder", "path": ".holdfast/cold", "batch_timeout": "15s"}
    ]
}
INGEST = {"channels": [EVERYTHING], "validation": {EVERYTHING: {"payload": "any"}}}


def has_spark() -> bool:
    """Whether the pipeline can run here."""
    return find_spec("pyspark") is not None


def lay_embedded(layers: Layers) -> None:
    """Lay them where nobody says what is archived, and what is ingested."""
    if not has_spark():
        return
    if not _said(layers, ("archiver", "streams")) and not _said(layers, ("archival",)):
        layers.lay(EMBEDDED, {"archiver": ARCHIVER})
    if not _said(layers, ("ingest", "channels")):
        layers.lay(EMBEDDED, {"ingest": INGEST})


def _said(layers: Layers, path: Path) -> bool:
    return layers.written(path) == path
