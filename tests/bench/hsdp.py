#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Measures a step of a model that FSDP2 shards inside a node and replicates between nodes (HSDP).

usage: hsdp.py [--rounds 5] [--steps 4] [--links 200mbit,200mbit-25ms,1gbit,1gbit-25ms] BUILD_FOLDER OUT.json

Two nodes of two ranks, over a shaped link (as root). A link is a rate, or a rate and the delay of one way. The model is a
transformer of 5.3 M parameters, with SGD. Its ways to reduce gradients between the nodes:
- fp32, bf16: FSDP2's own all-reduce, one for each unit; `bf16` has reduce_dtype=torch.bfloat16
- hook: an all-reduce hook of FSDP2 (set_all_reduce_hook) on a mesh of shards alone, which starts all-reduces and waits for
  them when backward ends
- exact, half, lossy: gradtune.between_replicas() with that fidelity, once its tuning has decided

All ways train in the same processes. They take turns: in a round each runs the given steps, after one that is not
counted. A row is the median over rounds of the round's median step; ratios are taken inside a round, and their spread is
their range.
"""
import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True  # leave no __pycache__ in the source tree

from support.shaped import Bench, row, save  # noqa: E402

FIDELITIES = ("exact", "half", "lossy")
WAYS = ("fp32", "bf16", "hook", *FIDELITIES)
MOST_TUNING = 420  # steps
# (way, anchor) and the goal of the ratio: for 200 Mbit/s, for 1 Gbit/s, and with a delay.
GOALS = {("exact", "fp32"): (0.80, None, None), ("half", "bf16"): (0.70, None, None), ("lossy", "fp32"): (0.35, None, 0.55)}


def make_model(torch):
    nn = torch.nn
    torch.manual_seed(1)
    layers = [nn.TransformerEncoderLayer(256, 4, 1024, 0.0, batch_first=True) for _ in range(6)]
    return nn.Sequential(nn.Embedding(2048, 256), *layers)


class Way:
    """A model with its optimizer, and its way to reduce."""

    def __init__(self, name, torch, mesh):
        import gradtune
        from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

        self.torch, self.model = torch, make_model(torch)
        options = {"mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)} if name == "bf16" else {}
        where = mesh["shard"] if name == "hook" else mesh
        for layer in self.model:
            fully_shard(layer, mesh=where, **options)
        fully_shard(self.model, mesh=where, **options)
        self.replicas = None
        if name in FIDELITIES:
            self.replicas = gradtune.between_replicas(self.model, fidelity=name)
        if name == "hook":
            self.group, self.open = mesh["replica"].get_group(), []
            for module in self.model.modules():
                if isinstance(module, FSDPModule):
                    module.set_all_reduce_hook(self.reduce)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-3)

    def reduce(self, reduced):
        dist = self.torch.distributed
        if not self.open:
            self.torch.autograd.Variable._execution_engine.queue_callback(self.finish)
        self.open.append((dist.all_reduce(reduced, group=self.group, async_op=True), reduced))

    def finish(self):
        for work, reduced in self.open:
            work.wait()
            reduced.div_(self.group.size())
        self.open = []

    def step(self):
        inputs = self.torch.randint(2048, (2, 16))
        began = time.perf_counter()
        self.optimizer.zero_grad()
        self.model(inputs).square().mean().backward()
        self.optimizer.step()
        return 1e3 * (time.perf_counter() - began)

    def run(self, steps):
        if self.replicas is not None:
            self.replicas.exclude_step()  # the other ways' turns are no part of it
        self.step()
        return statistics.median(self.step() for _ in range(steps))

    def tune(self, group):
        """Trains until tuning has decided on all ranks; returns the number of steps."""
        if self.replicas is None:
            return 0
        for count in range(1, MOST_TUNING + 1):
            self.step()
            if count % 10 == 0:
                decided = self.torch.tensor(float(self.replicas.result().decided))
                self.torch.distributed.all_reduce(decided, self.torch.distributed.ReduceOp.MIN, group=group)
                if decided:
                    return count
        return MOST_TUNING


def train_on_a_rank(rounds, steps, report):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
    ways = {name: Way(name, torch, mesh) for name in WAYS}
    tuned = {name: way.tune(None) for name, way in ways.items()}
    medians = {name: [] for name in WAYS}
    for at in range(rounds):
        for turn in range(len(WAYS)):
            name = WAYS[(at + turn) % len(WAYS)]
            medians[name].append(ways[name].run(steps))
    told = {name: str(way.replicas.result()) for name, way in ways.items() if way.replicas is not None}
    if dist.get_rank() == 0:
        Path(report).write_text(json.dumps({"medians": medians, "tuned": tuned, "told": told}), encoding="utf-8")
    for way in ways.values():
        if way.replicas is not None:
            way.replicas.close()
    dist.destroy_process_group()


def goal_of(pair, link):
    slow, fast, long = GOALS.get(pair, (None, None, None))
    rate, _, delay = link.partition("-")
    return long if delay else slow if rate == "200mbit" else fast


def measure_link(build, link, rounds, steps, rows):
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(build, folder)
        report = Path(folder) / "report.json"
        bench.launch(bench.launcher(link, ranks_per_node=2),
                     [sys.executable, "-B", __file__, "--rank", rounds, steps, report])
        told = json.loads(report.read_text(encoding="utf-8"))
    medians = told["medians"]
    for name, text in told["told"].items():
        print(f"{link}, {name}, {told['tuned'][name]} steps of tuning: {text}", flush=True)
    for name in WAYS[1:]:
        for anchor in ("fp32", "bf16") if name in FIDELITIES else ("fp32",):
            ratios = [a / b for a, b in zip(medians[name], medians[anchor])]
            row(rows, f"{link}: {name} / {anchor}", statistics.median(medians[name]), statistics.median(medians[anchor]),
                ratios, goal_of((name, anchor), link))
    rows[-1]["told"] = told["told"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--links", default="200mbit,200mbit-25ms,1gbit,1gbit-25ms")
    parser.add_argument("build", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    links = args.links.split(",")
    earlier = json.loads(args.out.read_text(encoding="utf-8"))["rows"] if args.out.exists() else []
    rows = [entry for entry in earlier if entry["name"].split(":")[0] not in links]
    for link in links:
        measure_link(args.build.resolve(), link, args.rounds, args.steps, rows)
        save(args.out, rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        train_on_a_rank(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        main()
