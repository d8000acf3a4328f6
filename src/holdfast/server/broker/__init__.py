"""The broker's endpoints: its paths, its names, and its two tokens."""

from __future__ import annotations

from holdfast.server.admission import Router
from holdfast.server.broker import counts, deadjobs, deletion

router = Router(tags=["broker"])
router.include_router(counts.router)
router.include_router(deadjobs.router)
router.include_router(deletion.router)
