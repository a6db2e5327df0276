#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the accuracy cost of each lossy compressor, alone and from the first step on, beside fp32 with the same
seeds.

usage: accuracy.py [--tasks fashion,resnet,text,lstm] [--ranks 2,4] [--seeds 5] [--compressors qsgd:4,...] [--longer]
                   [--dense-first SHARE] [--runs FOLDER] BUILD_FOLDER OUT.json

Tasks:
- fashion: the model of the demo, one epoch of Fashion-MNIST, SGD with momentum; accuracy in percent. A compressor
  may lose half a point. The rate falls to 0 by the last step: at a constant rate single runs differ by points.
- resnet: the same with a small residual network.
- text: a small transformer, AdamW, on the bytes of the King James Bible, 400 steps of 16 x 64 bytes on each rank;
  perplexity of a byte. A compressor may lose 2 percent.
- lstm: the same with a recurrent network.

On eight ranks text and lstm have 200 steps. With --longer images are trained for three epochs, and the others for
five times as many steps, to see if the loss of accuracy grows or closes.

Seeds are paired: all trainings have the same initial values and data. The ratio to fp32 is the mean over pairs, and
`spread` its 95 % interval (Student's t). A compressor is admitted (`met`) if all of the interval is within `goal`.
The other columns:

- steps: the number of steps until the loss (mean of 50 steps) is that of fp32 at three quarters of the way, relative
  to fp32's number.
- bits: the bits that a rank sends for a compressed element, counted as sent, relative to 32 for fp32 by the same
  collectives. Tensors that are too small to be compressed are left out.
- error: the largest error of a bucket, norm(p - decode(encode(p))) / norm(p), as the median of 32 steps. It is the
  larger one of two such windows, from the first step on and from a quarter of the steps on.
- ms: computation, encoding and decoding of a step, as measured on rank 0, in turn with `ms_fp32`; medians of three
  processes. `elements` counts all tensors.

The output ends, for each task and rate of a link, with the admitted compressor that first reaches the loss of fp32.
The model assumes that nothing overlaps and messages have no latency: steps x (ms + bits x elements / rate).

The link is not shaped, since only the training result counts: except for `ms`, a busy machine does not disturb this
benchmark. Rows that are not run again are kept from OUT.json. The whole takes hours: results in --runs FOLDER from
an interrupted call are reused.

Compressors run with their default parameters unless others are given. Compressors whose updates have another size
get a suitable rate: votes of signs are 1 for any gradient. dgc contains the momentum, which the optimizer then must
not have. Its authors begin with dense gradients, and so does dgc here, for a tenth of the steps. Under AdamW
int3packed and powersgd begin with 80 such steps, as in gradtune's jobs. --dense-first gives all compressors that
share of dense steps, which may be 0 (option `lossy_after`). `bits` and `error` are over compressed steps.
"""
import argparse
import json
import math
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.dont_write_bytecode = True  # leave no __pycache__ in the source tree

from support.shaped import Bench, plans, save  # noqa: E402

SUMMED = 50  # steps in the mean loss
TIMED = 3  # timed processes of each
PROBED = 36  # steps for measuring one error and the sent bits
LOSSY = ["topk", "threshk", "dgc", "efsignsgd", "onebit", "signsgd", "signum", "int8", "int4", "int4packed",
         "int3packed", "fp8e4m3", "fp8e5m2", "natural", "qsgd:4", "qsgd:8", "terngrad", "randk", "powersgd", "thc"]
RATES = {"1 Gbit/s": 1e9, "200 Mbit/s": 200e6, "50 Mbit/s": 50e6}
# Student's t by degrees of freedom.
T_95 = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
# A task's program and flags, steps by ranks, metric, flags that some compressors need, flags that they cannot have,
# and dense steps that some take first, out of how many (for AdamW: `dense_first` of engine/core/compressor.h).
IMAGES = {"program": "train_fashion_mnist", "steps": {2: 468, 4: 234, 8: 117}, "longer": 3, "metric": "accuracy",
          "unit": "%", "without": [], "dense_first": {"dgc": lambda steps: steps // 10},
          "special": {"signsgd": ["--rate", "0.0002"], "signum": ["--rate", "0.002", "--momentum", "0"],
                      "dgc": ["--rate", "0.2", "--momentum", "0"]}}
BYTES = {"program": "train_text", "steps": {2: 400, 4: 400, 8: 200}, "longer": 5, "metric": "perplexity", "unit": "",
         "special": {}, "without": ["dgc"], "dense_first": {"powersgd": lambda steps: 80, "int3packed": lambda steps: 80}}
TASKS = {"fashion": {**IMAGES, "flags": ["--decay"]}, "resnet": {**IMAGES, "flags": ["--decay", "--model", "resnet"]},
         "text": {**BYTES, "flags": []}, "lstm": {**BYTES, "flags": ["--model", "lstm"]}}
IMPORTED = 2  # slot, in the journal, of a job's initial strategy


def name_of(compressor):
    return compressor.split(":")[0]


@dataclass(frozen=True)
class Training:
    """The common settings of all compressors in a call, and so of the names of their rows."""
    task: str
    ranks: int
    longer: bool = False
    dense_first: float = None  # share of the steps; None: the compressor's own need

    def steps(self):
        return TASKS[self.task]["steps"][self.ranks] * (TASKS[self.task]["longer"] if self.longer else 1)

    def dense_steps(self, compressor):
        if self.dense_first is not None:
            return int(self.dense_first * self.steps())
        needed = TASKS[self.task]["dense_first"].get(name_of(compressor))
        return needed(self.steps()) if needed else 0

    def row_name(self, compressor):
        longer = f", {TASKS[self.task]['longer']} times as long" if self.longer else ""
        dense = "" if self.dense_first is None else f", the first {self.dense_first:.0%} dense"
        return f"{self.task}, {self.ranks} ranks{longer}{dense}: {compressor}"

    def command(self, compressor, seeds):
        longer = " --longer" if self.longer else ""
        dense = "" if self.dense_first is None else f" --dense-first {self.dense_first}"
        return (f"accuracy.py --tasks {self.task} --ranks {self.ranks} --seeds {seeds} --compressors {compressor}"
                f"{longer}{dense}")


class AccuracyBench(Bench):
    def __init__(self, build, folder, runs, training):
        super().__init__(build, folder)
        self.runs = runs
        self.training = training
        self.task = TASKS[training.task]
        self.program = build / "examples" / self.task["program"]

    def launcher(self, rate, extra=()):
        words = super().launcher(rate, extra)
        words[words.index("--nodes") + 1] = str(self.training.ranks)
        return words

    def once(self, name, run):
        """The result of the run, or of the same run in an earlier call."""
        training = self.training
        file = self.runs / f"{training.task}-{training.ranks}-{training.steps()}-{name}.json"
        if not file.exists():
            result = run()
            file.with_suffix(".new").write_text(json.dumps(result), encoding="utf-8")
            file.with_suffix(".new").replace(file)
        return json.loads(file.read_text(encoding="utf-8"))

    def proposed_strategy(self, compressor):
        """A strategy with that compressor in all large buckets, as policy `mergecomp` proposes it."""
        journal = self.folder / f"{compressor}.jsonl"
        flags = ["--fidelity", "lossy", "--policy", "mergecomp", "--compressors", compressor, "--journal", journal]
        self.gradtune("none", [*flags, *self.flags_of(compressor)], 150)
        name = name_of(compressor)
        found = {label: plan for label, plan in plans(entries_of(journal)).items() if name_of(label).split()[0] == name}
        if not found:
            raise RuntimeError(f"tuning proposed no strategy with {compressor}")
        return found[min(found, key=lambda name: (len(found[name]["buckets"]), name))]

    def train(self, seed, compressor=None, strategy=None, flags=(), steps=None, environment=None):
        """Returns the report. A given strategy, which is lossy, runs from the first step on; without one, fp32 does."""
        command = [self.program, "--steps", steps or self.training.steps(), "--seed", seed,
                   *self.flags_of(compressor or "none"), *flags]
        variables = {"GRADTUNE_TUNING_BUDGET": "0", **(environment or {})}
        if strategy is None:
            return self.cluster("none", [*command, "--fidelity", "exact"], variables)
        file = self.folder / f"{compressor}.json"
        file.write_text(json.dumps(strategy), encoding="utf-8")
        return self.cluster("none", [*command, "--fidelity", "lossy", "--strategy", file],
                            {"GRADTUNE_LOSSY_AFTER": str(self.training.dense_steps(compressor)), **variables})

    def train_all(self, seeds, compressor=None, strategy=None):
        """Metrics, and losses of all steps, of each seed."""
        def run(seed):
            report = self.train(seed, compressor, strategy)
            return {"metric": report[self.task["metric"]], "losses": [step["loss"] for step in report["steps"]]}

        dense = "" if self.training.dense_first is None else self.training.dense_first
        name = f"{compressor}{dense}" if compressor else "fp32"
        return [self.once(f"{name}-{seed}", lambda seed=seed: run(seed)) for seed in range(seeds)]

    def probe(self, compressor, strategy):
        """The error of compression in one step, and the bits sent."""
        errors, sent = [], []
        for begin in (0, self.training.steps() // 4):
            journal = self.folder / f"probe-{begin}.jsonl"
            # With a budget that nothing lossy keeps, the guard reports the error.
            self.train(0, compressor, strategy, ["--no-eval", "--journal", journal], begin + PROBED + 8,
                       {"GRADTUNE_ERROR_BUDGET": "0.001", "GRADTUNE_LOSSY_AFTER": str(begin)})
            entries = entries_of(journal)
            errors += [entry["excess"]["value"] for entry in entries if "excess" in entry]
            sent.append(bits_sent(entries, strategy, self.training.ranks))
        return {"error": max(errors, default=0), "bits": statistics.mean(sent)}

    def time(self, compressor=None, strategy=None):
        """Computation and codecs of a step in ms, and elements of all tensors."""
        journal = self.folder / "time.jsonl"
        report = self.train(0, compressor, strategy, ["--no-eval", "--journal", journal], PROBED,
                            {"GRADTUNE_LOSSY_AFTER": "0"})
        table = next(entry for entry in entries_of(journal) if entry.get("kind") == "table")
        parts = report["profile"]["before" if strategy is None else "imported"]
        return {"ms": parts["compute_ms"] + parts["encode_ms"] + parts["decode_ms"],
                "elements": sum(math.prod(tensor["shape"]) for tensor in table["tensors"])}

    def time_beside_fp32(self, compressor, strategy):
        """Timed in turn; medians of several processes, since one may be a fifth slower than the next."""
        rounds = [(self.time(), self.time(compressor, strategy)) for _ in range(TIMED)]
        theirs, mine = (statistics.median(timed["ms"] for timed in side) for side in zip(*rounds))
        return {"ms": mine, "ms_fp32": theirs, "elements": rounds[0][0]["elements"]}

    def rows(self, compressors, seeds):
        """Yields one after the other, since each takes minutes."""
        fp32 = self.train_all(seeds)
        for name in compressors:
            if name in self.task["without"]:
                continue
            strategy = self.once(f"{name}-strategy", lambda name=name: self.proposed_strategy(name))
            ours = self.train_all(seeds, name, strategy)
            probed = self.once(f"{name}-probe", lambda name=name, plan=strategy: self.probe(name, plan))
            timed = self.once(f"{name}-time", lambda name=name, plan=strategy: self.time_beside_fp32(name, plan))
            yield compare(self.training, name, strategy, fp32, ours, {**probed, **timed})

    def flags_of(self, compressor):
        return [*self.task["flags"], *self.task["special"].get(name_of(compressor), [])]


def entries_of(journal):
    return [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]


def bits_sent(entries, strategy, ranks):
    """Bits sent by a rank for an element, on average over the steps in the journal; fp32 would send 32."""
    sent, elements = 0, 0
    for entry in entries:
        if entry.get("kind") != "timing" or entry["slot"] != IMPORTED:
            continue
        for number, bucket in enumerate(strategy["buckets"]):
            steps = [step.split("@")[0] for step in bucket["option"].split(": ")[-1].split()]
            if "encode" not in steps:
                continue
            is_gather = not {"all_to_all", "all_reduce", "reduce_scatter"} & set(steps)
            elements += (ranks - 1) * (1 if is_gather else 2 / ranks) * sum(part["length"] for part in bucket["slices"])
            sent += sum(op[4] for op in entry["ops"] if op[0] == number and op[1] >= 0 and op[4] > 0)
    return 8 * sent / elements


def smoothed(losses):
    return [statistics.mean(losses[end - SUMMED:end]) for end in range(SUMMED, len(losses) + 1)]


def steps_to(losses, target):
    """As a share of all steps; 2 if it is not reached."""
    means = smoothed(losses)
    reached = next((i for i, mean in enumerate(means) if mean <= target), None)
    return 2 if reached is None else (reached + SUMMED) / len(losses)


def interval(values):
    """The 95 % interval of the mean of a normal distribution with these samples."""
    mean = statistics.mean(values)
    width = T_95[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return [mean - width, mean + width]


def compare(training, name, strategy, fp32, ours, measured):
    """The row of a compressor; `fp32` and `ours` are results of train_all()."""
    values, anchors = ([run["metric"] for run in runs] for runs in (ours, fp32))
    anchor = statistics.mean(anchors)
    ratios = [a / b for a, b in zip(values, anchors)]
    low, high = interval(ratios)
    task = TASKS[training.task]
    is_accuracy = task["metric"] == "accuracy"
    goal = (anchor - 0.5) / anchor if is_accuracy else 1.02
    targets = [smoothed(run["losses"])[3 * (len(run["losses"]) - SUMMED) // 4] for run in fp32]
    needed = [steps_to(mine["losses"], target) / steps_to(theirs["losses"], target)
              for mine, theirs, target in zip(ours, fp32, targets)]
    return {"name": training.row_name(name), "command": training.command(name, len(ratios)),
            "strategy": strategy["label"], "value": statistics.mean(values), "unit": task["unit"], "anchor": anchor,
            "ratio": statistics.mean(ratios), "spread": [low, high], "goal": goal,
            "met": low >= goal if is_accuracy else high <= goal, "seeds": len(ratios), "steps": statistics.mean(needed),
            "dense_steps": training.dense_steps(name), **measured}


def said(row):
    low, high = row["spread"]
    return (f"{row['name']:30} {row['value']:7.3f} {row['unit']:1} fp32 {row['anchor']:7.3f}  ratio {row['ratio']:.4f} "
            f"[{low:.4f}, {high:.4f}] {'admitted' if row['met'] else 'NOT admitted':12} bits {row['bits']:5.2f} "
            f"error {row['error']:.3f}  steps {row['steps']:.2f}  ({row['strategy']})")


def fastest(rows, rate):
    """Among the rows of a task, the admitted one that first reaches the loss of fp32 on a link with that many bits a
    second. Also the factor by which it is faster than fp32, which was timed beside it; None if fp32 is the
    fastest."""
    def times_sooner(row):
        mine = row["steps"] * (row["ms"] / 1e3 + row["bits"] * row["elements"] / rate)
        return (row["ms_fp32"] / 1e3 + 32 * row["elements"] / rate) / mine

    best = max((row for row in rows if row["met"]), key=times_sooner, default=None)
    return None if best is None or times_sooner(best) <= 1 else (best, times_sooner(best))


def tell_fastest(rows):
    measured = [row for row in rows if "ms_fp32" in row]
    for task in dict.fromkeys(row["name"].split(":")[0] for row in measured):
        for link, rate in RATES.items():
            found = fastest([row for row in measured if row["name"].split(":")[0] == task], rate)
            what = f"{found[0]['name'].split(': ')[1]}, {found[1]:.2f} times as fast as fp32" if found else "fp32"
            print(f"{task}, {link}: {what}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--seeds", type=int, default=5, choices=range(2, 11))
    parser.add_argument("--compressors", default=",".join(LOSSY))
    parser.add_argument("--longer", action="store_true")
    parser.add_argument("--dense-first", type=float)
    parser.add_argument("--runs", type=Path)
    flags = parser.parse_args()
    rows = json.loads(flags.out.read_text(encoding="utf-8"))["rows"] if flags.out.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        runs = flags.runs or Path(folder) / "runs"
        runs.mkdir(parents=True, exist_ok=True)
        for task in flags.tasks.split(","):
            for ranks in map(int, flags.ranks.split(",")):
                training = Training(task, ranks, flags.longer, flags.dense_first)
                bench = AccuracyBench(flags.build.resolve(), folder, runs, training)
                for row in bench.rows(flags.compressors.split(","), flags.seeds):
                    print(said(row), flush=True)
                    rows = [other for other in rows if other["name"] != row["name"]] + [row]
                    save(flags.out, rows)
    tell_fastest(rows)


if __name__ == "__main__":
    main()
