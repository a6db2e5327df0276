# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Small trainings in rounds, and the same trainings on one rank."""

from __future__ import annotations

import copy
from collections.abc import Iterable
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
        self._sent: dict[int, list[torch.Tensor]] = {}  # by number of the parameter, of each rank
        self._models = [copy.deepcopy(model) for _ in range(size)]
        self._inner = [torch.optim.AdamW(each.parameters(), 0.01) for each in self._models]
        for each in self._inner:
            each.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    def update(self, step: int) -> None:
        for rank, (model, inner) in enumerate(zip(self._models, self._inner, strict=True)):
            update(model, inner, rank, step)

    def end_round(self) -> None:
        self.begin_exchange(range(len(list(self._anchors.parameters()))))
        self.complete(with_buffers=True)

    def begin_exchange(self, numbers: Iterable[int]) -> None:
        """Sends the changes of the parameters with these numbers."""
        import torch

        anchors, locals_ = list(self._anchors.parameters()), [list(each.parameters()) for each in self._models]
        self._sent = {p: [of_rank[p].detach().clone() for of_rank in locals_] for p in numbers}
        with torch.no_grad():
            for p, anchor in enumerate(anchors):
                sent = self._sent.get(p)
                anchor.grad = None if sent is None else sum(anchor - each for each in sent) / len(sent)

    def complete(self, with_buffers: bool) -> None:
        """Updates since the exchange began are added to its result."""
        import torch

        anchors = list(self._anchors.parameters())
        self._outer.step()
        with torch.no_grad():
            for rank, model in enumerate(self._models):
                parameters = list(model.parameters())
                for p, sent in self._sent.items():
                    parameters[p].copy_(anchors[p] + (parameters[p] - sent[rank]))
                for buffer, first in zip(model.buffers(), self._models[0].buffers(), strict=True):
                    if with_buffers:
                        buffer.copy_(first)

    def farthest(self, model: Any, rank: int) -> float:
        """The largest difference of a parameter or buffer to the rank's model."""
        pairs = zip(model.state_dict().values(), self._models[rank].state_dict().values(), strict=True)
        return max((float((a - b).abs().max()) for a, b in pairs), default=0.0)
