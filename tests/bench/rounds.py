#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Measures training in rounds (gradtune.rounds) between two sites, and what it costs in accuracy.

usage: rounds.py [--parts 20mbit-25ms,200mbit-25ms,1gbit-25ms,text,lstm,fashion] [--turns 5] [--ranks 2,4] [--seeds 5]
                 [--longer] [--updates 8] [--ways fp32,lossy,rounds,alone] [--delay 0] [--fragments 1] BUILD_FOLDER OUT.json

A part that is a link measures the time of a step, on two nodes over that link (as root): its rate, and the delay of one
way. The job is that of ddp_train.py --model text, a transformer of 0.43 M parameters with AdamW. The ways to train:
- fp32, bf16: PyTorch's DistributedDataParallel, `bf16` with its compression hook
- lossy: gradtune.wrap() with that fidelity, once its tuning has decided
- rounds: gradtune.rounds() with that fidelity and at most --updates in a round, once its tuning has decided
- delayed: the same with a delay that gradtune chooses, so that updates go on beside an exchange
- streamed: as `delayed`, in 4 fragments of the model
- alone: no exchange at all, which shows the computation
- diloco: --updates, then a blocking fp32 all-reduce of the changes and an outer step, as people write it

All ways, or those of --ways, train in the same processes and take turns. A turn begins with a round that is not counted, and
its figure is the mean time of at least 16 updates in whole rounds, exchanges included. A row is the median over turns; ratios are taken between turns of one
pass, and their spread is their range. A ratio to `alone` is 1 + the share of the computation that exchanges add to it.
A link takes over 10 minutes, most of it tuning, since a tuning of rounds has 130 to 210 of them.

