"""python -m tests.bench [NAME ...]: measure, print one table a question, write results/bench/bench.json."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.bench.common import RESULTS, Table, run_module, show, where

BENCHMARKS = {
    "trl": "tests.bench.against_trl",
    "overhead": "tests.bench.overhead",
    "decode": "tests.bench.decode",
    "workers": "tests.bench.workers",
    "report": "tests.bench.report",
    "coverage": "tests.bench.coverage",
}
ENVIRONMENT = {
    # one thread each; read when the libraries are imported, and inherited by every process made from here
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"),
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_MODE": "offline",
    "WANDB_ERROR_REPORTING": "false",
    "HF_HUB_OFFLINE": "1",
}
ON_REQUEST = ("coverage",)
"""Runs only when named: it checks statistics, not speed, and takes long."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmarks named (all when none is), each in a process of its own."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}")
    names = parser.parse_args(argv).names
    if unknown := sorted(set(names) - set(BENCHMARKS)):
        parser.error(f"{unknown[0]}: no such benchmark; there are {', '.join(BENCHMARKS)}")
    os.environ.update(ENVIRONMENT)
    for name in names or [name for name in BENCHMARKS if name not in ON_REQUEST]:
        print(f"{name} ...", flush=True)
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            tables = process.submit(run_module, BENCHMARKS[name]).result()
        for table in tables:
            show(table)
        _keep(name, tables)
    return 0


def _keep(name: str, tables: Sequence[Table]) -> None:
    """Put the rows into bench.json; what other benchmarks left there stays, with its own commit and machine."""
    path = RESULTS / "bench.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = json.loads(path.read_text()) if path.exists() else {}
    kept[name] = {**where(), "tables": [vars(table) for table in tables]}
    path.write_text(json.dumps(kept, indent=1, allow_nan=False) + "\n")
    print(f"written in {path}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
