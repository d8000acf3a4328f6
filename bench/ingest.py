# ruff: noqa: E402
"""The side-by-side benchmark of the ingest: `python bench/ingest.py --help`."""

import os
import sys

# A script's folder comes first on the path, where `bench/queue.py` would hide the standard library's `queue`.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from bench.ingestion import main

if __name__ == "__main__":
    sys.exit(main())
