# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The models of `bench matrix`. Each has its optimizer and its data; a loss is a function of the model and a batch."""
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ddp_train  # noqa: E402
from support import text_job  # noqa: E402

WORDS, LENGTH = 20000, 16


@dataclass(frozen=True)
class Job:
    make: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    batches: Callable[[int, int], Iterator[Any]]
    """Endless batches of a rank: (rank, world size)."""
    loss: Callable[[nn.Module, Any], torch.Tensor]


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        self.side = nn.Sequential() if inputs == outputs and stride == 1 else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.body(x) + self.side(x)).relu()


def resnet() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), Residual(32, 64, 2),
                         Residual(64, 128, 2), Residual(128, 256, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


class Words(nn.Module):
    """int64 [batch, length] -> scores [batch, length, 256]: an LSTM behind a table of words."""

    def __init__(self, sparse: bool = False):
        super().__init__()
        self.table = nn.Embedding(WORDS, 64, sparse=sparse)
        self.lstm = nn.LSTM(64, 128, batch_first=True)
        self.scores = nn.Linear(128, 256)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.scores(self.lstm(self.table(words))[0])


class Small(nn.Module):
    """[batch, 16] -> [batch, 16]: 200 small tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(100))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + 0.01 * layer(x)
        return x


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def plain_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02)


def images(batch: int) -> Callable[[int, int], Iterator[Any]]:
    return lambda rank, world_size: ddp_train.batches(SimpleNamespace(batch=batch, seed=1), rank, world_size)


def words(rank: int, _world_size: int) -> Iterator[Any]:
    """Few words are frequent, as in a text (Zipf)."""
    generator = torch.Generator().manual_seed(rank)
    while True:
        ranks = torch.exp(torch.rand(16, LENGTH + 1, generator=generator) * torch.log(torch.tensor(float(WORDS))))
        drawn = (ranks.long() - 1).clamp(0, WORDS - 1)
        yield drawn[:, :-1], drawn[:, 1:] % 256


def noise(rank: int, _world_size: int) -> Iterator[Any]:
    generator = torch.Generator().manual_seed(rank)
    while True:
        x = torch.randn(16, 16, generator=generator)
        yield x, x.roll(1, 1)


def text(rank: int, world_size: int) -> Iterator[Any]:
    return text_job.batches(SimpleNamespace(batch=16, seed=1), rank, world_size)


def image_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def word_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def square_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


JOBS = {
    "mlp": Job(ddp_train.mlp_small, sgd, images(64), image_loss),
    "resnet": Job(resnet, sgd, images(32), image_loss),
    # Its parameters have the names of examples/train_text, so that strategies of one front fit the other.
    "transformer": Job(lambda: nn.Sequential(text_job.Transformer()), text_job.optimizer, text,
                       lambda model, batch: text_job.loss_of(model, *batch)),
    "lstm": Job(Words, plain_sgd, words, word_loss),
    "lstm-sparse": Job(lambda: Words(sparse=True), plain_sgd, words, word_loss),
    "mixed": Job(ddp_train.large_first, sgd, images(64), image_loss),
    "small": Job(Small, sgd, noise, square_loss),
}
