# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Small trainings in rounds, and the same trainings on one rank."""

from __future__ import annotations

import copy
from typing import Any


def new_model() -> Any:
    import torch

    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(20, 64, bias=False), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 5, bias=False)
    )


def loss_of(model: Any, rank: int, step: int) -> Any:
    import torch

    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs, targets = torch.randn(16, 20, generator=generator), torch.randint(0, 5, (16,), generator=generator)
    return torch.nn.functional.cross_entropy(model(inputs), targets)


def update(model: Any, optimizer: Any, rank: int, step: int) -> None:
    """An update with two micro-batches, clipping, and a learning rate that changes."""
    import torch

    for group in optimizer.param_groups:
        group["lr"] = 0.01 / (1 + step / 50)
    optimizer.zero_grad()
    for part in range(2):
        loss_of(model, rank, 2 * step + part).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


class Expected:
    """The training of all ranks on one of them, with torch's own SGD as the outer step."""

    def __init__(self, model: Any, optimizer: Any, size: int) -> None:
        import torch

        self._anchors = copy.deepcopy(model)
        self._outer = torch.optim.SGD(self._anchors.parameters(), 0.8, momentum=0.3, nesterov=True)
        self._models = [copy.deepcopy(model) for _ in range(size)]
        self._inner = [torch.optim.AdamW(each.parameters(), 0.01) for each in self._models]
        for each in self._inner:
            each.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    def update(self, step: int) -> None:
        for rank, (model, inner) in enumerate(zip(self._models, self._inner, strict=True)):
            update(model, inner, rank, step)

    def end_round(self) -> None:
        import torch

        with torch.no_grad():
            for anchor, *locals_ in zip(
                self._anchors.parameters(), *(each.parameters() for each in self._models), strict=True
            ):
                anchor.grad = sum(anchor - local for local in locals_) / len(locals_)
            self._outer.step()
            for model in self._models:
                for parameter, anchor in zip(model.parameters(), self._anchors.parameters(), strict=True):
                    parameter.copy_(anchor)
                for buffer, first in zip(model.buffers(), self._models[0].buffers(), strict=True):
                    buffer.copy_(first)

    def farthest(self, model: Any, rank: int) -> float:
        """The largest difference of a parameter or buffer to the rank's model."""
        pairs = zip(model.state_dict().values(), self._models[rank].state_dict().values(), strict=True)
        return max((float((a - b).abs().max()) for a, b in pairs), default=0.0)
