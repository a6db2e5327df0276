#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Measures a step from Python: plain, under PyTorch DDP, and under gradtune with its baseline pinned and while it
tunes.

usage: python.py [--rounds 7] [--steps 20] [--models tensors,resnet18,transformer] [--links 1gbit,200mbit]
                 BUILD_FOLDER OUT.json

Each variant trains in its own processes, so that none inherits the heap of another. They take turns: in a round each
runs the given steps, with a model of the same values, while the others wait. A row is the median over rounds of the
round's median step; ratios are taken inside a round, their spread is their range. Ranks are on loopback, with one
thread each, at fidelity exact.

Models:
- tensors: 100 layers with 16 x 16 weights and 16 biases: the cost of a tensor
- resnet18: 11.2 M parameters, 2 images of 32 x 32
- transformer: 10 M parameters, 4 layers, 2 x 32 tokens

`front`: the time of the step hooks, which tell gradtune before and after an update; on one rank, so that nothing
waits.

With --links (as root) it also runs examples/train_text and the same job in Python (ddp_train.py). They run on two
nodes with a shaped link between them, each in fresh processes, which take turns. The tuning has default options,
from C++ and from Python, once each; rounds then run the resulting strategies. The anchor is DDP with the faster one
of its 16-bit hooks. `from Python / from C++` is their difference as a share of DDP's step. `one rank` is the same
for one rank that computes alone: the cost of the model itself in the two languages.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True  # leave no __pycache__ in the source tree

from support import loopback  # noqa: E402
from support.shaped import ROOT, Bench, median_step, row, save  # noqa: E402

GOAL = 0.95  # of DDP's step, pinned
FRONT_GOAL_MS = 0.1
WAYS = ("plain", "ddp", "pinned", "tuning")
WARM_UP = 12  # steps
DEFAULT_FIDELITY = "half"
TUNING = 250  # steps; longer than tuning takes
LINK_GOAL = 0.03  # of DDP's step, between Python and C++


def make_tensors(torch):
    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(100))

        def forward(self, x):
            for layer in self.layers:
                x = x + 0.01 * layer(x)
            return x

    return Layers(), lambda: torch.randn(4, 16)


def make_resnet18(torch):
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, inner, outer, stride):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(),
                nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer))
            self.side = nn.Sequential() if inner == outer else nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

        def forward(self, x):
            return (self.body(x) + self.side(x)).relu()

    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    blocks = [Block(a, b, 1 if a == b else 2) for a, b in zip(widths, widths[1:])]
    return nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), *blocks,
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)), lambda: torch.randn(2, 3, 32, 32)


def make_transformer(torch):
    nn = torch.nn
    layers = [nn.TransformerEncoderLayer(384, 6, 1536, 0.0, batch_first=True) for _ in range(4)]
    return nn.Sequential(nn.Embedding(8000, 384), *layers), lambda: torch.randint(8000, (2, 32))


MODELS = {"tensors": make_tensors, "resnet18": make_resnet18, "transformer": make_transformer}


def train_on_a_rank(name, way):
    """For each line of standard input it runs the given number of steps; the first few run unasked. Rank 0 then
    prints their median in ms, and at the end the time of the step hooks."""
    import gradtune
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model, inputs = MODELS[name](torch)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    forward, hooks_ms = model, []
    if way == "ddp":
        forward = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    elif way != "plain":
        gradtune.wrap(optimizer, model, fidelity="exact", quiet=True, tuning_budget=0 if way == "pinned" else None)
    if way == "pinned" and dist.get_world_size() == 1:
        time_hooks(optimizer, hooks_ms)

    def run(count):
        took = []
        for _ in range(count):
            x = inputs()
            began = time.perf_counter()
            optimizer.zero_grad()
            forward(x).float().square().mean().backward()
            optimizer.step()
            took.append(1e3 * (time.perf_counter() - began))
        return statistics.median(took)

    run(WARM_UP)
    hooks_ms.clear()
    speaks = dist.get_rank() == 0
    if speaks:
        print("READY", flush=True)
    for line in sys.stdin:
        median = run(int(line))
        if speaks:
            print(f"MEDIAN {median}", flush=True)
    if speaks:
        print("FRONT " + json.dumps(hooks_ms), flush=True)
    if isinstance(optimizer, gradtune.Optimizer):
        optimizer.close()
    dist.destroy_process_group()


def time_hooks(optimizer, took_ms):
    """Each step hook of the optimizer records its time; before and after an update together."""
    before, after = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks

    def timed(hook, is_first):
        def call(*arguments):
            began = time.perf_counter()
            hook(*arguments)
            took = 1e3 * (time.perf_counter() - began)
            if is_first:
                took_ms.append(took)
            else:
                took_ms[-1] += took
        return call

    for hooks in (before, after):
        for key in list(hooks):
            hooks[key] = timed(hooks[key], hooks is before)


