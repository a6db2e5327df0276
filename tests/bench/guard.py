#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the guard of compression (tuner/error_budget.h) on healthy trainings, which it must leave alone, and on
faults, which it must find.

usage: guard.py [--parts healthy,tuned,faults] [--steps 2000] [--only TEXT] BUILD_FOLDER OUT.json

Parts:
- healthy: twenty trainings on two ranks, of four models, with the compressors of the default lists. They use SGD on
  Fashion-MNIST and AdamW on a text. The rate is constant, has warm-up and cosine decay, or falls to a tenth, or
  batches grow to four times their size. The strategy is imported, and runs from the first step on or from step 150
  on. `value` is the guard's finding, which must be empty. `error` is the largest median of 32 errors of a bucket on
  rank 0 in the whole training; `residual` is the same of norm(residual) / norm(gradient).
- tuned: trainings of the example's large model on a link of 200 Mbit/s, which are tuned: strategies are raced, and so
  interrupted by others, and then committed. `value` is the number of findings; it is met if there are none and a
  strategy with lossy compressors is in force at the end.
- faults: trainings in which a fault begins at step 600, on all ranks or on rank 1 alone. `value` is the number of
  steps until the guard found it. `goal`: 64. The faults are:
  - decoder: every element is decoded to the place behind its own
  - residual: an encoder loses its residual (rank 1)
  - scale: one block of 64 elements is decoded to twice its value (rank 1)
  - rate: the learning rate is 30 times as high

Rows that are not run again are kept from OUT.json; --only runs those with TEXT in their name.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.dont_write_bytecode = True  # leave no __pycache__ in the source tree

from support.loopback import free_port, variables  # noqa: E402
from support.shaped import save  # noqa: E402

RANKS = 2
LIMIT_S = 3600  # of a training
FAULT_STEP, FAULT_STEPS, GOAL = 600, 900, 64
MEDIAN_OF = 32  # errors
TUNED_STEPS, TUNED_MBIT = 500, 200
OPTIONS = {"int8": "int8:256: encode@device all_gather decode@device",
           "int4": "int4:64: encode@device all_gather decode@device",
           "int4packed": "int4packed:256: encode@device all_gather decode@device",
           "int3packed": "int3packed:256: encode@device all_gather decode@device",
           "powersgd": "powersgd:16: encode@device all_reduce decode@device encode@device.1 all_reduce decode@device.1"}
FOUND = {"over error budget", "residual runs away", "broken", "not finite"}


@dataclass(frozen=True)
class Training:
    task: str
    compressor: str = ""  # of the imported strategy; empty: the job is tuned
    schedule: str = "constant"
    first: int = 0  # first step of the strategy
    fault: str = ""
    rank: int = -1  # rank with the fault; -1: all

    def name(self):
        where = f"{self.task}, {self.compressor}"
        if self.fault:
            return f"fault: {where}, {self.fault}"
        if not self.compressor:
            return f"tuned: {self.task}, {self.schedule}"
        return f"healthy: {where}, {self.schedule}, from step {self.first}"


HEALTHY = [Training(*row) for row in (
    ("resnet", "int3packed", "cosine", 0), ("resnet", "int3packed", "drop", 150), ("resnet", "powersgd", "drop", 0),
    ("resnet", "powersgd", "batch", 150), ("resnet", "int8", "cosine", 150),
    ("mlp", "int3packed", "batch", 0), ("mlp", "int3packed", "drop", 150), ("mlp", "powersgd", "cosine", 150),
    ("mlp", "powersgd", "drop", 0), ("mlp", "int8", "batch", 0),
    ("text", "int4packed", "cosine", 0), ("text", "int4packed", "drop", 150), ("text", "int4", "drop", 0),
    ("text", "int3packed", "batch", 150), ("text", "int8", "cosine", 150),
    ("lstm", "int4packed", "cosine", 150), ("lstm", "int4packed", "batch", 0), ("lstm", "int4", "batch", 150),
    ("lstm", "int3packed", "drop", 150), ("lstm", "int3packed", "cosine", 150))]
TUNED = [Training("vgg", schedule=schedule) for schedule in ("constant", "cosine", "drop")]
FAULTS = [Training(task, compressor, fault=fault, rank=rank)
          for task, compressor in (("mlp", "int3packed"), ("resnet", "powersgd"), ("text", "int4packed"))
          for fault, rank in (("decoder", -1), ("residual", 1), ("scale", 1), ("rate", -1))]


