#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Trains a model of GPT-2's size on one GPU that two ranks share, over Gloo on links that are paced to a rate. It
compares PyTorch DDP with fp32, bf16 and PowerSGD with gradtune, and gradtune's choice with the same strategy with
all compression on the device and on the host.

usage: train_device.py [--device cuda] [--model gpt2] [--rates 25000,5000,1000] [--fidelities half,lossy] [--steps 10]
                       [--tuning 160] [--rounds 1] PROGRAMS OUT.json

PROGRAMS: the folder with train_synthetic. Rates are Mbit/s. Two ranks of one machine have no slow link between them.
So a paced link reports a collective's completion no earlier than a link of that rate would (engine/comm/pacing.h;
the same is done here for DDP). Rows are median steps in ms, arms taking turns; ratios are taken inside a round. The
anchor of gradtune is the best of DDP at that fidelity: with fp32 and bf16 for `half`, and with PowerSGD too for
`lossy`. Rows `one rank` are the times of both without communication: LibTorch's optimizer in C++ is not PyTorch's.
No arm waits for dense first steps (option `lossy_after`), since only times matter. An arm that fails is reported at
the end, and does not keep the others from running. Committed strategies and journals are left beside OUT.json.
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.dont_write_bytecode = True  # leave no __pycache__ in the source tree

from support import loopback  # noqa: E402
from support.shaped import median_step, row, save  # noqa: E402

RANKS, WARM_UP = 2, 4
HOOKS = ("fp32", "bf16", "powersgd4")
PEERS = {"exact": ("fp32",), "half": ("fp32", "bf16"), "lossy": HOOKS}
LENGTH, BATCH = 512, 4


# --- a rank of DDP -----------------------------------------------------------------------------------------------------------

class PacedLink:
    """One direction of a link between the ranks: messages follow each other at the given bytes per second."""

    def __init__(self, mbit, size):
        self.bytes_per_second = mbit * 1e6 / 8
        self.share = 2 * (size - 1) / size
        self.lock = threading.Lock()
        self.free_at = 0.0

    def starts(self, tensor):
        """The end of a ring's all-reduce of that tensor, if it starts now."""
        sent = self.share * tensor.numel() * tensor.element_size()
        with self.lock:
            self.free_at = max(self.free_at, time.monotonic()) + sent / self.bytes_per_second
            return self.free_at


def pace_all_reduce(distributed, link):
    """All-reduces, as called by hooks of DDP, end no earlier than the link allows."""
    unpaced = distributed.all_reduce

    class Work:
        def __init__(self, work, until):
            self.future = work.get_future().then(lambda done: (time.sleep(max(0, until - time.monotonic())), done.value())[1])

        def get_future(self):
            return self.future

        def wait(self):
            self.future.wait()

    def paced(tensor, *args, async_op=False, **named):
        until = link.starts(tensor)
        work = Work(unpaced(tensor, *args, async_op=True, **named), until)
        return work if async_op else work.wait()

    distributed.all_reduce = paced