The other parts are trainings of ddp_train.py on loopback, in rounds of --updates with --delay and --fragments after 80
synchronous steps, beside synchronous fp32 with the same seeds: perplexity of a byte, or accuracy. Seeds are paired: the ratio is the mean
over pairs, and the spread its 95 % interval (Student's t). Rounds may lose 2 % of the perplexity, or half a point of
accuracy.
With --longer, trainings take five times as many steps. A row has each pair, and a call with more seeds goes on with it.
"""
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True  # leave no __pycache__ in the source tree

from accuracy import T_95  # noqa: E402
from support.loopback import run_on_ranks  # noqa: E402
from support.shaped import Bench, row, save  # noqa: E402

LINKS = ("20mbit-25ms", "200mbit-25ms", "1gbit-25ms")
TASKS = {"text": {"model": "text", "steps": 400}, "lstm": {"model": "lstm", "steps": 400},
         "fashion": {"model": "vgg", "steps": 468}}
WAYS = ("fp32", "bf16", "lossy", "rounds", "delayed", "streamed", "diloco", "alone")
IN_ROUNDS = {"rounds": {"delay": 0}, "delayed": {"delay": None}, "streamed": {"delay": None, "fragments": 4}}
LEAST_STEPS = 16
MOST_TUNING = 400  # of the session's steps
# (way, anchor): the goal of the ratio. That to synchronous training holds at 20 Mbit/s.
GOALS = {("rounds", "lossy"): 0.30, ("rounds", "alone"): 1.05, ("delayed", "alone"): 1.05, ("streamed", "alone"): 1.05}


def outer_sgd(torch, parameters):
    return torch.optim.SGD(parameters, 0.7, momentum=0.3, nesterov=True)


class Way:
    """A model with its optimizer, and its way to exchange."""

    def __init__(self, name, torch, most):
        import gradtune
        from support import text_job
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        self.name, self.torch, self.job, self.most = name, torch, text_job, most
        torch.manual_seed(1)
        self.model = text_job.Transformer()
        self.optimizer = text_job.optimizer(self.model)
        self.updates = 0
        if name in ("fp32", "bf16"):
            self.model = torch.nn.parallel.DistributedDataParallel(self.model, gradient_as_bucket_view=True)
            if name == "bf16":
                self.model.register_comm_hook(None, default_hooks.bf16_compress_hook)
        elif name == "lossy":
            gradtune.wrap(self.optimizer, self.model, fidelity="lossy", lossy_after=0)
        elif name in IN_ROUNDS:
            gradtune.rounds(self.optimizer, self.model, most=most, dense_steps=20, fidelity="lossy", **IN_ROUNDS[name])
        elif name == "diloco":
            self.anchors = [p.detach().clone().requires_grad_() for p in self.model.parameters()]
            self.outer = outer_sgd(torch, self.anchors)

    def end_round(self):
        """Exchanges what is due, also within a round; a delayed exchange may go on into the next turn."""
        if self.name == "rounds":
            self.optimizer.end_round()
        elif self.name == "diloco" and self.updates % self.most:
            self.exchange()

    def exchange(self):
        torch, dist = self.torch, self.torch.distributed
        self.updates = 0
        with torch.no_grad():
            flat = torch.cat([(a - p).flatten() for a, p in zip(self.anchors, self.model.parameters())])
            dist.all_reduce(flat)
            parts = flat.div_(dist.get_world_size()).split([a.numel() for a in self.anchors])
            for anchor, part in zip(self.anchors, parts):
                anchor.grad = part.view_as(anchor)
            self.outer.step()
            for anchor, p in zip(self.anchors, self.model.parameters()):
                p.copy_(anchor)

    def step(self, data):
        self.optimizer.zero_grad()
        self.job.loss_of(self.model, *next(data)).backward()
        self.optimizer.step()
        self.updates += 1
        if self.name == "diloco" and self.updates % self.most == 0:
            self.exchange()

    def round(self):
        """The updates between two exchanges."""
        if self.name in IN_ROUNDS:
            return self.optimizer.round_progress().updates_a_round
        return self.most if self.name == "diloco" else 1

    def run(self, data):
        """The mean time of an update in ms, after a round that is not counted."""
        if self.name in ("lossy", *IN_ROUNDS):
            self.optimizer.exclude_step()  # the other ways' turns are no part of it
        for _ in range(self.round()):
            self.step(data)
        self.end_round()
        steps = -(-LEAST_STEPS // self.round()) * self.round()
        began = time.perf_counter()
        for _ in range(steps):
            self.step(data)
        self.end_round()
        return 1e3 * (time.perf_counter() - began) / steps

    def tune(self, data):
        """Trains until tuning has decided on all ranks; returns the number of steps."""
        if self.name not in ("lossy", *IN_ROUNDS):
            return 0
        count, dist = 0, self.torch.distributed
        while True:
            self.step(data)
            count += 1
            if count % 10:
                continue
            is_far = self.name in IN_ROUNDS and self.optimizer.round_progress().synchronous
            done = (self.optimizer.result().decided and not is_far) or self.optimizer.progress().step > MOST_TUNING
            flag = self.torch.tensor(float(done))
            dist.all_reduce(flag, dist.ReduceOp.MIN)
            if flag:
                return count


def train_on_a_rank(task):
    import torch
    import torch.distributed as dist
    from support import text_job

    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    class Options:
        seed, batch = 1, 16

    data = text_job.batches(Options, dist.get_rank(), dist.get_world_size())
    names = task["ways"]
    of_gradtune = [name for name in names if name in ("lossy", *IN_ROUNDS)]
    ways = {name: Way(name, torch, task["updates"]) for name in names}
    tuned = {name: way.tune(data) for name, way in ways.items()}
    means = {name: [] for name in names}
    for at in range(task["turns"]):
        for turn in range(len(names)):
            name = names[(at + turn) % len(names)]
            means[name].append(ways[name].run(data))
    told = {name: str(ways[name].optimizer.result()) for name in of_gradtune}
    shapes = {}
    for name in [each for each in of_gradtune if each in IN_ROUNDS]:
        progress = ways[name].optimizer.round_progress()
        shapes[name] = {"updates": progress.updates_a_round, "delay": progress.delay,
                        "exchange_ms": progress.exchange_ms, "update_ms": progress.update_ms}
    if dist.get_rank() == 0:
        Path(task["report"]).write_text(json.dumps({"means": means, "tuned": tuned, "told": told, "shapes": shapes}),
                                        encoding="utf-8")
    for name in of_gradtune:
        ways[name].optimizer.close()
    dist.destroy_process_group()


def link_title(link, args):
    return link if args.updates == 8 else f"{link}, at most {args.updates} updates"


def measure_link(link, args, rows):
    ways, title = args.ways.split(","), link_title(link, args)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args.build.resolve(), folder)
        report = Path(folder) / "report.json"
        task = {"ways": ways, "updates": args.updates, "turns": args.turns, "report": str(report)}
        bench.launch(bench.launcher(link), [sys.executable, "-B", __file__, "--rank", json.dumps(task)])
        found = json.loads(report.read_text(encoding="utf-8"))
    means = found["means"]
    for name, text in found["told"].items():
        print(f"{link}, {name}, {found['tuned'][name]} steps of tuning: {text}", flush=True)
    for name, anchors in (("bf16", ("fp32",)), ("lossy", ("fp32",)), ("diloco", ("fp32",)),
                          *((name, ("fp32", "bf16", "lossy", "diloco", "alone")) for name in IN_ROUNDS)):
        for anchor in anchors:
            if name not in ways or anchor not in ways:
                continue
            ratios = [a / b for a, b in zip(means[name], means[anchor])]
            goal = GOALS.get((name, anchor)) if anchor == "alone" or link.startswith("20mbit") else None
            row(rows, f"{title}: {name} / {anchor}", statistics.median(means[name]), statistics.median(means[anchor]),
                ratios, goal)
    for name, shape in found["shapes"].items():
        print(f"{link}, {name}: {shape['updates']} updates a round, delay {shape['delay']}", flush=True)
    rows[-1].update(told=found["told"], shapes=found["shapes"])


def train(task, ranks, seed, steps, folder, flags):
    """The perplexity or accuracy of a training."""
    report = Path(folder) / "trained.json"
    command = [sys.executable, "-B", Path(__file__).with_name("ddp_train.py"), "--model", TASKS[task]["model"], "--steps",
               steps, "--seed", seed, "--eval", "--report", report, *flags]
    run_on_ranks([str(word) for word in command], ranks, OMP_NUM_THREADS="1", GRADTUNE_QUIET="1")
    told = json.loads(report.read_text(encoding="utf-8"))
    return told.get("perplexity") or told["accuracy"]


def task_title(task, ranks, args):
    steps = TASKS[task]["steps"] * (5 if args.longer else 1)
    delayed = f" with delay {args.delay}" if args.delay else ""
    parts = f" in {args.fragments} fragments" if args.fragments > 1 else ""
    return steps, f"{task}: {ranks} ranks, {steps} steps, rounds of {args.updates}{parts}{delayed} / fp32"


def measure_task(task, ranks, args, rows):
    """Trains with the seeds that the row lacks, and saves it after each of them."""
    steps, name = task_title(task, ranks, args)
    in_rounds = ["--gradtune", "lossy", "--rounds", args.updates, "--delay", args.delay, "--fragments", args.fragments]
    at = next((i for i, entry in enumerate(rows) if entry["name"] == name), len(rows))
    pairs = rows[at].get("pairs", []) if at < len(rows) else []
    for seed in range(len(pairs) + 1, args.seeds + 1):
        with tempfile.TemporaryDirectory() as folder:
            pairs.append([train(task, ranks, seed, steps, folder, ["--gradtune", "exact"]),
                          train(task, ranks, seed, steps, folder, in_rounds)])
        print(f"{name}, seed {seed}: fp32 {pairs[-1][0]:.3f}, rounds {pairs[-1][1]:.3f}", flush=True)
        rows[at:at + 1] = [task_row(name, steps, pairs, is_perplexity=task != "fashion")]
        save(args.out, rows)
    told = rows[at]
    print(f"{name}: {told['ratio']:.4f} {told['spread']}  goal {told['goal']}: {'met' if told['met'] else 'MISSED'}",
          flush=True)


def task_row(name, steps, pairs, is_perplexity):
    fp32, rounds = zip(*pairs)
    # A ratio of perplexities, or a difference of points.
    worse = [a / b if is_perplexity else b - a for b, a in pairs]
    mean, goal, seeds = statistics.mean(worse), 1.02 if is_perplexity else 0.5, len(pairs)
    half = T_95[seeds - 1] * statistics.stdev(worse) / seeds**0.5 if seeds > 1 else None
    return {"name": name, "value": statistics.mean(rounds), "unit": "perplexity" if is_perplexity else "%",
            "anchor": statistics.mean(fp32), "ratio": mean, "goal": goal,
            "spread": None if half is None else [mean - half, mean + half],
            "met": None if half is None else mean + half <= goal, "seeds": seeds, "steps": steps, "pairs": pairs}


def main():
    import argparse

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join((*LINKS, *TASKS)))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--longer", action="store_true")
    parser.add_argument("--updates", type=int, default=8)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--delay", type=int, default=0)
    parser.add_argument("--fragments", type=int, default=1)
    parser.add_argument("build", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    rows = json.loads(args.out.read_text(encoding="utf-8"))["rows"] if args.out.exists() else []
    for part in args.parts.split(","):
        if part in TASKS:
            for ranks in map(int, args.ranks.split(",")):
                measure_task(part, ranks, args, rows)
            continue
        rows = [entry for entry in rows if entry["name"].split(":")[0] != link_title(part, args)]
        measure_link(part, args, rows)
        save(args.out, rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        train_on_a_rank(json.loads(sys.argv[2]))
    else:
        main()
