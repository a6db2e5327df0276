#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Compares gradtune with PyTorch DDP: the same model, data, seeds and shaped links, interleaved in one run.

usage: vs_ddp.py [--model vgg|text] [--batch N] [--parts accuracy,1gbit,200mbit,200mbit-25ms,mlp-small]
                 [--rounds 3] [--seeds 3] [--fidelities exact,half,lossy] BUILD_FOLDER OUT.json

Model vgg is the demo's on images, with SGD. Model text is a small transformer on bytes, with AdamW
(examples/train_text). There `lossy` is also compared with the faster 16-bit hook, and the names of rows begin with
"text". --batch is that of a rank; default 64 images, 16 pieces of 64 bytes. Part mlp-small has its own model, and is
left out for text. Only the named fidelities are tuned and timed beside DDP.

Parts:
- accuracy: the mean of the same seeds after one epoch (468 steps of 2 x 64 images; for text 400 steps, the
  perplexity). It compares DDP in fp32 and with PowerSGD, and gradtune at `lossy`, which tunes while it trains;
  `error` is the standard error of a mean. A busy machine does not disturb this part; it does disturb the others.
- a link, which is a rate, or a rate and the delay of one way:
  1. DDP's rows are timed with bucket_cap_mb 2, 5, 25 and 100; each continues with its best ("tuned DDP").
  2. gradtune tunes once at each fidelity and exports its strategy; the journal holds every strategy that it raced.
     Strategies near the best in that measurement are timed once, pinned, in their own runs. The best continue,
     beside the exported one, which is pinned as well.
  3. Rounds: each DDP row, each exported strategy and each pinned one that continued, one fresh pair of processes
     each, one after the other. Each exported strategy's first ten steps after an import, in two fresh pairs, are
     compared with the committed step and, in turn, with the first ten of pinned runs: the warm-up of a process.
  4. The value of a row is the median over rounds of the median step; ratios are taken inside a round; their spread
     is their range.
  5. Rows `limit` are a baseline's step, in fp32 and in 16 bits, if its payload, with only the headers of full
     packets, went at the link's rate from the first collective on. The rest is the computation before the first
     bucket and the optimizer. A program that averages gradients before backward returns cannot hide them.
- mlp-small: nothing to gain: unshaped, exact.

