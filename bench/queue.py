# ruff: noqa: A005, E402
"""The side-by-side benchmark of queues: `python bench/queue.py --help`."""

import os
import sys

# A script's folder comes first on the path, where this file would hide the standard library's `queue`.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from bench.cli import main

if __name__ == "__main__":
    sys.exit(main())
