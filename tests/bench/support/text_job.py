# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The job of examples/train_text in Python, for a comparison with DDP: same text, model, seeds and order of samples."""
import math
import subprocess
from dataclasses import dataclass

import torch
from torch import nn

SYMBOLS, LENGTH = 128, 64
RATE, WARM_UP = 2e-3, 50


@dataclass(frozen=True)
class Shape:
    symbols: int = SYMBOLS
    length: int = LENGTH
    width: int = 128
    heads: int = 4
    layers: int = 2


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.norm = nn.LayerNorm(width)
        self.inputs = nn.Linear(width, 3 * width)
        self.outputs = nn.Linear(width, width)
        self.wide_norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x, hidden):
        batch, length, width = x.shape
        of_head = width // self.heads
        heads = self.inputs(self.norm(x)).view(batch, length, 3, self.heads, of_head).permute(2, 0, 3, 1, 4)
        scores = heads[0] @ heads[1].transpose(-1, -2) / math.sqrt(of_head) + hidden
        seen = scores.softmax(-1) @ heads[2]
        x = x + self.outputs(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(nn.functional.gelu(self.wide(self.wide_norm(x))))


class Transformer(nn.Module):
    """int64 [batch, length] -> scores [batch, length, symbols]."""

    def __init__(self, shape=Shape()):
        super().__init__()
        self.symbols = nn.Embedding(shape.symbols, shape.width)
        self.places = nn.Embedding(shape.length, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.scores = nn.Linear(shape.width, shape.symbols)
        self.register_buffer("hidden", torch.full((shape.length, shape.length), -math.inf).triu(1), persistent=False)
        with torch.no_grad():
            self.symbols.weight.mul_(0.02)
            self.places.weight.mul_(0.02)

    def forward(self, symbols):
        x = self.symbols(symbols) + self.places(torch.arange(symbols.shape[1], device=symbols.device))
        for layer in self.layers:
            x = layer(x, self.hidden)
        return self.scores(self.norm(x))


class Recurrent(nn.Module):
    """int64 [batch, length] -> scores [batch, length, symbols]."""

    def __init__(self, width=256):
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, 64)
        self.lstm = nn.LSTM(64, width, batch_first=True)
        self.scores = nn.Linear(width, SYMBOLS)

    def forward(self, symbols):
        return self.scores(self.lstm(self.symbols(symbols))[0])


def load():
    """int64 [n] to train on, and [m] that was held out."""
    text = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], check=True, capture_output=True).stdout
    symbols = torch.frombuffer(bytearray(text), dtype=torch.uint8).long().clamp(max=SYMBOLS - 1)
    return symbols[:len(symbols) - len(symbols) // 20], symbols[len(symbols) - len(symbols) // 20:]


def piece(text, begins):
    """Inputs and targets, [len(begins), LENGTH]."""
    at = begins.unsqueeze(1) + torch.arange(LENGTH)
    return text[at], text[at + 1]


def batches(options, rank, _world_size):
    """Endless."""
    text = load()[0]
    generator = torch.Generator().manual_seed(options.seed * 1000 + rank)
    while True:
        yield piece(text, torch.randint(len(text) - LENGTH - 1, (options.batch,), generator=generator))


def loss_of(model, inputs, targets):
    return nn.functional.cross_entropy(model(inputs).view(-1, SYMBOLS), targets.view(-1))


def optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)


def rate_at(step):
    return RATE * min(step + 1, WARM_UP) / WARM_UP


@torch.no_grad()
def perplexity(model):
    """Perplexity of a byte, over the first 128 Ki of held-out text."""
    text = load()[1]
    model.eval()
    end = min(len(text) - 1, 1 << 17)
    losses = [loss_of(model, *piece(text, torch.arange(begin, begin + 64 * LENGTH, LENGTH))).item()
              for begin in range(0, end - 64 * LENGTH + 1, 64 * LENGTH)]
    return math.exp(sum(losses) / len(losses))
