# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""A rank of a cell of `bench matrix`. All ways of training run by turns in the same processes.

usage: matrix_rank.py TASK.json REPORT.json

The task: model, fidelity, seconds (for all), journal and strategy (files), tune (tunes first, and writes the two files;
otherwise they exist), ways ("all", or the names of PyTorch DDP's ways alone).
The report of rank 0: the medians of each way's turns in ms, what tuning said, and the number of strategies tried.
"""
import json
import statistics
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True  # leave no __pycache__ in the source tree
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from ddp_train import HOOKS, ONE_BUCKET_MB, powersgd  # noqa: E402
from support.matrix_models import JOBS  # noqa: E402
from support.matrix_plans import by_hand, raced  # noqa: E402
from support.shaped import are_same  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

DDP_HOOKS = {**{name: HOOKS[name] for name in ("none", "fp16", "bf16", "powersgd1", "powersgd4")}, "powersgd16": powersgd(16)}
CAPS_MB = (1, 5, 25, ONE_BUCKET_MB)  # 25 is DDP's default
TURN_S, MOST_STEPS = 0.8, 12
MOST_TUNING = 420  # steps, longer than tuning takes
SHARES = {"tuning": 0.55, "trial": 0.7}  # of the time, after which that part ends
FINALISTS = 3


class Way:
    """A model that trains in one way. `session` is None under PyTorch DDP, and for a rank that computes alone."""

    def __init__(self, name, model, hook=None, cap_mb=25, **options):
        import gradtune

        self.name, self.session, self.job = name, None, JOBS[model]
        torch.manual_seed(1)
        self.model = self.job.make()
        self.optimizer = self.job.optimizer(self.model)
        self.batches = self.job.batches(dist.get_rank(), dist.get_world_size())
        if hook:
            self.model = DistributedDataParallel(self.model, bucket_cap_mb=cap_mb, gradient_as_bucket_view=True)
            DDP_HOOKS[hook](self.model)
        elif options:
            self.session = gradtune.wrap(self.optimizer, self.model, quiet=True, **options)

    def step(self):
        batch = next(self.batches)
        began = time.perf_counter()
        self.optimizer.zero_grad()
        self.job.loss(self.model, batch).backward()
        self.optimizer.step()
        return 1e3 * (time.perf_counter() - began)

    def turn(self, steps):
        """The median step of a turn in ms; its first step is not counted."""
        if self.session is not None:
            self.session.exclude_step()  # the turns of the others are no part of it
        self.step()
        return statistics.median(self.step() for _ in range(steps))

    def close(self):
        if self.session is not None:
            self.session.close()


def agreed(value):
    """Rank 0's value."""
    box = [value]
    dist.broadcast_object_list(box)
    return box[0]


class Cell:
    def __init__(self, task):
        self.task, self.began = task, time.monotonic()

    def time_is_up(self, share):
        return agreed(time.monotonic() - self.began > share * self.task["seconds"])

    def steps_of(self, way):
        """A turn takes about as long for each way. The number is even: where ranks are a delay apart, every other step is
        long, and the median of as many long as short ones is their mean."""
        way.step()
        ms = agreed(statistics.mean(way.step() for _ in range(4)))
        return max(2, min(MOST_STEPS, 2 * round(1e3 * TURN_S / ms / 2)))

    def tune(self):
        """Trains until tuning has decided. Returns what it said."""
        options = {"fidelity": self.task["fidelity"], "journal": self.task["journal"]}
        way = Way("tuning", self.task["model"], **options)
        for count in range(MOST_TUNING):
            way.step()
            if count % 10 == 9 and (agreed(way.session.result().decided) or self.time_is_up(SHARES["tuning"])):
                break
        way.session.export_strategy(self.task["strategy"])
        said = str(way.session.result())
        way.close()
        return said

    def pinned(self, name, file):
        return Way(name, self.task["model"], fidelity=self.task["fidelity"], strategy=file, tuning_budget=0, lossy_after=0)

    def best_cap(self, model):
        """DDP's fastest bucket size for this model, which each of its hooks uses."""
        times = {}
        for cap_mb in CAPS_MB:
            way = Way("ddp", model, "none", cap_mb)
            way.step()
            times[cap_mb] = agreed(way.turn(4))
        return min(times, key=times.get)

    def ddp(self):
        """PyTorch DDP in each of its ways. PowerSGD has one bucket, since several can hang over Gloo."""
        model = self.task["model"]
        cap_mb = self.best_cap(model.removesuffix("-sparse"))
        ways = [Way(f"DDP {hook.replace('none', 'fp32')}", model.removesuffix("-sparse"), hook,
                    ONE_BUCKET_MB if hook.startswith("powersgd") else cap_mb) for hook in DDP_HOOKS]
        if model.endswith("-sparse"):
            ways.append(Way("DDP fp32, sparse", model, "none", cap_mb))
        return ways

    def finalists(self):
        """The fastest of the strategies that raced, and of those that a person could write by hand."""
        entries = [json.loads(line) for line in Path(self.task["journal"]).read_text(encoding="utf-8").splitlines()]
        committed = json.loads(Path(self.task["strategy"]).read_text(encoding="utf-8"))
        folder, times = Path(self.task["strategy"]).parent, {}
        for number, (label, plan) in enumerate({**raced(entries), **by_hand(entries, committed)}.items()):
            if are_same(plan, committed):
                continue
            if self.time_is_up(SHARES["trial"]) and len(times) >= FINALISTS:
                break
            file = folder / f"plan{number}.json"
            if dist.get_rank() == 0:
                file.write_text(json.dumps(plan), encoding="utf-8")
            dist.barrier()
            way = self.pinned(label, file)
            way.step()
            times[label, file] = agreed(way.turn(2))
            way.close()
        best = sorted(times, key=times.get)[:FINALISTS]
        return [self.pinned(label, file) for label, file in best], {label: str(file) for label, file in best}, len(times)

    def run(self):
        report = {"said": self.tune() if self.task["tune"] else None}
        every = self.task["ways"] == "all"
        ways = [Way("alone", self.task["model"]), *self.ddp()]
        if every:
            dist.barrier()  # rank 0 has written the files
            found, report["files"], report["tried"] = self.finalists()
            ways += [self.pinned("committed", self.task["strategy"]), *found]
        else:
            ways = [way for way in ways if way.name in self.task["ways"]]
        steps = {way.name: self.steps_of(way) for way in ways}
        medians = {way.name: [] for way in ways}
        rounds = 0
        while rounds < 2 or not self.time_is_up(1):
            for turn in range(len(ways)):
                way = ways[(rounds + turn) % len(ways)]
                medians[way.name].append(way.turn(steps[way.name]))
            rounds += 1
        for way in ways:
            way.close()
        return {**report, "medians": medians, "world_size": dist.get_world_size()}


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    report = Cell(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))).run()
    if dist.get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps(report), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
