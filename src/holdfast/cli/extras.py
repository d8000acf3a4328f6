"""Extras: which one brings a module that is not installed."""

from __future__ import annotations

_MODULES = {
    "postgres": ("psycopg",),
    "redis": ("redis",),
    "nats": ("nats",),
    "spark": ("deltalake", "duckdb", "isal", "jsonschema", "obstore", "pandas", "pyarrow", "pyspark"),
    "server": ("fastapi", "jinja2", "prometheus_client", "python_multipart", "starlette", "uvicorn"),
}


def advice(error: ModuleNotFoundError) -> str | None:
    """What to install for a module that was not found; None where no extra of ours brings it."""
    module = (error.name or "").partition(".")[0]
    for extra, modules in _MODULES.items():
        if module in modules:
            return f"this needs {module}, which is not installed: pip install 'holdfast[{extra}]'"
    return None
