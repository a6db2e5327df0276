#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The anchor of the benchmarks: PyTorch's DistributedDataParallel on the jobs of examples/train_fashion_mnist, and
with `--model text` on that of examples/train_text. With --gradtune, it runs the same script under gradtune's
Python package.

Data, models, seeds and order of samples are those of the examples; a launcher's variables give the rank. The report
has the examples' form, as far as it applies to DDP: {world_size, network, steps: [{ms, loss}], accuracy or
perplexity}.
"""

import argparse
import datetime
import gzip
import json
import os
import pathlib
import sys
import time

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

sys.dont_write_bytecode = True  # leave no __pycache__ in the source tree

from support import text_job  # noqa: E402

DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")  # Debian's dataset-fashion-mnist
MEAN, DEVIATION = 0.2860, 0.3530
ONE_BUCKET_MB = 1 << 16
# DDP rebuilds its buckets after the first step, in the order of arrival, and PowerSGD's memory is per bucket.
FIRST_POWERSGD_STEP = 2


def convolutional(*classifier):
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        *classifier,
    )


def vgg():
    return convolutional(
        nn.Linear(3136, 2048), nn.ReLU(), nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def mlp_small():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def powersgd(rank, wrap=lambda hook: hook):
    def register(model):
        state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=rank,
            start_powerSGD_iter=FIRST_POWERSGD_STEP,
        )
        model.register_comm_hook(state, wrap(powerSGD_hook.powerSGD_hook))

    return register


def large_first():
    layers = [nn.Flatten(), nn.Linear(784, 4096), nn.ReLU(), nn.Linear(4096, 256), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Linear(256, 256), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(256, 10))


def large_last():
    return convolutional(nn.Linear(3136, 1024), nn.ReLU(), nn.Linear(1024, 10))


class Transformer(nn.Sequential):
    def __init__(self):
        layers = [nn.TransformerEncoderLayer(256, 4, 1024, dropout=0) for _ in range(2)]
        super().__init__(nn.Linear(28, 256), *layers)
        self.out = nn.Linear(256, 10)

    def forward(self, images):
        rows = images.squeeze(1).transpose(0, 1)
        for layer in list(self)[:-1]:
            rows = layer(rows)
        return self.out(rows.mean(0))


MODELS = {
    "vgg": vgg,
    "mlp-small": mlp_small,
    "large-first": large_first,
    "large-last": large_last,
    "transformer": Transformer,
    "text": text_job.Transformer,
    "lstm": text_job.Recurrent,
}
TEXT_MODELS = ("text", "lstm")

HOOKS = {
    "none": lambda model: None,
    "fp16": lambda model: model.register_comm_hook(None, default_hooks.fp16_compress_hook),
    "bf16": lambda model: model.register_comm_hook(None, default_hooks.bf16_compress_hook),
    "powersgd1": powersgd(1),
    "powersgd4": powersgd(4),
    "powersgd4_fp16": powersgd(4, default_hooks.fp16_compress_wrapper),
    "local": None,  # compute alone: nothing is sent, and ranks drift apart
}


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=MODELS, default="vgg")
    parser.add_argument(
        "--batch", type=int, help="per rank; default 64 images, or 16 pieces of a text"
    )
    parser.add_argument(
        "--steps", type=int, default=468, help="default 468, one epoch of two ranks"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hook", choices=HOOKS, default="none")
    parser.add_argument(
        "--bucket-cap-mb",
        type=float,
        default=None,
        help="default: DDP's own; PowerSGD always has one bucket",
    )
    parser.add_argument(
        "--gradtune", metavar="FIDELITY", help="gradtune at that fidelity in place of DDP"
    )
    parser.add_argument("--rounds", type=int, metavar="UPDATES", help="train in rounds of so many updates")
    parser.add_argument("--outer-lr", type=float, default=0.8)
    parser.add_argument("--outer-momentum", type=float, default=0.3)
    parser.add_argument("--delay", type=int, default=0, help="that many of them beside an exchange")
    parser.add_argument("--fragments", type=int, default=1, help="that many parts of the model, exchanged one by one")
    parser.add_argument("--strategy", type=pathlib.Path, help="file that gradtune starts from, and keeps to")
    parser.add_argument("--export", type=pathlib.Path, help="file for the strategy that gradtune came to")
    parser.add_argument("--report", type=pathlib.Path, help="file for the figures of rank 0")
    parser.add_argument("--eval", action="store_true", help="report what was learned, on other data")
    options = parser.parse_args()
    options.batch = options.batch or (16 if options.model in TEXT_MODELS else 64)
    return options


def load(split):
    """Images as bytes [n, 1, 28, 28] and labels [n]."""

    def read(name, header_bytes):
        with gzip.open(DATA / f"{split}-{name}-ubyte.gz") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8, offset=header_bytes)

    return read("images-idx3", 16).view(-1, 1, 28, 28), read("labels-idx1", 8).long()


def normalise(images):
    return (images.float() / 255 - MEAN) / DEVIATION


def batches(options, rank, world_size):
    """Endless: each epoch is a permutation, divided among the ranks; a partial batch is dropped."""
    images, labels = load("train")
    epoch = 0
    while True:
        generator = torch.Generator().manual_seed(options.seed + epoch)
        own = torch.randperm(len(labels), generator=generator)[rank::world_size]
        for start in range(0, len(own) - options.batch + 1, options.batch):
            chosen = own[start : start + options.batch]
            yield normalise(images[chosen]), labels[chosen]
        epoch += 1


def image_loss(model, images, labels):
    return nn.functional.cross_entropy(model(images), labels)


def distribute(model, options):
    if options.hook == "local":
        return model
    distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    if options.gradtune:
        return model
    cap_mb = ONE_BUCKET_MB if options.hook.startswith("powersgd") else options.bucket_cap_mb
    wrapped = nn.parallel.DistributedDataParallel(
        model, gradient_as_bucket_view=True, bucket_cap_mb=cap_mb
    )
    HOOKS[options.hook](wrapped)
    return wrapped


def under_gradtune(optimizer, model, options):
    """Tunes, unless it starts from a strategy, which it keeps."""
    import gradtune  # only for benchmarks that need it

    pinned = {"strategy": options.strategy, "tuning_budget": 0} if options.strategy else {}
    if options.rounds:
        number = options.rounds
        shape = {"least": number, "most": number, "delay": options.delay, "fragments": options.fragments,
                 "outer_lr": options.outer_lr, "outer_momentum": options.outer_momentum}
        return gradtune.rounds(optimizer, model, **shape, fidelity=options.gradtune, **pinned)
    return gradtune.wrap(optimizer, model, fidelity=options.gradtune, **pinned)


def train(model, options, rank, world_size):
    """Milliseconds between the ends of successive steps, and the loss of each."""
    is_text = options.model in TEXT_MODELS
    if is_text:
        optimizer = text_job.optimizer(model)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    if options.gradtune:
        optimizer = under_gradtune(optimizer, model, options)
    data = (text_job.batches if is_text else batches)(options, rank, world_size)
    loss_of = text_job.loss_of if is_text else image_loss
    steps = []
    last = time.perf_counter()
    for number in range(options.steps):
        if is_text:
            optimizer.param_groups[0]["lr"] = text_job.rate_at(number)
        inputs, targets = next(data)
        optimizer.zero_grad()
        loss = loss_of(model, inputs, targets)
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        steps.append({"ms": (now - last) * 1e3, "loss": loss.item()})
        last = now
        if rank == 0 and number % 50 == 0:
            print(
                f"step {number}: loss {steps[-1]['loss']:.4f}, {steps[-1]['ms']:.1f} ms", flush=True
            )
    if options.gradtune:
        if options.rounds:
            optimizer.end_round()
        if options.export:
            optimizer.export_strategy(options.export)
        optimizer.close()
    return steps


@torch.no_grad()
def accuracy_percent(model):
    images, labels = load("t10k")
    model.eval()
    correct = sum(
        (model(normalise(part)).argmax(1) == truth).sum().item()
        for part, truth in zip(images.split(1000), labels.split(1000))
    )
    return 100 * correct / len(labels)


def main():
    options = parse_arguments()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(options.seed)
    module = MODELS[options.model]()
    model = distribute(module, options)
    report = {
        "world_size": world_size,
        "network": os.environ.get("GRADTUNE_NETWORK", "none"),
        "steps": train(model, options, rank, world_size),
        "accuracy": None,
    }
    if rank == 0 and options.eval and options.model in TEXT_MODELS:
        report["perplexity"] = text_job.perplexity(module)
        print(f"perplexity {report['perplexity']:.3f}")
    elif rank == 0 and options.eval:
        report["accuracy"] = accuracy_percent(module)
        print(f"accuracy {report['accuracy']:.2f} %")
    if rank == 0 and options.report:
        options.report.write_text(json.dumps(report) + "\n", encoding="utf-8")
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
