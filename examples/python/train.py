# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""A complete ordinary training script: data, schedule, evaluation, checkpoints, and one call of gradtune.

    torchrun --nproc-per-node 2 examples/python/train.py --epochs 3
    torchrun --nproc-per-node 2 examples/python/train.py --epochs 3 --no-gradtune     # DistributedDataParallel instead

It learns to classify ten noisy patterns. With --checkpoint FOLDER it saves after each epoch, and resumes from there.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

import gradtune
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def patterns(samples: int, seed: int) -> TensorDataset:
    """Ten patterns of 64 numbers with noise: inputs [samples, 64], targets [samples]."""
    centres = torch.randn(10, 64, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(10, (samples,), generator=generator)
    return TensorDataset(centres[targets] + 2 * torch.randn(samples, 64, generator=generator), targets)


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    model.eval()
    with torch.no_grad():
        inputs, targets = data.tensors
        right = (model(inputs).argmax(1) == targets).float().mean()
    model.train()
    return float(right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--accumulate", type=int, default=1, help="backward passes before a step")
    parser.add_argument("--checkpoint", type=Path, help="folder; what is in it is gone on from")
    parser.add_argument("--fidelity", choices=("exact", "half", "lossy"), default="half")
    parser.add_argument("--no-gradtune", action="store_true", help="train under DistributedDataParallel")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    data, unseen = patterns(4096, seed=1), patterns(1024, seed=2)
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=32, sampler=sampler, drop_last=True)

    first = 0
    latest = args.checkpoint / "latest.pt" if args.checkpoint else None
    if latest and latest.exists():
        saved = torch.load(latest, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        first = saved["epoch"] + 1

    if args.no_gradtune:
        forward: nn.Module = nn.parallel.DistributedDataParallel(model)
        no_sync = forward.no_sync
    else:
        forward = model
        optimizer = gradtune.wrap(optimizer, model, fidelity=args.fidelity)
        no_sync = optimizer.no_sync
        if first:
            optimizer.load_checkpoint(args.checkpoint / "gradtune")

    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)
        for batch, (inputs, targets) in enumerate(loader):
            is_last = (batch + 1) % args.accumulate == 0
            with contextlib.nullcontext() if is_last else no_sync():
                loss = nn.functional.cross_entropy(forward(inputs), targets) / args.accumulate
                loss.backward()
            if is_last:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        scheduler.step()
        if isinstance(optimizer, gradtune.Optimizer):
            optimizer.exclude_step()  # its time includes the evaluation
        right = accuracy(model, unseen)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: accuracy {100 * right:.1f} %", flush=True)
        if args.checkpoint:
            args.checkpoint.mkdir(parents=True, exist_ok=True)
            if not args.no_gradtune:
                optimizer.save_checkpoint(args.checkpoint / "gradtune")  # called by all ranks
            if dist.get_rank() == 0:
                state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
                torch.save({"epoch": epoch} | {name: each.state_dict() for name, each in state.items()}, latest)
            dist.barrier()
    if dist.get_rank() == 0 and isinstance(optimizer, gradtune.Optimizer):
        print(optimizer.result())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