Rows of parts that are not run are kept from OUT.json. The anchor of `lossy` is the fastest DDP row that is known to
be within half a point of fp32's accuracy (2 % of its perplexity) or for which that was not measured.
"""
import json
import math
import statistics
import sys
import tempfile

sys.dont_write_bytecode = True  # leave no __pycache__ in the source tree

from support.shaped import ROOT, Bench, LinkRefused, are_same, flags_of_parts, raced_strategies, row, save  # noqa: E402
from support.shaped import median_step as median_step_after  # noqa: E402

HOOKS = {"fp32": "none", "fp16": "fp16", "bf16": "bf16", "powersgd1": "powersgd1", "powersgd4": "powersgd4",
         "powersgd4+fp16": "powersgd4_fp16"}
CAPS = [2, 5, 25, 100]
WARM_UP = 12
TUNING = 330  # steps; longer than tuning takes
# For each model: the example that trains it, the steps of part `accuracy`, its metric, and the worst value that
# counts as good as fp32's.
JOBS = {"vgg": {"program": "train_fashion_mnist", "steps": 468, "metric": "accuracy", "unit": "%",
                "worst": lambda fp32: fp32 - 0.5},
        "text": {"program": "train_text", "steps": 400, "metric": "perplexity", "unit": "",
                 "worst": lambda fp32: 1.02 * fp32}}
NEAR_BEST = 1.08
BITS = {"1gbit": 1e9, "200mbit": 200e6, "200mbit-25ms": 200e6}  # a second
FRAME, SEGMENT = 1514, 1448  # bytes of a full Ethernet frame, and of those TCP's payload
BASELINES = {"exact": (0, 32), "half": (1, 16)}  # slot in the journal, bits of an element
GOALS = {"1gbit": {"exact": 0.96, "half": 0.97, "lossy": 0.95}, "200mbit": {"exact": 0.99, "half": 0.99, "lossy": 0.95},
         "200mbit-25ms": {"exact": None, "half": None, "lossy": None}}
TEXT_GOALS = {"1gbit": None, "200mbit": 0.45, "200mbit-25ms": None}  # for lossy beside 16 bits
OF_ACCURACY = ("1gbit", "200mbit")


class DdpBench(Bench):
    def __init__(self, build, folder, model, prefix, batch):
        super().__init__(build, folder)
        self.model = model
        self.prefix = prefix
        self.job = JOBS[model]
        self.program = build / "examples" / self.job["program"]
        self.batch = ["--batch", batch] if batch else []

    def ddp(self, rate, hook, cap, steps, seed=0, evaluate=False, model=None):
        command = [sys.executable, ROOT / "tests" / "bench" / "ddp_train.py", "--model", model or self.model, "--hook",
                   hook, "--bucket-cap-mb", cap, "--steps", steps, "--seed", seed, *self.batch]
        return self.cluster(rate, command + (["--eval"] if evaluate else []))

    def gradtune(self, rate, flags, steps, pinned=None, evaluate=False):
        return super().gradtune(rate, [*flags, *self.batch], steps, pinned, evaluate)


def median_step(report, warm_up=WARM_UP):
    return median_step_after(report, warm_up)


def timed_steps(rate):
    return 20 if rate.startswith("200mbit") else 40


def best_caps(bench, rate):
    caps = {}
    for name, hook in HOOKS.items():
        # PowerSGD uses one bucket, as several can hang over Gloo
        choices = [100] if name.startswith("powersgd") else CAPS
        times = {cap: median_step(bench.ddp(rate, hook, cap, 8 + timed_steps(rate) // 3), 8) for cap in choices}
        caps[name] = min(times, key=times.get)
        rounded = {cap: round(ms, 1) for cap, ms in times.items()}
        print(f"{rate}: DDP {name}: best bucket_cap_mb {caps[name]} of {rounded}", flush=True)
    return caps


def tune(bench, rate, fidelity):
    """The report, the exported strategy, and the raced ones that come near the best when each runs alone."""
    tag = f"{rate}-{fidelity}"
    exported, journal = bench.folder / f"{tag}.json", bench.folder / f"{tag}.jsonl"
    report = bench.gradtune(rate, ["--fidelity", fidelity, "--export", exported, "--journal", journal], TUNING)
    print(f"{rate}: gradtune {fidelity}: {report['baseline_ms']:.1f} -> {report['committed_ms']} ms, "
          f"{report['strategy']['label']}", flush=True)
    entries = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    raced = raced_strategies(entries, bench.folder, tag)
    committed = json.loads(exported.read_text(encoding="utf-8"))
    arms = {label: file for label, file in raced.items()
            if not are_same(json.loads(file.read_text(encoding="utf-8")), committed)}
    alone = {label: pinned_step(bench, rate, fidelity, file) for label, file in arms.items()}
    print(f"{rate}: gradtune {fidelity}, pinned: {({label: round(ms, 1) for label, ms in alone.items()})}", flush=True)
    near = [label for label in alone if alone[label] <= NEAR_BEST * min(alone.values())]
    return {"exported": exported, "arms": {label: arms[label] for label in near},
            "limits": limits_ms(entries, rate, *BASELINES[fidelity]) if fidelity in BASELINES else []}


def limits_ms(entries, rate, slot, bits):
    """From the steps under that baseline in which collectives were timed."""
    steps = {entry["step"]: entry["step_ms"] for entry in entries if entry.get("kind") == "step"}
    table = next(entry for entry in entries if entry.get("kind") == "table")
    elements = sum(math.prod(tensor["shape"]) for tensor in table["tensors"])
    wire_ms = 1e3 * bits * elements * FRAME / SEGMENT / BITS[rate]
    limits = []
    for entry in entries:
        if entry.get("kind") == "timing" and entry["slot"] == slot and entry["step"] in steps:
            collectives = [op for op in entry["ops"] if op[1] >= 0]  # bucket, step of its option, begin and end in us
            span_ms = (max(op[3] for op in collectives) - min(op[2] for op in collectives)) / 1e3
            limits.append(steps[entry["step"]] - span_ms + wire_ms)
    return limits


def pinned_step(bench, rate, fidelity, file):
    return median_step(bench.gradtune(rate, ["--fidelity", fidelity], timed_steps(rate), pinned=file))


def first_steps(bench, rate, fidelity, file):
    """Medians from the third step up to the step at which a process counts as warm: for a user who starts from an
    exported strategy, tuning included, and for pinned runs."""
    steps = {"imported": [], "pinned": []}
    for how in ("imported", "pinned", "pinned", "imported"):  # machines get slower and faster
        flags = ["--fidelity", fidelity, *(["--strategy", file] if how == "imported" else [])]
        report = bench.gradtune(rate, flags, WARM_UP, pinned=file if how == "pinned" else None)
        steps[how] += [step["ms"] for step in report["steps"][2:]]
    return {how: statistics.median(ms) for how, ms in steps.items()}


def in_rounds(bench, rate, rounds, caps, tuned):
    """Median steps of every row, one for each round. A link that is refused for good ends the rounds: only whole
    ones count."""
    times = {}
    for number in range(rounds):
        try:
            done = one_round(bench, rate, caps, tuned)
        except LinkRefused as error:
            if number == 0:
                raise
            print(f"{rate}: {number} of {rounds} rounds, as the next one could not be ended: {error}", flush=True)
            break
        for key, ms in done.items():
            times.setdefault(key, []).append(ms)
    return times


def one_round(bench, rate, caps, tuned):
    """The median step of every row."""
    times = {}
    for name, hook in HOOKS.items():
        times["ddp", name] = median_step(bench.ddp(rate, hook, caps[name], timed_steps(rate)))
    times["ddp", "compute alone"] = median_step(bench.ddp(rate, "local", 25, 40))
    for fidelity, result in tuned.items():
        for label, file in result["arms"].items():
            times[fidelity, label] = pinned_step(bench, rate, fidelity, file)
        times[fidelity, "committed"] = pinned_step(bench, rate, fidelity, result["exported"])
        for how, ms in first_steps(bench, rate, fidelity, result["exported"]).items():
            times[fidelity, f"{how}, first steps"] = ms
    print(f"{rate}: {({' '.join(key): round(ms, 1) for key, ms in times.items()})}", flush=True)
    return times


def time_rate(bench, rate, rounds, fidelities, rows):
    caps = best_caps(bench, rate)
    tuned = {fidelity: tune(bench, rate, fidelity) for fidelity in fidelities}
    times = in_rounds(bench, rate, rounds, caps, tuned)
    medians = {key: statistics.median(values) for key, values in times.items()}

    def compare(what, key, anchor, goal):
        ratios = [a / b for a, b in zip(times[key], times[anchor])]
        row(rows, f"{bench.prefix}{rate}: {what}", medians[key], medians[anchor], ratios, goal)

    fp32 = ("ddp", "fp32")
    for key in times:
        if key[0] == "ddp":
            compare(f"DDP {key[1]}", key, fp32, None)
    half = min((("ddp", name) for name in ("fp16", "bf16")), key=medians.get)
    for fidelity, what, anchor in (("exact", "fp32", fp32), ("half", "16 bits", half)):
        if fidelity not in tuned:
            continue
        limits = tuned[fidelity]["limits"]
        row(rows, f"{bench.prefix}{rate}: limit of {what} / DDP {anchor[1]}", statistics.median(limits),
            medians[anchor], [limit / medians[anchor] for limit in limits], None)
    fastest = min((("ddp", name) for name in HOOKS if is_sound(bench, name, rows)), key=medians.get)
    for fidelity, anchor in (("exact", fp32), ("half", half), ("lossy", fastest)):
        if fidelity in tuned:
            goal = GOALS[rate][fidelity]
            compare(f"gradtune {fidelity} / DDP {anchor[1]}", (fidelity, "committed"), anchor, goal)
    if bench.model == "text" and "lossy" in tuned:
        compare(f"gradtune lossy / DDP {half[1]}, 16 bits", ("lossy", "committed"), half, TEXT_GOALS[rate])
    for fidelity, result in tuned.items():
        # The exported strategy runs pinned here too, and is one of the arms.
        best = min(((fidelity, label) for label in ["committed", *result["arms"]]), key=medians.get)
        committed = (fidelity, "committed")
        compare(f"gradtune {fidelity} committed / best pinned ({best[1]})", committed, best, 1.03)
        first = {how: (fidelity, f"{how}, first steps") for how in ("imported", "pinned")}
        compare(f"gradtune {fidelity} imported, its first steps / committed", first["imported"], committed, 1.03)
        compare(f"gradtune {fidelity} imported, its first steps / pinned, its first steps", first["imported"],
                first["pinned"], None)


def is_sound(bench, name, rows):
    """Tells if that DDP row loses no more against fp32 than allowed; an unknown row passes."""
    learned = {row["name"]: row["value"] for row in rows}
    fp32 = learned.get(f"{bench.prefix}accuracy: DDP fp32")
    return fp32 is None or is_as_good(bench.job, learned.get(f"{bench.prefix}accuracy: DDP {name}", fp32), fp32)


def is_as_good(job, value, fp32):
    return value >= job["worst"](fp32) if job["metric"] == "accuracy" else value <= job["worst"](fp32)


def accuracies(bench, rates, seeds, rows, out):
    found = {}
    for seed in range(seeds):
        metric, steps = bench.job["metric"], bench.job["steps"]
        for name, cap in (("fp32", 25), ("powersgd1", 100), ("powersgd4", 100), ("powersgd4+fp16", 100)):
            report = bench.ddp("none", HOOKS[name], cap, steps, seed, evaluate=True)  # the link does not matter
            found.setdefault(f"DDP {name}", []).append(report[metric])
        for rate in rates:
            report = bench.gradtune(rate, ["--fidelity", "lossy", "--seed", seed], steps, evaluate=True)
            found.setdefault(f"gradtune lossy at {rate}", []).append(report[metric])
            print(f"seed {seed}: {report['strategy']['label']}", flush=True)
        others = [row for row in rows if not row["name"].startswith(f"{bench.prefix}accuracy:")]
        rows[:] = [*others, *accuracy_rows(bench, found)]
        save(out, rows)  # a seed takes minutes
    for name, values in found.items():
        print(f"accuracy: {name:28} {statistics.mean(values):.2f} {bench.job['unit']} of {values}", flush=True)


def accuracy_rows(bench, found):
    job = bench.job
    fp32 = statistics.mean(found["DDP fp32"])
    for name, values in found.items():
        value = statistics.mean(values)
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        met = is_as_good(job, value, fp32) if name.startswith("gradtune") else None
        yield {"name": f"{bench.prefix}accuracy: {name}", "value": value, "unit": job["unit"], "anchor": fp32,
               "ratio": value / fp32, "spread": [min(values), max(values)],
               "goal": None if met is None else job["worst"](fp32) / fp32, "met": met, "seeds": len(values), "error": error}


def nothing_to_gain(bench, rounds, rows):
    ours, ddp, stayed = [], [], True
    for _ in range(rounds):
        ddp.append(median_step(bench.ddp("none", "none", 25, 500, model="mlp-small"), 300))
        report = bench.gradtune("none", ["--model", "mlp-small", "--fidelity", "exact"], 1200)
        watched = [step["ms"] for step in report["steps"] if step["stage"] == "watch"]
        ours.append(statistics.median(watched))
        stayed = stayed and report["committed_ms"] is None
    row(rows, f"mlp-small: unshaped, exact (baseline stays: {stayed}) / DDP", statistics.median(ours),
        statistics.median(ddp), [a / b for a, b in zip(ours, ddp)], 1.01)


def main():
    flags = flags_of_parts(__doc__, ["accuracy", *GOALS, "mlp-small"], models=JOBS,
                           subsets={"fidelities": ["exact", "half", "lossy"]}, rounds=3, seeds=3, batch=0)
    if "mlp-small" in flags.parts and flags.model != "vgg":
        flags.parts.remove("mlp-small")
    with tempfile.TemporaryDirectory() as folder:
        bench = DdpBench(flags.build, folder, flags.model, flags.prefix, flags.batch)
        for part in flags.parts:
            if part == "accuracy":
                accuracies(bench, OF_ACCURACY, flags.seeds, flags.rows, flags.out)
            elif part == "mlp-small":
                nothing_to_gain(bench, flags.rounds, flags.rows)
            else:
                time_rate(bench, part, flags.rounds, flags.fidelities, flags.rows)
            save(flags.out, flags.rows)


if __name__ == "__main__":
    main()
