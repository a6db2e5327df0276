#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the error of policy `auto`'s model, and its cost: predicted beside measured step times on shaped links.

usage: prediction.py [--parts plain,delayed,ranks,elsewhere,win,packing,training] BUILD_FOLDER OUT.json

Most jobs have recorded computation: forward, backward and update sleep, gradients become ready at recorded times,
and communication and compression are real. So two cores can host eight ranks. A job follows a live `auto`:
baselines, fitted model, rounds, choice. Then the model predicts strategies that it has not seen (the best fusions
under one compressor, plans for each tensor, pinned ones). All are measured in the same processes, in alternating
blocks.

Parts:
- plain: three models at three rates, two ranks
- delayed: the same with a delay
- ranks: four and eight ranks on two nodes
- elsewhere: two ranks forecast the baseline on 4, 6 and 8 ranks, as `gradtune what-if` does, and as many real ranks
  measure it
- win: 2 x 2 ranks at 200 Mbit/s, a model of large and small tensors: `auto` beside the best fusion and the best plan
  for each tensor
- packing: the three models at two rates, with packed compressors only: their payload sizes depend on the gradients,
  which are normally distributed
- training: real training (examples/train_fashion_mnist) under `auto`, with predictions and measurements from its
  journal

Rows of strategies have predicted step times as anchors. Rows of jobs, and of all parts together, have the median and
the 90th percentile of the error, and `auto` beside the best strategy of the job. Rows of parts that are not run are
kept from OUT.json.
"""
import json
import statistics
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True  # leave no __pycache__ in the source tree

from support.shaped import Bench, decided_values, flags_of_parts, measured_ms, row, save  # noqa: E402

MODELS = Path(__file__).resolve().parent / "models"
REST_MS = {"vgg": 35, "transformer": 18, "mixed": 30}  # of a step, in addition to the recorded time between gradients
RATES = ("200mbit", "500mbit", "1gbit")
DELAY = "5ms"
GOAL_MEDIAN, GOAL_P90, GOAL_REGRET, GOAL_WIN = 0.05, 0.10, 1.03, 0.95


def p90(values):
    return sorted(values)[min(len(values) - 1, int(0.9 * len(values)))]


class Predictions:
    """Jobs, their rows, and the results of all of them."""

    def __init__(self, bench, build, rows, out):
        self.bench, self.rows, self.out = bench, rows, out
        self.program = build / "tests" / "bench" / "recorded_job"

    def job(self, part, model, rate, delay="none", nodes=2, ranks_per_node=1, flags=()):
        """Runs one and adds its rows: for each strategy that the model had not seen, and for `auto`."""
        self.bench.count += 1
        out = self.bench.folder / f"job{self.bench.count}.json"
        shape = [] if delay == "none" else ["--delay", delay]
        command = [self.program, MODELS / f"{model}.json", out, "--rest-ms", REST_MS[model], *flags]
        self.bench.launch(self.bench.launcher(rate, shape, nodes, ranks_per_node), command)
        job = json.loads(out.read_text(encoding="utf-8"))
        name = f"{part}: {model}, {nodes}x{ranks_per_node}, {rate}" + (f", {delay}" if delay != "none" else "")
        for arm in job["arms"]:
            arm["error"] = abs(arm["predicted_ms"] / arm["measured_ms"] - 1)
            seen = " (seen)" if arm["was_tried"] else ""
            ratios = [statistics.median(block) / arm["predicted_ms"] for block in arm["blocks_ms"]]
            row(self.rows, f"{name}: {arm['kind']} {arm['label']}{seen}", arm["measured_ms"], arm["predicted_ms"],
                ratios, None)
        errors = [arm["error"] for arm in job["arms"] if not arm["was_tried"]]
        if errors:
            row(self.rows, f"{name}: error of {len(errors)} predictions, median", 100 * statistics.median(errors), 0,
                errors, GOAL_MEDIAN, "%")
        mine, others = job["arms"][0], job["arms"][1:]
        best = min(others, key=lambda arm: arm["measured_ms"])
        row(self.rows, f"{name}: auto / best other ({best['label']})", mine["measured_ms"], best["measured_ms"],
            [mine["measured_ms"] / best["measured_ms"]], GOAL_REGRET)
        save(self.out, self.rows)
        return job


def plain(predictions):
    for model in REST_MS:
        for rate in RATES:
            predictions.job("plain", model, rate)


def delayed(predictions):
    for model in REST_MS:
        for rate in RATES:
            predictions.job("delayed", model, rate, DELAY)


def ranks(predictions):
    for ranks_per_node in (2, 4):
        for model, rate in (("transformer", "200mbit"), ("transformer", "1gbit"), ("mixed", "1gbit")):
            predictions.job("ranks", model, rate, ranks_per_node=ranks_per_node)


def elsewhere(predictions):
    """Each rank is on a node of its own. The rows' anchor is the forecast of the job with two ranks."""
    for model, rate in (("transformer", "200mbit"), ("vgg", "200mbit"), ("vgg", "1gbit")):
        forecast = predictions.job("elsewhere", model, rate, flags=["--elsewhere", "4,6,8"])["elsewhere"]
        for asked in forecast:
            job = predictions.job("elsewhere", model, rate, nodes=asked["ranks"])
            baseline = next(arm for arm in job["arms"] if arm["kind"] == "baseline")
            ratios = [statistics.median(block) / asked["baseline_ms"] for block in baseline["blocks_ms"]]
            row(predictions.rows, f"elsewhere: {model}, {rate}: baseline on {asked['ranks']} ranks / forecast by two",
                baseline["measured_ms"], asked["baseline_ms"], ratios, None)
            save(predictions.out, predictions.rows)


