#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs whose tables hold most of their parameters: gradtune beside dense sums and beside a sparse all-gather by hand.

usage: sparse.py [--parts lstm-1gbit,...] [--rounds 3] [--steps 30] BUILD_FOLDER OUT.json

Models and arms are those of support/sparse_job.cc. Arms take turns in fresh processes; a step is the median of the second
half of them. The anchor is the dense arm, and of `auto` also the fastest of the others that are sparse. Losses of all arms
are those of the dense one but for the order of sums.
"""
import json
import statistics
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True  # leave no __pycache__ in the source tree

from support.shaped import Bench, flags_of_parts, row, save  # noqa: E402

ARMS = ("dense", "by_hand", "gather", "zen", "auto")
PARTS = [f"{model}-{rate}" + nodes for model in ("lstm", "deepfm") for rate in ("1gbit", "200mbit")
         for nodes in ("", "-4")]
WORSE = 1.02  # that auto may be than the best other
FASTER = 1 / 3  # of the dense arm


def measure(bench, program, part, flags):
    model, rate, *nodes = part.split("-")
    times, losses, strategies = {arm: [] for arm in ARMS}, {}, {}
    for _ in range(flags.rounds):
        for arm in ARMS:
            steps = flags.steps if arm in ("zen", "auto") else 8
            report = bench.folder / "sparse.json"
            bench.launch(bench.launcher(rate, nodes=int(nodes[0]) if nodes else 2),
                         [program, "--model", model, "--arm", arm, "--steps", steps, "--report", report])
            told = json.loads(report.read_text(encoding="utf-8"))
            ms = [step["ms"] for step in told["steps"]]
            times[arm].append(statistics.median(ms[len(ms) // 2:]))
            losses[arm] = [step["loss"] for step in told["steps"]][:8]
            strategies[arm] = told.get("strategy", "")
    rows = flags.rows
    dense = statistics.median(times["dense"])
    for arm in ARMS[1:]:
        ratios = [a / b for a, b in zip(times[arm], times["dense"])]
        row(rows, f"{part}: {arm} / dense", statistics.median(times[arm]), dense, ratios,
            FASTER if arm == "auto" else None)
        rows[-1]["strategy"] = strategies[arm]
        rows[-1]["error"] = max(abs(a - b) / abs(b) for a, b in zip(losses[arm], losses["dense"]))
    best = min((arm for arm in ARMS[1:-1]), key=lambda arm: statistics.median(times[arm]))
    row(rows, f"{part}: auto / best other ({best})", statistics.median(times["auto"]), statistics.median(times[best]),
        [a / b for a, b in zip(times["auto"], times[best])], WORSE)


def main():
    flags = flags_of_parts(__doc__, PARTS, rounds=3, steps=60)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(flags.build, folder)
        for part in flags.parts:
            measure(bench, flags.build / "tests" / "bench" / "sparse_job", part, flags)
            save(flags.out, flags.rows)


if __name__ == "__main__":
    main()
