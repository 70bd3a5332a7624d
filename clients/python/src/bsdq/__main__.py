"""`python -m bsdq worker MODULE:APP`: runs the tasks of an app."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from typing import List, Optional

from .app import App
from .worker import Worker


def load(name: str) -> App:
    """The app of this name: a module, a colon, and a name in it."""
    module, colon, attribute = name.partition(":")
    if not colon:
        raise SystemExit(f"{name}: MODULE:APP is expected")
    sys.path.insert(0, os.getcwd())
    app = getattr(importlib.import_module(module), attribute, None)
    if not isinstance(app, App):
        raise SystemExit(f"{name} is no bsdq.App")
    return app


def main(arguments: Optional[List[str]] = None) -> int:
    """Runs the program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m bsdq")
    commands = parser.add_subparsers(dest="command", required=True)
    worker = commands.add_parser("worker", help="run the tasks of an app")
    worker.add_argument("app", metavar="MODULE:APP")
    worker.add_argument("--concurrency", type=int, default=4, help="jobs at one time [4]")
    worker.add_argument(
        "--grace", type=float, default=30.0, help="seconds for jobs that run, after SIGTERM [30]"
    )
    worker.add_argument(
        "--prefetch", type=int, default=1, help="jobs that each slot may have reserved [1]"
    )
    worker.add_argument("--tube", action="append", help="only this tube; may be repeated")
    worker.add_argument("--log-level", default="info")
    args = parser.parse_args(arguments)
    logging.basicConfig(
        level=args.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    return Worker(
        load(args.app),
        concurrency=args.concurrency,
        grace=args.grace,
        prefetch=args.prefetch,
        tubes=args.tube,
    ).run()


if __name__ == "__main__":
    sys.exit(main())
