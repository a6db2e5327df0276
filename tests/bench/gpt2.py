#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Trains GPT-2 of `transformers` as people do, under PyTorch DDP and under gradtune: AdamW, bf16 autocast, two ranks.

usage: gpt2.py [--device cuda] [--backend nccl] [--model gpt2] [--links none,10gbit,1gbit] [--steps 6] [--turns 3]
               [--batch 4] OUT.json

The ranks share one GPU. NCCL connects them by sockets, over loopback (`none`), or over a shaped link between two network
namespaces (as root). Kernels of two processes take turns on a GPU, so each operation of NCCL takes 10 ms or more, which
no cluster has: ratios compare alike with alike, and times say nothing about other machines. A link has no rows if this
machine has no namespaces or their tools, and a line says so.

All ways train in the same processes: DDP with fp32, its bf16 hook, and PowerSGD of rank 4, and gradtune.wrap() at each
fidelity, once its tuning has decided. They take turns; in a turn each runs the given steps, after one that is not counted.
A row is the median over turns of the turn's median step, and its ratio is taken inside a turn: `exact` beside fp32, `half`
beside bf16, and `lossy` beside the fastest. `loss` is the mean of the last five of the first 20 steps. `memory` is the
device's memory that a way takes at most, in GiB, with that outside of torch's allocator. Both stand beside the anchor's.
The goal of `memory` is 1.05 of DDP's, which residuals of `lossy` exceed by the size of the parameters.
"""
import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True  # leave no __pycache__ in the source tree

from support.loopback import run_on_ranks  # noqa: E402
from support.shaped import ROOT, row, save  # noqa: E402

ANCHORS = {"exact": ("fp32",), "half": ("fp32", "bf16"), "lossy": ("fp32", "bf16", "powersgd4")}
WAYS = (*ANCHORS["lossy"], *ANCHORS)
SHAPES = {"gpt2": {}, "tiny": {"n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 500}}
LENGTH, FIRST, SEEN = 512, 20, 5
MOST_TUNING = 400  # steps
UNAVAILABLE = 4  # exit code of examples/cluster


# --- a rank ------------------------------------------------------------------------------------------------------------------

class Device:
    """Memory and time of the device; without a GPU there is no figure of memory."""

    def __init__(self, torch, name):
        self.torch, self.dist = torch, torch.distributed
        self.name = name
        self.has_memory = name == "cuda"

    def wait(self):
        if self.has_memory:
            self.torch.cuda.synchronize()

    def memory(self):
        """Bytes that torch allocated at most since forget_peak(), and bytes of all ranks outside of torch."""
        if not self.has_memory:
            return 0, 0
        cuda = self.torch.cuda
        reserved = self.torch.tensor(float(cuda.memory_reserved()), dtype=self.torch.float64, device=self.name)
        self.dist.all_reduce(reserved)
        free, total = cuda.mem_get_info()
        return cuda.max_memory_allocated(), total - free - reserved.item()

    def forget_peak(self):
        gc.collect()
        if self.has_memory:
            self.torch.cuda.empty_cache()
            self.torch.cuda.reset_peak_memory_stats()


class Way:
    def __init__(self, name, task, device):
        import gradtune
        from ddp_train import HOOKS, ONE_BUCKET_MB
        from transformers import GPT2Config, GPT2LMHeadModel

        torch = self.torch = device.torch
        self.name, self.device, self.batch = name, device, task["batch"]
        torch.manual_seed(1)
        config = GPT2Config(n_positions=LENGTH, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **SHAPES[task["model"]])
        self.symbols = config.vocab_size
        self.model = GPT2LMHeadModel(config).to(device.name)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.is_tuned = name in ANCHORS
        if self.is_tuned:
            gradtune.wrap(self.optimizer, self.model, fidelity=name, lossy_after=0, quiet=True)
        else:
            cap = ONE_BUCKET_MB if name.startswith("powersgd") else None
            self.model = torch.nn.parallel.DistributedDataParallel(self.model, bucket_cap_mb=cap, gradient_as_bucket_view=True)
            HOOKS[name.replace("fp32", "none")](self.model)
        self.drawn = torch.Generator().manual_seed(1 + torch.distributed.get_rank())

    def text(self):
        """Sequences in which each symbol follows from the one before."""
        first = self.torch.randint(self.symbols, (self.batch, 1), generator=self.drawn)
        return ((first + 7 * self.torch.arange(LENGTH)) % self.symbols).to(self.device.name)

    def step(self):
        text = self.text()
        self.device.wait()
        began = time.perf_counter()
        self.optimizer.zero_grad()
        with self.torch.autocast(self.device.name, dtype=self.torch.bfloat16):
            loss = self.model(input_ids=text, labels=text).loss
        loss.backward()
        self.optimizer.step()
        self.device.wait()
        return 1e3 * (time.perf_counter() - began), loss.item()

    def first_steps(self):
        """The loss after the first steps; then tunes until all ranks have decided."""
        losses = [self.step()[1] for _ in range(FIRST)]
        for count in range(MOST_TUNING if self.is_tuned else 0):
            self.step()
            if count % 10 == 9:
                decided = self.torch.tensor(float(self.optimizer.result().decided), device=self.device.name)
                self.torch.distributed.all_reduce(decided, self.torch.distributed.ReduceOp.MIN)
                if decided:
                    break
        return statistics.mean(losses[-SEEN:])

    def turn(self, steps):
        if self.is_tuned:
            self.optimizer.exclude_step()  # the turns of the others are no part of it
        self.step()
        return statistics.median(self.step()[0] for _ in range(steps))


def train_on_a_rank(task):
    os.environ["NCCL_HOSTID"] = f"rank{os.environ['RANK']}"  # the ranks share the GPU (tests/gpu/on_gpu.py)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if task["device"] == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group(task["backend"])
    device, ways, report = Device(torch, task["device"]), {}, {"loss": {}, "memory": {}, "ms": {}, "told": {}}
    for name in WAYS:
        device.forget_peak()
        before, outside = device.memory()
        ways[name] = Way(name, task, device)
        report["loss"][name] = ways[name].first_steps()
        peak, outside_now = device.memory()
        report["memory"][name] = (peak - before + (outside_now - outside) / dist.get_world_size()) / 2**30
        report["ms"][name] = []
        if ways[name].is_tuned:
            report["told"][name] = str(ways[name].optimizer.result())
    for at in range(task["turns"]):
        for turn in range(len(WAYS)):
            name = WAYS[(at + turn) % len(WAYS)]
            report["ms"][name].append(ways[name].turn(task["steps"]))
    if dist.get_rank() == 0:
        Path(task["report"]).write_text(json.dumps(report), encoding="utf-8")
    for name in ANCHORS:
        ways[name].optimizer.close()
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # a normal exit sometimes aborts: Gloo's threads hold callbacks of Python


# --- the benchmark -----------------------------------------------------------------------------------------------------------

def launch(link, task):
    command = [sys.executable, "-B", __file__, "--rank", json.dumps(task)]
    if link == "none":
        return run_on_ranks(command, 2)
    launcher = [sys.executable, ROOT / "examples" / "cluster", "--nodes", "2", "--ranks-per-node", "1", "--rate", link, "--"]
    done = subprocess.run([str(word) for word in [*launcher, *command]], check=False, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        why = "this machine can make no such network" if done.returncode == UNAVAILABLE else f"code {done.returncode}"
        raise RuntimeError(f"{why}:\n{done.stderr[-3000:]}")
    return None


def measure(link, task, rows):
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        launch(link, {**task, "report": str(report)})
        found = json.loads(report.read_text(encoding="utf-8"))
    for name, told in found["told"].items():
        print(f"{link}: {name}: {told}", flush=True)
    medians = {name: statistics.median(turns) for name, turns in found["ms"].items()}
    for name, anchors in ANCHORS.items():
        anchor = min(anchors, key=medians.get)
        row(rows, f"{link}: {name} / DDP {anchor}", medians[name], medians[anchor],
            [a / b for a, b in zip(found["ms"][name], found["ms"][anchor])], None)
        rows[-1].update({kind: [found[kind][name], found[kind][anchor]] for kind in ("loss", "memory")})
        print(f"    loss {found['loss'][name]:.3f}, DDP {found['loss'][anchor]:.3f}; memory {found['memory'][name]:.2f} GiB, "
              f"DDP {found['memory'][anchor]:.2f}", flush=True)


def main():
    if sys.argv[1:2] == ["--rank"]:
        train_on_a_rank(json.loads(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--model", choices=SHAPES, default="gpt2")
    parser.add_argument("--links", type=lambda text: text.split(","), default=["none", "10gbit", "1gbit"])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("out", type=Path)
    flags = parser.parse_args()
    task = {name: getattr(flags, name) for name in ("device", "backend", "model", "steps", "turns", "batch")}
    rows, failures = [], 0
    for link in flags.links:
        try:
            measure(link, task, rows)
        except RuntimeError as error:
            failures += 1
            print(f"{link}: no row, as {error}", file=sys.stderr, flush=True)
        save(flags.out, rows)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