def win(predictions):
    """If the planner predicts a gain of 10 % or more, 5 % must be measured."""
    for compressors, delay in (("bf16", "none"), ("topk:0.01", "none"), ("topk:0.01", DELAY)):
        job = predictions.job("win", "mixed", "200mbit", delay, ranks_per_node=2, flags=["--compressors", compressors])
        mine = job["arms"][0]
        rivals = {"fusion": [arm for arm in job["arms"] if arm["kind"] in ("fusion", "pinned")],
                  "tensor": [arm for arm in job["arms"] if arm["kind"] == "tensor"]}
        rivals["flat fusion"] = [arm for arm in rivals["fusion"] if "@intra" not in arm["label"]]
        for kind, arms in rivals.items():
            if not arms:
                continue
            best = min(arms, key=lambda arm: arm["measured_ms"])
            expected = mine["predicted_ms"] / min(arm["predicted_ms"] for arm in arms)
            row(predictions.rows, f"win: {compressors}, {delay}: auto / best {kind}, predicted {expected:.3f}",
                mine["measured_ms"], best["measured_ms"],
                [statistics.median(a) / statistics.median(b) for a, b in zip(mine["blocks_ms"], best["blocks_ms"])],
                GOAL_WIN if expected <= 0.9 else None)


def packing(predictions):
    errors = []
    for model in REST_MS:
        for rate in ("200mbit", "1gbit"):
            job = predictions.job("packing", model, rate, flags=["--compressors", "bf16packed,int4packed,int3packed"])
            errors += [arm["error"] for arm in job["arms"] if not arm["was_tried"]]
    row(predictions.rows, f"packing: error of {len(errors)} predictions, median", 100 * statistics.median(errors), 0,
        errors, GOAL_MEDIAN, "%")


def training(predictions):
    """A live run: the candidates of each round, predicted before they ran."""
    bench = predictions.bench
    for rate in ("200mbit", "1gbit"):
        bench.count += 1
        journal = bench.folder / f"training{bench.count}.jsonl"
        flags = ["--steps", 170, "--no-eval", "--fidelity", "lossy", "--policy", "auto", "--journal", journal]
        bench.launch(bench.launcher(rate), [bench.program, *flags])
        entries = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
        predicted = decided_values(entries, "predict")
        errors = []
        for label, ms in measured_ms(entries).items():
            if label not in predicted:
                continue
            errors.append(abs(predicted[label] / ms - 1))
            row(predictions.rows, f"training: vgg, 2x1, {rate}: {label}", ms, predicted[label], [ms / predicted[label]],
                None)
        row(predictions.rows, f"training: vgg, 2x1, {rate}: error of {len(errors)} candidates, median",
            100 * statistics.median(errors), 0, errors, None, "%")


def summary(rows):
    """Over all jobs with recorded computation that OUT.json holds."""
    rows[:] = [entry for entry in rows if not entry["name"].startswith("all:")]
    measured = [entry for entry in rows if entry["unit"] == "ms" and entry["name"].split(":")[0] != "training"]
    unseen = [entry for entry in measured
              if "(seen)" not in entry["name"] and " / " not in entry["name"].split(": ", 2)[2]]
    errors = [abs(entry["anchor"] / entry["value"] - 1) for entry in unseen]
    regrets = [entry["ratio"] for entry in measured if ": auto / best other" in entry["name"]]
    if not errors:
        return
    row(rows, f"all: error of {len(errors)} predictions, median", 100 * statistics.median(errors), 0,
        [statistics.median(errors)], GOAL_MEDIAN, "%")
    row(rows, f"all: error of {len(errors)} predictions, 90th percentile", 100 * p90(errors), 0, [p90(errors)],
        GOAL_P90, "%")
    row(rows, f"all: auto / best other, median of {len(regrets)} jobs", statistics.median(regrets), 1,
        [statistics.median(regrets)], GOAL_REGRET, "x")
    row(rows, "all: auto / best other, the worst job", max(regrets), 1, [max(regrets)], GOAL_REGRET, "x")


def main():
    parts = {"plain": plain, "delayed": delayed, "ranks": ranks, "elsewhere": elsewhere, "win": win, "packing": packing, "training": training}
    flags = flags_of_parts(__doc__, parts)
    with tempfile.TemporaryDirectory() as folder:
        predictions = Predictions(Bench(flags.build, folder), flags.build, flags.rows, flags.out)
        for part in flags.parts:
            parts[part](predictions)
            summary(flags.rows)
            save(flags.out, flags.rows)


if __name__ == "__main__":
    main()
