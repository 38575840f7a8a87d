"""The command ``nbdist``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from nbdist.errors import NbdistError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the words after ``nbdist``; default: the process's own.

    Returns:
        The exit code: 0, or 1 with the message on stderr.
    """
    parser = argparse.ArgumentParser(prog="nbdist", description="A notebook cell that runs on every GPU.")
    parser.add_argument("--version", action="version", version=f"nbdist {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.add_parser("demo", help="train on real data on 2 CPU ranks, here in the terminal")
    if parser.parse_args(argv).command is None:
        parser.print_help()
        return 0
    try:
        return _demo()
    except NbdistError as error:
        print(f"nbdist: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("nbdist: interrupted", file=sys.stderr)
        return 130


def _version() -> str:
    try:
        return version("nbdist")
    except PackageNotFoundError:  # run from a checkout
        return "(not installed)"


def _demo() -> int:
    from nbdist.demo import main as demo

    demo()
    return 0
