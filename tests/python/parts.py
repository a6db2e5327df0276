# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""More ways to train, as scenarios.py: models in parts, parts that are frozen by turns, and parts that stay each rank's own."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from scenarios import STEPS, Job, Scenario, batch, loss_of, mlp, plain
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Experts(nn.Module):
    """Shared layers, and an expert of each rank, to which samples travel."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.outside = nn.Linear(12, 8), nn.Linear(8, 4)
        torch.manual_seed(100 + dist.get_rank())
        self.expert = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        named = [*self.expert.named_parameters(prefix="expert"), *self.expert.named_buffers(prefix="expert")]
        self._ddp_params_and_buffers_to_ignore = [name for name, _ in named] + ["gone.weight"]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.inside(inputs).relu()
        return self.outside(Exchanged.apply(self.expert(Exchanged.apply(hidden))) + hidden)


def told_otherwise(model: nn.Module) -> list[nn.Module]:
    del model._ddp_params_and_buffers_to_ignore
    return [model]


class Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(inputs)
        dist.all_to_all_single(out, inputs.contiguous())
        return out

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(gradient)
        dist.all_to_all_single(out, gradient.contiguous())
        return out


class Margins(nn.Module):
    """A loss that holds the weights of its classes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 4))

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        cosine = nn.functional.normalize(outputs) @ nn.functional.normalize(self.weight, dim=0)
        return nn.functional.cross_entropy(8 * cosine - 2 * nn.functional.one_hot(targets, 4), targets)


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.loss = mlp()[:4], Margins()  # type: ignore[index]

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.loss(self.net(inputs), targets)


def with_loss(job: Job) -> None:
    for step in range(STEPS):
        job.optimizer.zero_grad()
        job.forward(*batch(step)).backward()
        job.optimizer.step()


def with_master_weights(job: Job) -> None:
    """Updates are made of copies in float32. The wrapped optimizer, whose rate is 0, only tells of them."""
    masters = [nn.Parameter(p.detach().float()) for p in job.model.parameters()]
    adam = torch.optim.AdamW(masters, 1e-2)
    for step in range(STEPS):
        job.model.zero_grad()
        loss_of(job, step).backward()
        job.optimizer.step()
        for master, p in zip(masters, job.model.parameters(), strict=True):
            assert p.grad is not None
            master.grad = p.grad.float()
        adam.step()
        with torch.no_grad():
            for master, p in zip(masters, job.model.parameters(), strict=True):
                p.copy_(master)
    if job.is_gradtune:
        assert job.optimizer.progress().step == STEPS  # type: ignore[attr-defined]


def with_switched_adapters(job: Job) -> None:
    """What was frozen trains, and the other way round. DDP is made anew for that."""
    assert isinstance(job.model, nn.Sequential)
    for trained, rest in ((0, 2), (2, 0), (0, 2)):
        job.model[trained].requires_grad_(True)
        job.model[rest].requires_grad_(False)
        job.optimizer.zero_grad()
        if job.is_gradtune:
            job.optimizer.refresh()  # type: ignore[attr-defined]
        else:
            job.forward = DistributedDataParallel(job.model)
        plain(job)
    if job.is_gradtune:
        assert job.optimizer.progress().step == STEPS  # type: ignore[attr-defined]


SCENARIOS: dict[str, Scenario] = {
    "experts that the model tells DDP of": Scenario(Experts, plain, own=("expert.",)),
    "experts that wrap is told of": Scenario(
        Experts, plain, own=("expert.",), parts=told_otherwise, options={"ignore": ["expert"]}
    ),
    "a loss with parameters": Scenario(WithLoss, with_loss, parts=lambda model: list(model.children())),
    "master weights": Scenario(
        mlp,
        with_master_weights,
        lambda model: [torch.optim.SGD(model.parameters(), 0.0)],
        dtype=torch.bfloat16,
    ),
    "switched adapters": Scenario(mlp, with_switched_adapters),
}
