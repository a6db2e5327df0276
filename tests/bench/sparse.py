#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Measures jobs whose tables hold most of their parameters: gradtune beside dense DDP and a manual sparse
all-gather.

usage: sparse.py [--parts lstm-1gbit,...] [--rounds 3] [--steps 12] [--tuning 200] [--device cpu] BUILD_FOLDER OUT.json

With --device cuda all ranks train on one GPU, and Gloo carries gradients.

Models and arms are those of support/sparse_job.cc. In each part `auto` tunes once, in a job of --tuning steps, and
exports its strategy. Then arms take turns in fresh processes, `auto` with that strategy pinned. A job's step is the
median of the second half of its steps.

The anchor is DDP; `auto` also has the fastest of the pinned arms as an anchor. `error` is the largest relative
difference between a loss and that of the same step under DDP: 0 means the same bits. On two ranks sums over
ranks have one order, so only LibTorch's order of adding rows that repeat in a batch may differ, dense and sparse. On
four ranks by_hand, gather and two_step add in the order of ranks. recursive_doubling, which two ranks do not have,
adds in pairs.
"""
import json
import statistics
import sys
import tempfile

sys.dont_write_bytecode = True  # leave no __pycache__ in the source tree

from support.shaped import Bench, flags_of_parts, row, save  # noqa: E402

PINNED = ("dense", "gather", "two_step", "recursive_doubling")
PARTS = [f"{model}-{rate}" + nodes for model in ("lstm", "deepfm") for rate in ("1gbit", "200mbit")
         for nodes in ("", "-4")]
WORSE = 1.02  # factor that auto may be slower than the best other
FASTER = 1 / 3  # factor over DDP


class SparseBench(Bench):
    def __init__(self, build, folder, device):
        super().__init__(build, folder)
        self.device = device
        self.program = build / "tests" / "bench" / "sparse_job"

    def run(self, part, arm, strategy, steps):
        """The report of rank 0."""
        model, rate, *nodes = part.split("-")
        report = self.folder / "sparse.json"
        self.launch(self.launcher(rate, nodes=int(nodes[0]) if nodes else 2),
                    [self.program, "--model", model, "--arm", arm, "--steps", steps, "--strategy", strategy,
                     "--report", report, "--device", self.device])
        return json.loads(report.read_text(encoding="utf-8"))


def measure(bench, part, flags):
    tuned, file = bench.folder / f"{part}.json", bench.folder / "pinned.json"
    told = bench.run(part, "auto", tuned, flags.tuning)
    print(f"{part}: auto {'decided' if told['decided'] else 'DID NOT DECIDE'}:\n{told['description']}", flush=True)
    pinned = PINNED if part.endswith("-4") else PINNED[:-1]
    arms = ("ddp", "by_hand", *pinned, "auto")
    times, losses, strategies = {arm: [] for arm in arms}, {}, {"auto": told["description"]}
    for _ in range(flags.rounds):
        for arm in arms:
            report = bench.run(part, "file", tuned, flags.steps) if arm == "auto" else \
                bench.run(part, arm, file, flags.steps)
            ms = [step["ms"] for step in report["steps"]]
            times[arm].append(statistics.median(ms[len(ms) // 2:]))
            losses[arm] = {step["step"]: step["loss"] for step in report["steps"]}
            strategies.setdefault(arm, report.get("description", ""))
    rows, anchor = flags.rows, statistics.median(times["ddp"])
    for arm in arms[1:]:
        row(rows, f"{part}: {arm} / ddp", statistics.median(times[arm]), anchor,
            [a / b for a, b in zip(times[arm], times["ddp"])], FASTER if arm == "auto" else None)
        rows[-1]["strategy"] = strategies[arm]
        rows[-1]["error"] = max(abs(loss - losses["ddp"][step]) / abs(losses["ddp"][step])
                                for step, loss in losses[arm].items())
    best = min(pinned, key=lambda arm: statistics.median(times[arm]))
    row(rows, f"{part}: auto / best other ({best})", statistics.median(times["auto"]), statistics.median(times[best]),
        [a / b for a, b in zip(times["auto"], times[best])], WORSE)


def main():
    flags = flags_of_parts(__doc__, PARTS, rounds=3, steps=12, tuning=200, device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        bench = SparseBench(flags.build, folder, flags.device)
        for part in flags.parts:
            measure(bench, part, flags)
            save(flags.out, flags.rows)


if __name__ == "__main__":
    main()
