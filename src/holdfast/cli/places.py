"""Places: what is looked at must be there. A wrong path must not look like one where all is well."""

from __future__ import annotations

from pathlib import Path

from holdfast.config.urls import mask
from holdfast.model.errors import NotFound


def check_archive(url: str, *, whole: bool = True) -> None:
    """`NotFound` where no archiver has committed anything; unless it is `whole`, written anything."""
    from holdfast.pipeline.archive.naming import manifest_folder
    from holdfast.pipeline.stores import open_store

    store = open_store(url)
    if next(iter(store.list(manifest_folder() if whole else "")), None) is None:
        raise NotFound(f"there is no archive in {mask(store.url)}: it holds no manifest")


def check_wal(path: str) -> None:
    """`NotFound` where the folder of a WAL is not there."""
    from holdfast.pipeline.stores.address import folder_of

    folder = folder_of(path)
    if folder is not None and not folder.is_dir():
        raise NotFound(f"there is no WAL in {folder.absolute()}: no ingest has written there")


def check_warehouse(url: str) -> None:
    """`NotFound` where nothing was ever loaded."""
    from holdfast.pipeline.warehouse.address import place_of

    kind, path = place_of(url)
    if kind == "duckdb":
        there = Path(path).expanduser().exists()
    else:
        from holdfast.pipeline.warehouse.delta_files import DeltaFiles

        there = bool(DeltaFiles(path).names())
    if not there:
        raise NotFound(
            f"there is no warehouse {mask(url)}; correct the name, or fill a new one with "
            "holdfast warehouse rebuild"
        )