class Way:
    """The ranks of one variant."""

    def __init__(self, name, way, size):
        port = loopback.free_port()
        self.what = f"{name}, {way}, on {size} ranks"
        self.ranks = [subprocess.Popen([sys.executable, "-B", __file__, "--rank", name, way], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True, env={**os.environ, **loopback.variables(rank, size, port)})
                      for rank in range(size)]
        self.answer("READY")

    def answer(self, word):
        """The text of rank 0 behind that word, once it is printed."""
        for line in self.ranks[0].stdout:
            if line.startswith(word):
                return line[len(word):]
        sys.exit(f"{self.what}: failed")

    def run(self, steps):
        for rank in self.ranks:
            rank.stdin.write(f"{steps}\n")
            rank.stdin.flush()
        return float(self.answer("MEDIAN"))

    def end(self):
        """The time of the step hooks, in ms."""
        for rank in self.ranks:
            rank.stdin.close()
        front = json.loads(self.answer("FRONT"))
        if any(rank.wait() for rank in self.ranks):
            sys.exit(f"{self.what}: failed")
        return front


def measure(name, size, rounds, steps):
    """Medians in ms, {variant: [of each round]}, and the time of the step hooks."""
    ways = {way: Way(name, way, size) for way in WAYS}
    medians = {way: [] for way in WAYS}
    for at in range(rounds):
        for turn in range(len(WAYS)):
            way = WAYS[(at + turn) % len(WAYS)]
            medians[way].append(ways[way].run(steps))
    return medians, [ms for way in ways.values() for ms in way.end()]


class LinkBench(Bench):
    """The median step of examples/train_text, or of its job in Python, on two nodes."""

    def __init__(self, build, folder, rate, steps):
        super().__init__(build, folder)
        self.program = build / "examples" / "train_text"
        self.rate, self.steps = rate, steps

    def in_python(self, flags, steps=None):
        command = [sys.executable, "-B", ROOT / "tests" / "bench" / "ddp_train.py", "--model", "text", "--steps",
                   steps or self.steps, *flags]
        return median_step(self.cluster(self.rate, command), WARM_UP)

    def alone(self, command, flags):
        """One rank, which has no peer to send to."""
        self.count += 1
        report = self.folder / f"report{self.count}.json"
        self.launch([], [*command, *flags, "--steps", self.steps, "--report", report],
                    {**loopback.variables(0, 1, loopback.free_port()), "OMP_NUM_THREADS": "1", "GRADTUNE_TUNING_BUDGET": "0"})
        return median_step(json.loads(report.read_text(encoding="utf-8")), WARM_UP)

    def tune(self):
        """gradtune's resulting strategies, {language: file}."""
        files = {language: self.folder / f"{self.rate}-{language}.json" for language in ("C++", "Python")}
        self.gradtune(self.rate, ["--fidelity", DEFAULT_FIDELITY, "--export", files["C++"]], TUNING)
        self.in_python(["--gradtune", DEFAULT_FIDELITY, "--export", files["Python"]], TUNING)
        return files

    def round(self, files):
        pinned = self.gradtune(self.rate, ["--fidelity", DEFAULT_FIDELITY], self.steps, pinned=files["C++"])
        script = [sys.executable, "-B", ROOT / "tests" / "bench" / "ddp_train.py", "--model", "text"]
        return {"C++ alone": self.alone([self.program, "--no-eval"], ["--fidelity", "exact"]),
                "Python alone": self.alone(script, ["--gradtune", "exact"]),
                "fp16": self.in_python(["--hook", "fp16"]), "bf16": self.in_python(["--hook", "bf16"]),
                "C++": median_step(pinned, WARM_UP),
                "Python": self.in_python(["--gradtune", DEFAULT_FIDELITY, "--strategy", files["Python"]])}


def measure_link(build, rate, rounds, steps, rows):
    with tempfile.TemporaryDirectory() as folder:
        bench = LinkBench(build, folder, rate, WARM_UP + steps)
        files = bench.tune()
        times = {}
        for _ in range(rounds):
            for what, ms in bench.round(files).items():
                times.setdefault(what, []).append(ms)
    medians = {what: statistics.median(ms) for what, ms in times.items()}
    ddp = min(("fp16", "bf16"), key=medians.get)
    for language in files:
        ratios = [a / b for a, b in zip(times[language], times[ddp])]
        row(rows, f"text, {rate}, {DEFAULT_FIDELITY} from {language} / DDP {ddp}", medians[language], medians[ddp], ratios,
            None)
    for where, goal in (("", LINK_GOAL), (" alone", None)):
        mine, other = f"Python{where}", f"C++{where}"
        points = [abs(a - b) / c for a, b, c in zip(times[mine], times[other], times[ddp])]
        row(rows, f"text, {rate}, {'' if goal else 'one rank, '}from Python / from C++", medians[mine], medians[other], points, goal)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--links", default="")
    parser.add_argument("build", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    rows = []
    for name in filter(None, args.models.split(",")):
        for size in (1, 2):
            ways, front_ms = measure(name, size, args.rounds, args.steps)
            ddp = statistics.median(ways["ddp"])
            for way in WAYS:
                if way == "ddp":
                    continue
                ratios = [a / b for a, b in zip(ways[way], ways["ddp"])]
                row(rows, f"{name}, {size} rank{'s' if size > 1 else ''}, {way}", statistics.median(ways[way]), ddp, ratios,
                    GOAL if way == "pinned" else None)
            if front_ms:
                front = statistics.median(front_ms)
                row(rows, f"{name}, 1 rank, front", front, FRONT_GOAL_MS, [front / FRONT_GOAL_MS], 1.0)
    for rate in filter(None, args.links.split(",")):
        measure_link(args.build.resolve(), rate, args.rounds, args.steps, rows)
    save(args.out, rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        train_on_a_rank(sys.argv[2], sys.argv[3])
    else:
        main()
