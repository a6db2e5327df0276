#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Records step times under some strategies on real ranks over a link of two rates, for drift_golden_test.

usage: record_steps.py BUILD_FOLDER OUT.json

It runs two ranks of the reference job on a shaped network (examples/cluster), with each strategy pinned in its own
run: the baselines, and strategies from the journals here. The output has a line for each strategy and rate: [step,
computing on the slowest rank, on the fastest one, collectives], in ms, in order.
"""
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "bench"))
sys.dont_write_bytecode = True

from support.shaped import Bench, write_plans  # noqa: E402

STEPS = {"1gbit": {"all_reduce": 40, "bf16": 50, "topk": 60}, "100mbit": {"all_reduce": 14, "bf16": 22, "topk": 60}}
WARM_UP = 4
FROM_JOURNALS = {"half_1gbit": ["bf16 all_reduce, 8 buckets", "bf16 all_reduce, 16 buckets"],
                 "lossy_200mbit": ["topk:0.02 gather, 2 buckets + small", "topk:0.02 gather, 4 buckets + small"]}


def entries_of(journal):
    return [json.loads(line) for line in Path(journal).read_text(encoding="utf-8").splitlines()]


def recorded(bench, rate, label, file):
    journal = bench.folder / "steps.jsonl"
    fidelity = "exact" if label == "all_reduce baseline" else "lossy"
    steps = STEPS[rate][label.replace(":", " ").split()[0]]
    command = [bench.program, "--steps", steps, "--no-eval", "--fidelity", fidelity, "--journal", journal]
    bench.cluster(rate, command + (["--strategy", file] if file else []), {"GRADTUNE_TUNING_BUDGET": "0"})
    lines = [entry for entry in entries_of(journal) if entry.get("kind") == "step" and not entry["excluded"]]
    return [[round(step[key], 3) for key in ("step_ms", "compute_ms_max", "compute_ms_min", "comm_ms")]
            for step in lines if step["step"] >= WARM_UP]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    rates = {rate: {} for rate in STEPS}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(sys.argv[1]).resolve(), folder)
        half = bench.folder / "half.json"
        bench.gradtune("1gbit", ["--fidelity", "half", "--policy", "fixed", "--export", half], 30)
        files = {"all_reduce baseline": None, "bf16 all_reduce baseline": half}
        for journal, labels in FROM_JOURNALS.items():
            files |= write_plans(entries_of(HERE / "journals" / f"{journal}.jsonl"), labels, bench.folder, journal)
        for rate, of_label in rates.items():
            for label, file in files.items():
                of_label[label] = recorded(bench, rate, label, file)
                print(f"{rate:8} {label:40} {len(of_label[label])} steps", flush=True)
    run = {"date": time.strftime("%Y-%m-%d"), "cores": len(os.sched_getaffinity(0)), "machine": platform.machine()}
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        text = json.dumps({"schema": "gradtune.recorded_steps/1", "run": run, "ms": rates})
        out.write(text.replace("]], ", "]],\n") + "\n")


if __name__ == "__main__":
    main()
