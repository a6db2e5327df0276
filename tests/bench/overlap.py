#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Measures option forward_overlap: step times with and without it, beside PyTorch DDP and a fixed partition, on
shaped links.

usage: overlap.py [--parts large-first,large-last,transformer] [--rates 200mbit,500mbit,1gbit] [--delays none,5ms]
                  [--rounds 3] [--steps 50] [--tuning 260] BUILD_FOLDER OUT.json

For each model, rate and delay, all at fidelity `exact`:
1. `auto` tunes without and with the option and exports the committed strategy; its journals hold its predictions.
2. Rounds run DDP with buckets of 25 and of 5 MB, and pinned strategies, one fresh pair of processes each, one after
   the other. The strategies are:
   - without: the one committed without the option
   - with: the one committed with it
   - late: the one committed without it, but every bucket is due at the next forward pass
   - partition: that of ByteScheduler: pieces of 1 MB, for any duration, each sent when it is ready, due at the next
     forward pass

The value of a row is the median over rounds of the median step; ratios are taken inside a round; their spread is
their range.

Rows `prediction` have the predicted step as their anchor. The goal of `with / without` is 1.01, and 0.95 if the best
prediction is better by 5 % or more with the option. Rows of parts that are not run are kept from OUT.json.
"""
import argparse
import json
import math
import statistics
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True  # leave no __pycache__ in the source tree

from support.shaped import ROOT, Bench, decided_values, measured_ms, median_step, row, save  # noqa: E402

MODELS = ("large-first", "large-last", "transformer")
WARM_UP = 12  # steps, of which five are observed
PIECE = 1 << 18  # elements
ON = {"GRADTUNE_FORWARD_OVERLAP": "true"}
PINNED = {"GRADTUNE_TUNING_BUDGET": "0"}
GOAL_WORSE, GOAL_PREDICTED = 1.01, 0.95  # for the strategy committed with the option, beside without


class OverlapBench(Bench):
    def __init__(self, build, folder, model, rate, delay):
        super().__init__(build, folder)
        self.model, self.rate, self.delay = model, rate, delay

    def launcher(self, rate, extra=(), nodes=2, ranks_per_node=1):
        shape = [] if self.delay == "none" else ["--delay", self.delay]
        return super().launcher(rate, [*extra, *shape], nodes, ranks_per_node)

    def ddp(self, cap, steps):
        command = [sys.executable, ROOT / "tests" / "bench" / "ddp_train.py", "--model", self.model, "--bucket-cap-mb",
                   cap, "--steps", steps]
        return self.cluster(self.rate, command)

    def train(self, steps, flags=(), environment=None):
        command = [self.program, "--model", self.model, "--fidelity", "exact", "--no-eval", "--steps", steps, *flags]
        return self.cluster(self.rate, command, environment)

    def tune(self, name, steps, environment):
        """Returns the exported strategy and the journal."""
        strategy, journal = self.folder / f"{name}.json", self.folder / f"{name}.jsonl"
        report = self.train(steps, ["--policy", "auto", "--export", strategy, "--journal", journal], environment)
        print(f"{self.model}, {self.rate}, {self.delay}: {name}: {report['baseline_ms']:.1f} -> "
              f"{report['committed_ms']} ms, {report['strategy']['label']}", flush=True)
        return strategy, [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]


def with_due(strategy, path):
    """The same, but every bucket is due at the next forward pass."""
    plan = json.loads(strategy.read_text(encoding="utf-8"))
    for bucket in plan["buckets"]:
        bucket["due"] = "forward"
    plan.update(label="late", evidence=None)
    path.write_text(json.dumps(plan), encoding="utf-8")
    return path


def partition(strategy, path):
    """Pieces of one size of the same tensors, in the same order."""
    plan = json.loads(strategy.read_text(encoding="utf-8"))
    whole = [slice for bucket in plan["buckets"] for slice in bucket["slices"]]
    buckets = []
    for piece in whole:
        for begin in range(0, piece["length"], PIECE):
            part = piece | {"offset": piece["offset"] + begin, "length": min(PIECE, piece["length"] - begin)}
            buckets.append({"option": "all_reduce", "due": "forward", "slices": [part]})
    plan.update(label="partition", buckets=buckets, order=[[number, 0] for number in range(len(buckets))], in_flight=4,
                evidence=None)
    path.write_text(json.dumps(plan), encoding="utf-8")
    return path


def predictions(rows, name, entries):
    """The error of the model for strategies that were predicted before they ran."""
    predicted = decided_values(entries, "predict")
    errors = []
    for label, ms in measured_ms(entries).items():
        if label in predicted:
            errors.append(abs(predicted[label] / ms - 1))
            row(rows, f"{name}: prediction: {label}", ms, predicted[label], [ms / predicted[label]], None)
    return errors


def best_prediction(entries):
    return min(decided_values(entries, "predict").values(), default=math.nan)


def one_job(bench, flags, rows):
    name = f"{bench.model}: {bench.rate}" + (f", {bench.delay}" if bench.delay != "none" else "")
    without, entries_without = bench.tune("without", flags.tuning, {})
    with_it, entries = bench.tune("with", flags.tuning, ON)
    errors = predictions(rows, name, entries)
    is_gain_predicted = best_prediction(entries) <= GOAL_PREDICTED * best_prediction(entries_without)
    arms = {"without": (without, PINNED), "with": (with_it, PINNED | ON),
            "late": (with_due(without, bench.folder / "late.json"), PINNED | ON),
            "partition": (partition(without, bench.folder / "partition.json"), PINNED | ON)}
    times = {}
    for _ in range(flags.rounds):
        for cap in (25, 5):
            times.setdefault(f"DDP, {cap} MB", []).append(median_step(bench.ddp(cap, flags.steps), WARM_UP))
        for arm, (file, environment) in arms.items():
            report = bench.train(flags.steps, ["--strategy", file], environment)
            times.setdefault(arm, []).append(median_step(report, WARM_UP))
        print(f"{name}: {({key: round(ms[-1], 1) for key, ms in times.items()})}", flush=True)
    anchor = min(("DDP, 25 MB", "DDP, 5 MB"), key=lambda key: statistics.median(times[key]))
    goal = GOAL_PREDICTED if is_gain_predicted else GOAL_WORSE
    for arm, beside, limit in [(key, anchor, None) for key in ("without", "with", "late", "partition")] + [
            ("with", "without", goal), ("late", "without", None), ("partition", "without", None)]:
        row(rows, f"{name}: {arm} / {beside}", statistics.median(times[arm]), statistics.median(times[beside]),
            [a / b for a, b in zip(times[arm], times[beside])], limit)
    if errors:
        row(rows, f"{name}: error of {len(errors)} predictions, median", 100 * statistics.median(errors), 0, errors,
            None, "%")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--parts", default=",".join(MODELS))
    parser.add_argument("--rates", default="200mbit,500mbit,1gbit")
    parser.add_argument("--delays", default="none,5ms")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--tuning", type=int, default=260, help="steps of a job that tunes")
    flags = parser.parse_args()
    if unknown := [part for part in flags.parts.split(",") if part not in MODELS]:
        parser.error(f"--parts {','.join(unknown)}: there are {', '.join(MODELS)}")
    rows = json.loads(flags.out.read_text(encoding="utf-8"))["rows"] if flags.out.exists() else []
    for model in flags.parts.split(","):
        for rate in flags.rates.split(","):
            for delay in flags.delays.split(","):
                job = f"{model}: {rate}" + (f", {delay}" if delay != "none" else "") + ":"
                rows[:] = [entry for entry in rows if not entry["name"].startswith(job)]
                with tempfile.TemporaryDirectory() as folder:
                    one_job(OverlapBench(flags.build.resolve(), folder, model, rate, delay), flags, rows)
                save(flags.out, rows)


if __name__ == "__main__":
    main()
