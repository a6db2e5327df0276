#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tests if policy `auto` finds the fastest scheme for a sparse table, over ranks, densities, overlaps and links.

usage: sparse_choice.py [--ranks 2,4,8] [--densities 0.01,0.1,1,10,50] [--overlaps 0.2,0.5,0.9] [--rates 1gbit]
                        [--rounds 7] [--steps 6] [--tuning 300] [--journals FOLDER] BUILD_FOLDER OUT.json

A cell is a number of ranks, each on its own node, the share of rows (percent) that a rank reads in a step, the
overlap of these sets, and a link. Overlap is Zen's: rows that two ranks read over rows that one reads.
support/sparse_choice_rank.cc defines the sets of rows, the pinned schemes and the length of blocks. `auto` tunes for
--tuning steps or until it has decided, and the committed strategy is pinned. Then every scheme is pinned in turn in
the same processes, in blocks of at least --steps steps. A scheme that is clearly slower than the fastest skips some
of the --rounds rounds.

A row is a cell: the median over rounds of the chosen scheme, beside the fastest pinned one. `ms` has all medians,
`predicted_ms` the prediction of `auto` for its choice, `of_one` and `of_all` the density of one rank and of the sum,
and `overlap` the measured mean over pairs of ranks. A table with few rows has no room for little overlap at a high
density. The last row counts the cells in OUT.json that are more than 3 % off; rows of cells that are not run are
kept. --journals keeps the journal of each tuning.
"""
import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True  # leave no __pycache__ in the source tree

from support.shaped import Bench, LinkRefused, row, save  # noqa: E402

WORSE = 1.03  # factor over the best, at most
SHARE = 0.05  # of cells that may be worse
ALL = "all cells"


def cell_name(ranks, density, overlap, rate):
    return f"{ranks} ranks, {density} %, overlap {overlap}, {rate}"


def medians(blocks_ms):
    """For schemes that ran in all rounds, ms by name."""
    rounds = max(map(len, blocks_ms.values()))
    return {name: statistics.median(blocks) for name, blocks in blocks_ms.items() if len(blocks) == rounds}


def add_cell(rows, name, report):
    """Its row replaces an older one."""
    rows[:] = [other for other in rows if not other["name"].startswith(f"{name}:")]
    chosen, blocks_ms = report["chosen"], report["blocks_ms"]
    ms = medians(blocks_ms)
    best = min((scheme for scheme in ms if scheme != "auto"), key=ms.get)
    row(rows, f"{name}: {chosen} / {best}", ms[chosen], ms[best],
        [a / b for a, b in zip(blocks_ms[chosen], blocks_ms[best])], WORSE)
    rows[-1].update({"strategy": report["label"], "decided": report["decided"], "steps": report["tuning"],
                     "predicted_ms": report.get("predicted_ms"),
                     "ms": {scheme: statistics.median(blocks) for scheme, blocks in blocks_ms.items()},
                     **{key: report[key] for key in ("of_one", "of_all", "overlap")}})


def add_summary(rows):
    """Over all cells, as the last row."""
    rows[:] = [entry for entry in rows if not entry["name"].startswith(ALL)]
    worse = [not entry["met"] for entry in rows]
    share = sum(worse) / len(worse)
    row(rows, f"{ALL}: more than {100 * (WORSE - 1):.0f} % off, of {len(worse)}", 100 * share, 100 * SHARE, [share],
        SHARE, "%")


class ChoiceBench(Bench):
    def __init__(self, build, folder):
        super().__init__(build, folder)
        self.program = build / "tests" / "bench" / "sparse_choice_rank"

    def run(self, ranks, density, overlap, rate, flags):
        """The report of rank 0."""
        command = [self.program, "--density", float(density) / 100, "--overlap", overlap, "--rounds", flags.rounds,
                   "--steps", flags.steps, "--tuning", flags.tuning, "--folder", self.folder]
        self.launch(self.launcher(rate, nodes=ranks), command)
        return json.loads((self.folder / "report.json").read_text(encoding="utf-8"))


def flags_of(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("out", type=Path)
    for name, default in {"ranks": "2,4,8", "densities": "0.01,0.1,1,10,50", "overlaps": "0.2,0.5,0.9",
                          "rates": "1gbit"}.items():
        parser.add_argument(f"--{name}", default=default)
    for name, default in {"rounds": 7, "steps": 6, "tuning": 300}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--journals", type=Path)
    flags = parser.parse_args(arguments)
    flags.cells = [(int(ranks), density, overlap, rate)
                   for rate in flags.rates.split(",") for ranks in flags.ranks.split(",")
                   for density in flags.densities.split(",") for overlap in flags.overlaps.split(",")]
    return flags


def main():
    flags = flags_of(sys.argv[1:])
    rows = json.loads(flags.out.read_text(encoding="utf-8"))["rows"] if flags.out.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        bench = ChoiceBench(flags.build.resolve(), folder)
        for cell in flags.cells:
            name = cell_name(*cell)
            try:
                report = bench.run(*cell, flags)
            except LinkRefused as error:
                print(f"{name}: not measured, as its link failed the probe: {error}", flush=True)
                continue
            add_cell(rows, name, report)
            add_summary(rows)
            save(flags.out, rows)
            if flags.journals:
                flags.journals.mkdir(parents=True, exist_ok=True)
                shutil.copy(bench.folder / "journal.jsonl", flags.journals / f"{name}.jsonl")


if __name__ == "__main__":
    main()
