"""Measure nbdist against its marks, in a real kernel, and print a table.

python benchmarks/run.py               all of it, about five minutes
python benchmarks/run.py --only text   one theme
"""

from __future__ import annotations

import argparse
import sys

import dashboard
import endings
import harness
import leaks
import live
import memory
import methods
import results
import start
import text

THEMES = {
    "start": start.measure,
    "results": results.measure,
    "text": text.measure,
    "memory": memory.measure,
    "endings": endings.measure,
    "leaks": leaks.measure,
    "live": live.measure,
    "methods": methods.measure,
    "dashboard": dashboard.measure,
}


def main() -> int:
    """Run the themes that were asked for; 1 where a mark is missed."""
    parser = argparse.ArgumentParser(description="Measure nbdist against its marks and print a table.")
    parser.add_argument("--only", choices=THEMES, help="one theme instead of all")
    only = parser.parse_args().only
    print(harness.machine(), flush=True)
    rows: list[harness.Row] = []
    for name in [only] if only else THEMES:
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        rows += THEMES[name]()
    print(harness.machine(), "", harness.table(rows), sep="\n")
    return 1 if any(row.ok is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
