#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""gradtune beside PyTorch DDP: the same model, data, seeds and shaped links, interleaved in one run.

usage: vs_ddp.py BUILD_FOLDER OUT.json [--rates 1gbit,200mbit] [--rounds 3] [--seeds 3]

1. Every DDP row (hook) is timed with bucket_cap_mb 2, 5, 25 and 100; its best one goes on ("tuned DDP").
2. gradtune tunes once at each fidelity and exports its strategy; the journal holds every strategy that it raced.
3. Rounds: each DDP row, each exported strategy and each raced one, one fresh pair of processes each, one after the other. The
   value of a row is the median over rounds of the median step; ratios are taken inside a round; spread is their range.
4. Accuracy after one epoch (468 steps of 2 x 64), the same seeds for all rows; gradtune tunes as in 2 while it trains.
5. Nothing to gain: mlp-small without shaping, exact.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOOKS = {"fp32": "none", "fp16": "fp16", "bf16": "bf16", "powersgd1": "powersgd1", "powersgd4": "powersgd4",
         "powersgd4+fp16": "powersgd4_fp16"}
CAPS = [2, 5, 25, 100]
WARM_UP = 12
EPOCH = 468


class Bench:
    def __init__(self, build, folder):
        self.program = build / "examples" / "train_fashion_mnist"
        self.folder = Path(folder)
        self.count = 0

    def cluster(self, rate, command, environment=None, attempts=3):
        """Runs it on two nodes and returns its report. A link that fails its probe on a busy machine is tried again."""
        self.count += 1
        report = self.folder / f"report{self.count}.json"
        launcher = [sys.executable, ROOT / "examples" / "cluster", "--nodes", "2", "--ranks-per-node", "1", "--rate", rate, "--"]
        for _ in range(attempts):
            done = subprocess.run([str(word) for word in [*launcher, *command, "--report", report]], check=False,
                                  env=dict(os.environ, GRADTUNE_QUIET="1", **(environment or {})),
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            if done.returncode == 0:
                return json.loads(report.read_text(encoding="utf-8"))
            if done.returncode != 3:
                break
        raise RuntimeError(f"{command} at {rate} ended with code {done.returncode}:\n{done.stderr[-2000:]}")

    def ddp(self, rate, hook, cap, steps, seed=0, evaluate=False, model="vgg"):
        command = [sys.executable, ROOT / "tests" / "bench" / "ddp_train.py", "--model", model, "--hook", hook,
                   "--bucket-cap-mb", cap, "--steps", steps, "--seed", seed]
        return self.cluster(rate, command + (["--eval"] if evaluate else []))

    def gradtune(self, rate, flags, steps, pinned=None, evaluate=False):
        command = [self.program, "--steps", steps, *flags] + ([] if evaluate else ["--no-eval"])
        if pinned is None:
            return self.cluster(rate, command)
        return self.cluster(rate, command + ["--strategy", pinned], {"GRADTUNE_TUNING_BUDGET": "0"})


def median_step(report, warm_up=WARM_UP):
    return statistics.median(step["ms"] for step in report["steps"][warm_up:])


def steps_for(rate):
    return 40 if rate != "200mbit" else 30


def raced_strategies(journal, folder, tag):
    """Every strategy that went through the race, as files, by label."""
    plans, raced = {}, set()
    for line in journal.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if "strategy" in entry and isinstance(entry["strategy"], dict):
            plans[entry["strategy"]["label"]] = entry["strategy"]
        if entry.get("stage") == "race" and entry.get("label"):
            raced.add(entry["label"])
    files = {}
    for label in sorted(raced & plans.keys()):
        files[label] = folder / f"{tag}-{len(files)}.json"
        files[label].write_text(json.dumps(plans[label]), encoding="utf-8")
    return files


def row(rows, name, value, anchor, ratios, goal, unit="ms"):
    ratio = statistics.median(ratios)
    rows.append({"name": name, "value": round(value, 2), "unit": unit, "anchor": round(anchor, 2), "ratio": round(ratio, 4),
                 "spread": [round(min(ratios), 4), round(max(ratios), 4)], "goal": goal,
                 "met": None if goal is None else ratio <= goal})
    print(f"{name:58} {value:8.1f} {unit}  anchor {anchor:8.1f}  ratio {ratio:.3f} [{min(ratios):.3f}, {max(ratios):.3f}]"
          + ("" if goal is None else f"  goal {goal}: {'met' if ratio <= goal else 'MISSED'}"), flush=True)


def best_caps(bench, rate):
    caps = {}
    for name, hook in HOOKS.items():
        choices = [100] if name.startswith("powersgd") else CAPS  # PowerSGD: as one bucket, several can hang over Gloo
        times = {cap: median_step(bench.ddp(rate, hook, cap, steps_for(rate) // 2 + 5), 8) for cap in choices}
        caps[name] = min(times, key=times.get)
        print(f"{rate}: DDP {name}: best bucket_cap_mb {caps[name]} of {({c: round(t, 1) for c, t in times.items()})}", flush=True)
    return caps


def tune(bench, rate, fidelity):
    tag = f"{rate}-{fidelity}"
    exported, journal = bench.folder / f"{tag}.json", bench.folder / f"{tag}.jsonl"
    report = bench.gradtune(rate, ["--fidelity", fidelity, "--export", exported, "--journal", journal], 420)
    print(f"{rate}: gradtune {fidelity}: {report['baseline_ms']:.1f} -> {report['committed_ms']} ms, {report['strategy']['label']}",
          flush=True)
    return {"report": report, "exported": exported, "arms": raced_strategies(journal, bench.folder, tag)}


def time_rate(bench, rate, rounds, rows):
    caps = best_caps(bench, rate)
    tuned = {fidelity: tune(bench, rate, fidelity) for fidelity in ("exact", "half", "lossy")}
    times = {}
    for _ in range(rounds):
        for name, hook in HOOKS.items():
            times.setdefault(("ddp", name), []).append(median_step(bench.ddp(rate, hook, caps[name], steps_for(rate))))
        times.setdefault(("ddp", "compute alone"), []).append(median_step(bench.ddp(rate, "local", 25, 40)))
        for fidelity, result in tuned.items():
            for label, file in {"committed": result["exported"], **result["arms"]}.items():
                report = bench.gradtune(rate, ["--fidelity", fidelity], steps_for(rate), pinned=file)
                times.setdefault((fidelity, label), []).append(median_step(report))
    medians = {key: statistics.median(values) for key, values in times.items()}
    for (kind, name), value in medians.items():
        if kind == "ddp":
            anchor = times[("ddp", "fp32")]
            row(rows, f"{rate}: DDP {name}", value, medians[("ddp", "fp32")],
                [a / b for a, b in zip(times[(kind, name)], anchor)], None)
    half = min(("fp16", "bf16"), key=lambda name: medians[("ddp", name)])
    goals = {"1gbit": {"exact": 0.96, "half": 0.97}, "200mbit": {"exact": 0.99, "half": 0.99}}.get(rate, {})
    for fidelity, anchor in (("exact", "fp32"), ("half", half)):
        ours = times[(fidelity, "committed")]
        row(rows, f"{rate}: gradtune {fidelity} / DDP {anchor}", medians[(fidelity, "committed")], medians[("ddp", anchor)],
            [a / b for a, b in zip(ours, times[("ddp", anchor)])], goals.get(fidelity))
    for fidelity, result in tuned.items():
        arms = {label: medians[(fidelity, label)] for label in result["arms"]}
        if arms:
            best = min(arms, key=arms.get)
            row(rows, f"{rate}: gradtune {fidelity} committed / best pinned ({best})", medians[(fidelity, "committed")], arms[best],
                [a / b for a, b in zip(times[(fidelity, "committed")], times[(fidelity, best)])], 1.03)
    return times, medians, caps


def accuracies(bench, rate, seeds, caps):
    """Mean accuracy over seeds by row; DDP's numbers do not depend on the link, so its rows run unshaped."""
    found = {}
    for seed in range(seeds):
        for name, hook in HOOKS.items():
            found.setdefault(name, []).append(bench.ddp("none", hook, caps[name], EPOCH, seed, evaluate=True)["accuracy"])
        report = bench.gradtune(rate, ["--fidelity", "lossy", "--seed", seed], EPOCH, evaluate=True)
        found.setdefault("gradtune lossy", []).append(report["accuracy"])
    return {name: statistics.mean(values) for name, values in found.items()}


def lossy_rows(rate, times, medians, accuracy, rows):
    for name, value in accuracy.items():
        rows.append({"name": f"{rate}: accuracy {name}", "value": round(value, 2), "unit": "%", "anchor": round(accuracy["fp32"], 2),
                     "ratio": round(value / accuracy["fp32"], 4), "spread": None, "goal": None, "met": None})
        print(f"{rate}: accuracy {name:20} {value:.2f} %", flush=True)
    sound = [name for name in HOOKS if accuracy[name] >= accuracy["fp32"] - 0.5]
    anchor = min(sound, key=lambda name: medians[("ddp", name)])
    ratios = [a / b for a, b in zip(times[("lossy", "committed")], times[("ddp", anchor)])]
    row(rows, f"{rate}: gradtune lossy / best sound DDP row ({anchor})", medians[("lossy", "committed")], medians[("ddp", anchor)],
        ratios, 0.90)
    loss = accuracy["fp32"] - accuracy["gradtune lossy"]
    rows.append({"name": f"{rate}: accuracy lost by gradtune lossy", "value": round(loss, 2), "unit": "points", "anchor": 0,
                 "ratio": None, "spread": None, "goal": 0.5, "met": loss <= 0.5})


def nothing_to_gain(bench, rounds, rows):
    ours, ddp, stayed = [], [], True
    for _ in range(rounds):
        ddp.append(median_step(bench.ddp("none", "none", 25, 500, model="mlp-small"), 300))
        report = bench.gradtune("none", ["--model", "mlp-small", "--fidelity", "exact"], 1200)
        watched = [step["ms"] for step in report["steps"] if step["stage"] == "watch"]
        ours.append(statistics.median(watched))
        stayed = stayed and report["committed_ms"] is None
    row(rows, f"mlp-small unshaped, exact (baseline stays: {stayed}) / DDP", statistics.median(ours), statistics.median(ddp),
        [a / b for a, b in zip(ours, ddp)], 1.01)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rates", default="1gbit,200mbit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    flags = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(flags.build.resolve(), folder)
        for rate in flags.rates.split(","):
            times, medians, caps = time_rate(bench, rate, flags.rounds, rows)
            if flags.seeds > 0:
                lossy_rows(rate, times, medians, accuracies(bench, rate, flags.seeds, caps), rows)
        nothing_to_gain(bench, flags.rounds, rows)
    flags.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
