#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""What each lossy compressor costs in accuracy: it alone, from the first step to the last, beside fp32 with the same seeds.

usage: accuracy.py [--tasks fashion,text] [--ranks 2,4] [--seeds 3] [--compressors qsgd:4,...] [--runs FOLDER]
                   BUILD_FOLDER OUT.json

fashion     The model of the demo, one epoch of Fashion-MNIST, SGD with momentum: accuracy in percent. A compressor may lose
            half a point.
text        A small transformer with AdamW on the bytes of the King James Bible, 400 steps of 16 x 64 bytes on each rank:
            perplexity of a byte. A compressor may lose 2 percent.
Seeds are paired: the same initial values and data for all. `steps` is how many it takes until the loss (mean of 50 steps)
is what fp32's is at three quarters of the way, in relation to fp32's. The link is not shaped, since only what is learned
counts: this benchmark does not mind a busy machine. Rows that are not run again are kept as OUT.json has them. The whole
takes hours: what --runs FOLDER holds of a call that was cut off is not run again.

Compressors run with their default parameters unless others are given. Those whose updates have another size get the
rate that suits them: votes of signs are 1 whatever the gradient, and dgc has the momentum inside that the optimizer then
must not have. As its authors begin with dense gradients, so does dgc here: a tenth of the steps.
"""
import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True  # leave no __pycache__ in the source tree

from support.shaped import Bench, plans, save  # noqa: E402

SUMMED = 50  # steps whose mean loss is looked at
LOSSY = ["topk", "threshk", "dgc", "efsignsgd", "onebit", "signsgd", "signum", "int8", "int6", "int5", "int4", "int3", "int2",
         "int8s", "fp8e4m3", "fp8e5m2", "natural", "qsgd:4", "qsgd:8", "terngrad", "randk", "powersgd", "thc"]
# A task's program, steps by ranks, metric, flags that some compressors need, and those that it can not have.
TASKS = {
    "fashion": {"program": "train_fashion_mnist", "steps": {2: 468, 4: 234}, "metric": "accuracy", "unit": "%",
                "flags": {"signsgd": ["--rate", "0.0002"], "signum": ["--rate", "0.002", "--momentum", "0"],
                          "dgc": ["--rate", "0.2", "--momentum", "0"]}, "without": []},
    "text": {"program": "train_text", "steps": {2: 400, 4: 400}, "metric": "perplexity", "unit": "",
             "flags": {}, "without": ["dgc"]},
}
WARM_UP = {"dgc": 0.1}  # share of the steps before which nothing is compressed


def name_of(compressor):
    return compressor.split(":")[0]


class AccuracyBench(Bench):
    def __init__(self, build, folder, runs, task, ranks):
        super().__init__(build, folder)
        self.runs = runs
        self.name = f"{task}-{ranks}"
        self.task = TASKS[task]
        self.ranks = ranks
        self.program = build / "examples" / self.task["program"]

    def launcher(self, rate, extra=()):
        words = super().launcher(rate, extra)
        words[words.index("--nodes") + 1] = str(self.ranks)
        return words

    def once(self, name, run):
        """What the run returns, or returned in a call before this."""
        file = self.runs / f"{self.name}-{name}.json"
        if not file.exists():
            result = run()
            file.with_suffix(".new").write_text(json.dumps(result), encoding="utf-8")
            file.with_suffix(".new").replace(file)
        return json.loads(file.read_text(encoding="utf-8"))

    def proposed_strategy(self, compressor):
        """One with that compressor in all large buckets, as policy `mergecomp` proposes it."""
        journal = self.folder / f"{compressor}.jsonl"
        flags = ["--fidelity", "lossy", "--policy", "mergecomp", "--compressors", compressor, "--journal", journal]
        self.gradtune("none", [*flags, *self.flags_of(compressor)], 150)
        entries = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
        name = name_of(compressor)
        found = {label: plan for label, plan in plans(entries).items() if name_of(label).split()[0] == name}
        if not found:
            raise RuntimeError(f"tuning proposed no strategy with {compressor}")
        return found[min(found, key=lambda name: (len(found[name]["buckets"]), name))]

    def train(self, seed, compressor=None, strategy=None):
        """The metric at the end, and the loss of each step."""
        flags = ["--seed", seed, *self.flags_of(compressor or "none")]
        if strategy is None:
            report = self.cluster("none", [self.program, "--steps", self.steps(), *flags, "--fidelity", "exact"],
                                  {"GRADTUNE_TUNING_BUDGET": "0"})
        else:
            file = self.folder / f"{compressor}.json"
            file.write_text(json.dumps(strategy), encoding="utf-8")
            warm_up = int(WARM_UP.get(name_of(compressor), 0) * self.steps())
            report = self.cluster("none", [self.program, "--steps", self.steps(), *flags, "--fidelity", "lossy",
                                           "--strategy", file],
                                  {"GRADTUNE_TUNING_BUDGET": "0", "GRADTUNE_LOSSY_AFTER": str(warm_up)})
        return {"metric": report[self.task["metric"]], "losses": [step["loss"] for step in report["steps"]]}

    def train_all(self, seeds, compressor=None, strategy=None):
        """Metrics and losses of each seed."""
        runs = [self.once(f"{compressor or 'fp32'}-{seed}", lambda seed=seed: self.train(seed, compressor, strategy))
                for seed in range(seeds)]
        return {"metric": [run["metric"] for run in runs], "losses": [run["losses"] for run in runs]}

    def flags_of(self, compressor):
        return self.task["flags"].get(name_of(compressor), [])

    def steps(self):
        return self.task["steps"][self.ranks]


def smoothed(losses):
    return [statistics.mean(losses[end - SUMMED:end]) for end in range(SUMMED, len(losses) + 1)]


def steps_to(losses, target):
    """As a share of all steps; 2 where it is not reached."""
    means = smoothed(losses)
    reached = next((i for i, mean in enumerate(means) if mean <= target), None)
    return 2 if reached is None else (reached + SUMMED) / len(losses)


def compare(bench, task, name, label, fp32, ours, rows):
    metric, unit = bench.task["metric"], bench.task["unit"]
    value, anchor = statistics.mean(ours["metric"]), statistics.mean(fp32["metric"])
    goal = (anchor - 0.5) / anchor if metric == "accuracy" else 1.02
    ratio = value / anchor
    met = ratio >= goal if metric == "accuracy" else ratio <= goal
    pairs = [a / b for a, b in zip(ours["metric"], fp32["metric"])]
    targets = [smoothed(losses)[3 * (len(losses) - SUMMED) // 4] for losses in fp32["losses"]]
    needed = [steps_to(mine, target) / steps_to(theirs, target)
              for mine, theirs, target in zip(ours["losses"], fp32["losses"], targets)]
    rows.append({"name": f"{task}, {bench.ranks} ranks: {name}", "strategy": label, "value": value, "unit": unit,
                 "anchor": anchor, "ratio": ratio, "spread": [min(pairs), max(pairs)], "goal": goal, "met": met,
                 "seeds": len(pairs), "steps": statistics.mean(needed)})
    print(f"{task:8} {bench.ranks} ranks {name:10} {value:8.3f} {unit:1} fp32 {anchor:8.3f}  ratio {ratio:.4f} "
          f"{'admitted' if met else 'NOT admitted'}  steps {statistics.mean(needed):.2f}  ({label})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", default="fashion,text")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--compressors", default=",".join(LOSSY))
    parser.add_argument("--runs", type=Path)
    flags = parser.parse_args()
    rows = json.loads(flags.out.read_text(encoding="utf-8"))["rows"] if flags.out.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        runs = flags.runs or Path(folder) / "runs"
        runs.mkdir(parents=True, exist_ok=True)
        for task in flags.tasks.split(","):
            for ranks in map(int, flags.ranks.split(",")):
                bench = AccuracyBench(flags.build.resolve(), folder, runs, task, ranks)
                fp32 = bench.train_all(flags.seeds)
                for name in flags.compressors.split(","):
                    if name in bench.task["without"]:
                        continue
                    strategy = bench.once(f"{name}-strategy", lambda name=name: bench.proposed_strategy(name))
                    ours = bench.train_all(flags.seeds, name, strategy)
                    rows = [row for row in rows if row["name"] != f"{task}, {ranks} ranks: {name}"]
                    compare(bench, task, name, strategy["label"], fp32, ours, rows)
                    save(flags.out, rows)


if __name__ == "__main__":
    main()