def ddp_steps(flags, hook, rank):
    import torch  # pylint: disable=import-outside-toplevel
    from support.text_job import Shape, Transformer  # pylint: disable=import-outside-toplevel
    from torch import nn  # pylint: disable=import-outside-toplevel
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook  # pylint: disable=import-outside-toplevel

    shapes = {"gpt2": Shape(symbols=50257, length=LENGTH, width=768, heads=12, layers=12),
              "tiny": Shape(symbols=1000, length=LENGTH, width=64, heads=4, layers=2)}
    shape = shapes[flags.model]
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Transformer(shape).to(flags.device), gradient_as_bucket_view=True,
                                                bucket_cap_mb=1 << 16 if hook == "powersgd4" else None)
    if hook == "powersgd4":
        model.register_comm_hook(powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2),
                                 powerSGD_hook.powerSGD_hook)
    else:  # also of fp32, so that it is paced
        model.register_comm_hook(None, default_hooks.allreduce_hook if hook == "fp32" else default_hooks.bf16_compress_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.manual_seed(1 + rank)
    steps, last = [], time.perf_counter()
    for _ in range(flags.steps):
        text = torch.randint(shape.symbols, (BATCH, shape.length + 1), device=flags.device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(text[:, :-1]).reshape(-1, shape.symbols), text[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        loss = loss.item()
        now = time.perf_counter()
        steps.append({"ms": (now - last) * 1e3, "loss": loss})
        last = now
    return {"steps": steps}


def ddp_rank(flags):
    """Runs all hooks one after the other: a process of PyTorch takes longer to start than they take."""
    from torch import distributed  # pylint: disable=import-outside-toplevel

    rank = int(os.environ["RANK"])
    distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    pace_all_reduce(distributed, PacedLink(flags.rate, distributed.get_world_size()))
    reports = {hook: ddp_steps(flags, hook, rank) for hook in HOOKS[:1 if distributed.get_world_size() == 1 else None]}
    if rank == 0:
        flags.report.write_text(json.dumps(reports), encoding="utf-8")
    distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # a normal exit sometimes aborts: Gloo's threads hold callbacks of Python


# --- the benchmark -----------------------------------------------------------------------------------------------------------

class Bench:
    def __init__(self, flags, folder):
        self.flags, self.folder, self.count, self.failures = flags, folder, 0, []

    def ranks(self, command, environment, size=RANKS):
        """Runs a job to its end. Returns the report of rank 0."""
        self.count += 1
        report = self.folder / f"report{self.count}.json"
        port = loopback.free_port()
        words = [str(word) for word in [*command, "--report", report]]
        ranks = [subprocess.Popen(words, env={**os.environ, **loopback.variables(rank, size, port), **environment},
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(size)]
        try:
            said = [rank.communicate(timeout=300)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()  # then the GPU has its memory back
        if any(rank.returncode != 0 for rank in ranks):
            raise RuntimeError(f"{' '.join(words)} failed:\n" + "\n".join(text[-2000:] for text in said))
        return json.loads(report.read_text(encoding="utf-8"))

    def ddp(self, rate, size=RANKS):
        """The median step of each hook."""
        reports = self.ranks([sys.executable, __file__, "--rank", "--rate", rate, "--model", self.flags.model, "--device",
                              self.flags.device, "--steps", self.flags.steps], {}, size)
        return {f"DDP {hook}": median_step(report, WARM_UP) for hook, report in reports.items()}

    def gradtune(self, rate, steps, tuning, *more, size=RANKS):
        command = [self.flags.programs / "train_synthetic", "--model", self.flags.model, "--device", self.flags.device, "--length",
                   LENGTH, "--batch", BATCH, "--steps", steps, *more]
        host_threads = max(1, len(os.sched_getaffinity(0)) // RANKS - 1)
        return self.ranks(command, {"GRADTUNE_PACING_MBIT": str(rate), "GRADTUNE_TUNING_BUDGET": str(tuning), "GRADTUNE_QUIET": "1",
                                    "GRADTUNE_LOSSY_AFTER": "0", "GRADTUNE_HOST_THREADS": str(host_threads)}, size)

    def tuned(self, rate, fidelity):
        """The strategy that a job at that fidelity commits. It stays beside the results, with the job's journal."""
        strategy = self.flags.out.with_name(f"{self.flags.out.stem}-{fidelity}-{rate}.json")
        self.gradtune(rate, self.flags.tuning + 10, self.flags.tuning, "--fidelity", fidelity, "--export", strategy,
                      "--journal", strategy.with_suffix(".jsonl"))
        return strategy

    def placed(self, strategy, place):
        """The strategy with all compression there; nothing if it is placed so already."""
        other = {"host": "device", "device": "host"}[place]
        plan = json.loads(strategy.read_text(encoding="utf-8"))
        options = [bucket["option"] for bucket in plan["buckets"]]
        for bucket in plan["buckets"]:
            bucket["option"] = bucket["option"].replace(f"@{other}", f"@{place}")
        if options == [bucket["option"] for bucket in plan["buckets"]]:
            return None
        plan.update(label=f"all on the {place}", evidence=None)
        path = self.folder / f"{strategy.stem}-{place}.json"
        path.write_text(json.dumps(plan), encoding="utf-8")
        return path

    def arms(self, rate):
        """Names of arms and a function for each, which returns the median steps of one or more of them."""
        arms = {"DDP": lambda: self.ddp(rate)}
        for fidelity in self.flags.fidelities:
            committed = self.attempt(f"tuning {fidelity}", lambda fidelity=fidelity: self.tuned(rate, fidelity))
            if committed is None:
                continue
            options = [bucket["option"] for bucket in json.loads(committed.read_text(encoding="utf-8"))["buckets"]]
            print(f"{rate} Mbit/s: {fidelity}: {len(options)} buckets: {'; '.join(sorted(set(options)))}", flush=True)
            strategies = {fidelity: committed, **{f"{fidelity}, all on the {place}": self.placed(committed, place)
                                                  for place in ("device", "host")}}
            for name, strategy in strategies.items():
                if strategy is not None:
                    arms[name] = lambda name=name, strategy=strategy, fidelity=fidelity: {name: median_step(self.gradtune(
                        rate, self.flags.steps, 0, "--fidelity", fidelity, "--strategy", strategy), WARM_UP)}
        return arms

    def attempt(self, name, call):
        """The result of the call, or nothing if it fails."""
        try:
            return call()
        except Exception as error:  # pylint: disable=broad-exception-caught
            self.failures.append(f"{name}: {error}")
            print(f"FAILED: {self.failures[-1]}", flush=True)
            return None

    def run_alone(self):
        """The row of one rank."""
        rows, times, rate = [], {"gradtune": [], "DDP": []}, self.flags.rates[0]
        for _ in range(self.flags.rounds):
            mine = self.attempt("one rank: gradtune", lambda: self.gradtune(rate, self.flags.steps, 0, "--fidelity", "exact", size=1))
            other = self.attempt("one rank: DDP", lambda: self.ddp(rate, 1))
            if mine and other:
                times["gradtune"].append(median_step(mine, WARM_UP))
                times["DDP"].append(other["DDP fp32"])
        if times["DDP"]:
            row(rows, f"{self.flags.model}: {self.flags.device}: one rank: exact / DDP fp32", *map(statistics.median, times.values()),
                [mine / other for mine, other in zip(*times.values())], None)
        return rows

    def run(self, rate):
        """Rows of that rate."""
        prefix, times = f"{self.flags.model}: {self.flags.device}: {rate} Mbit/s: ", {}
        arms = self.arms(rate)
        for round_number in range(self.flags.rounds):
            for name, arm in arms.items():
                for part, ms in (self.attempt(f"{rate} Mbit/s: {name}", arm) or {}).items():
                    times.setdefault(part, {})[round_number] = ms
                    print(f"{prefix}{part}: {ms:.1f} ms", flush=True)
        rows, medians = [], {name: statistics.median(by_round.values()) for name, by_round in times.items()}
        for name, mine in times.items():
            fidelity, _, place = name.partition(",")
            peers = [f"DDP {hook}" for hook in PEERS.get(fidelity, HOOKS) if f"DDP {hook}" in times]
            anchor = fidelity if place else min(peers, key=medians.get, default=None)
            both = mine.keys() & times.get(anchor, {}).keys()
            if name != anchor and both:
                row(rows, f"{prefix}{name} / {anchor}", medians[name], medians[anchor],
                    [mine[number] / times[anchor][number] for number in both], None)
        return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", choices=("gpt2", "tiny"), default="gpt2")
    parser.add_argument("--steps", type=int, default=10)
    if "--rank" in sys.argv:
        parser.add_argument("--rank", action="store_true")
        parser.add_argument("--rate", type=float)
        parser.add_argument("--report", type=Path)
        ddp_rank(parser.parse_args())
        return
    parser.add_argument("--rates", type=lambda text: text.split(","), default=["25000", "5000", "1000"])
    parser.add_argument("--fidelities", type=lambda text: text.split(","), default=["half", "lossy"])
    parser.add_argument("--tuning", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("programs", type=Path)
    parser.add_argument("out", type=Path)
    flags = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(flags, Path(folder))
        for run in (*(lambda rate=rate: bench.run(rate) for rate in flags.rates), bench.run_alone):
            rows += run()
            save(flags.out, rows)
        for failure in bench.failures:
            print(f"FAILED: {failure}", file=sys.stderr)
        sys.exit(1 if bench.failures else 0)


if __name__ == "__main__":
    main()