class GuardBench:
    def __init__(self, build, folder):
        self.program = build / "tests" / "bench" / "guard_rank"
        self.folder = folder
        self.plain = {}  # by task: an exported strategy, which then gets other options

    def launch(self, flags, environment):
        """Runs the ranks; returns the output of rank 0."""
        port = free_port()
        processes = [subprocess.Popen([self.program, *map(str, flags)], stdout=subprocess.PIPE, text=True,
                                      env={**os.environ, "OMP_NUM_THREADS": "1", "GRADTUNE_QUIET": "true",
                                           **environment, **variables(rank, RANKS, port)})
                     for rank in range(RANKS)]
        outputs = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
        if any(process.returncode for process in processes):
            raise RuntimeError(f"a rank ended with an error: {flags}")
        return outputs[0]

    def strategy_of(self, training):
        """The baseline's buckets, with the compressor in each."""
        if training.task not in self.plain:
            file = self.folder / f"{training.task}.json"
            self.launch(["--task", training.task, "--steps", 3, "--export", file],
                        {"GRADTUNE_FIDELITY": "lossy", "GRADTUNE_TUNING_BUDGET": "0"})
            self.plain[training.task] = json.loads(file.read_text(encoding="utf-8"))
        strategy = json.loads(json.dumps(self.plain[training.task]))
        option = OPTIONS[training.compressor]
        # Collectives of a bucket keep the sequence of the program.
        at = [place for place, step in enumerate(option.split(": ")[-1].split()) if step.startswith("all_")]
        for bucket in strategy["buckets"]:
            bucket["option"] = option
        strategy["order"] = [[number, place] for number in range(len(strategy["buckets"])) for place in at]
        file = self.folder / "strategy.json"
        file.write_text(json.dumps(strategy), encoding="utf-8")
        return file

    def entries(self, training, steps):
        """The journal of a training."""
        journal = self.folder / "journal.jsonl"
        journal.unlink(missing_ok=True)
        fault = ["--fault", training.fault, "--fault-step", FAULT_STEP, "--fault-rank", training.rank]
        how = {"GRADTUNE_PACING_MBIT": str(TUNED_MBIT)}
        if training.compressor:
            how = {"GRADTUNE_TUNING_BUDGET": "0", "GRADTUNE_STRATEGY": str(self.strategy_of(training)),
                   "GRADTUNE_LOSSY_AFTER": str(training.first)}
        self.launch(["--task", training.task, "--schedule", training.schedule, "--steps", steps,
                     *(fault if training.fault else [])],
                    {"GRADTUNE_FIDELITY": "lossy", "GRADTUNE_JOURNAL": str(journal), **how})
        return [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]

    def healthy(self, training, steps):
        entries = self.entries(training, steps)
        losses = [entry for entry in entries if entry.get("kind") == "loss" and entry["step"] >= training.first + MEDIAN_OF]
        if not losses:
            raise RuntimeError(f"{training.name()}: nothing was compressed")
        most = {key: max(value for entry in losses for value in entry[key] if value is not None)
                for key in ("errors", "residuals")}
        found = found_in(entries)
        return {"value": len(found), "unit": "found", "anchor": None, "ratio": None, "spread": None, "goal": 0,
                "met": not found, "steps": steps, "compressor": training.compressor,
                "adaptive": training.task in ("text", "lstm"), "error": most["errors"],
                "residual": most["residuals"], "found": found}

    def tuned(self, training):
        entries = self.entries(training, TUNED_STEPS)
        found = found_in(entries)
        decisions = [entry for entry in entries if entry.get("kind") == "decision"]
        committed = [entry for entry in decisions if entry["what"] == "commit"]
        last = committed[-1]["label"] if committed else ""
        return {"value": len(found), "unit": "found", "anchor": None, "ratio": None, "spread": None, "goal": 0,
                "met": not found and bool(last), "steps": TUNED_STEPS, "committed": last, "found": found}

    def fault(self, training):
        found = found_in(self.entries(training, FAULT_STEPS))
        early = [entry for entry in found if entry["step"] < FAULT_STEP]
        late = [entry["step"] - FAULT_STEP for entry in found if entry["step"] >= FAULT_STEP]
        value = late[0] if late and not early else None
        return {"value": value, "unit": "steps", "anchor": None, "ratio": None, "spread": None, "goal": GOAL,
                "met": value is not None and value <= GOAL, "found": found}


def found_in(entries):
    return [{key: entry[key] for key in ("step", "what", "label")} for entry in entries
            if entry.get("kind") == "decision" and entry["what"] in FOUND]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--parts", default="healthy,tuned,faults")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--only", default="")
    flags = parser.parse_args()
    rows = json.loads(flags.out.read_text(encoding="utf-8"))["rows"] if flags.out.exists() else []
    trainings = [each for part, some in (("healthy", HEALTHY), ("tuned", TUNED), ("faults", FAULTS))
                 if part in flags.parts.split(",")
                 for each in some if flags.only in each.name()]
    with tempfile.TemporaryDirectory() as folder:
        bench = GuardBench(flags.build.resolve(), Path(folder))
        for training in trainings:
            if training.fault:
                measured = bench.fault(training)
            elif training.compressor:
                measured = bench.healthy(training, flags.steps)
            else:
                measured = bench.tuned(training)
            command = f"guard.py --only '{training.name()}'"
            row = {"name": training.name(), "command": command, **measured}
            print(json.dumps(row), flush=True)
            rows = [other for other in rows if other["name"] != row["name"]] + [row]
            save(flags.out, rows)


if __name__ == "__main__":
    main()
