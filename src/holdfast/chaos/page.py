"""The report as a page: one file, no script, nothing to fetch."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from holdfast.chaos.report import Report


def write_page(report: Report, file: Path) -> None:
    """Write it."""
    environment = Environment(
        loader=PackageLoader("holdfast.chaos", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    file.write_text(environment.get_template("report.html").render(report=report))
