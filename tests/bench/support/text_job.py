# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The job of examples/train_text in Python, for a comparison with DDP: same text, model, seeds and order of samples."""
import math
import subprocess

import torch
from torch import nn

SYMBOLS, LENGTH = 128, 64
WIDTH, HEADS, LAYERS = 128, 4, 2
RATE, WARM_UP = 2e-3, 50


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inputs = nn.Linear(WIDTH, 3 * WIDTH)
        self.outputs = nn.Linear(WIDTH, WIDTH)
        self.wide_norm = nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, hidden):
        batch, length, _ = x.shape
        heads = self.inputs(self.norm(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        scores = heads[0] @ heads[1].transpose(-1, -2) / math.sqrt(WIDTH // HEADS) + hidden
        seen = scores.softmax(-1) @ heads[2]
        x = x + self.outputs(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.narrow(nn.functional.gelu(self.wide(self.wide_norm(x))))


class Transformer(nn.Module):
    """int64 [batch, LENGTH] -> scores [batch, LENGTH, SYMBOLS]."""

    def __init__(self):
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.scores = nn.Linear(WIDTH, SYMBOLS)
        self.register_buffer("hidden", torch.full((LENGTH, LENGTH), -math.inf).triu(1), persistent=False)
        with torch.no_grad():
            self.symbols.weight.mul_(0.02)
            self.places.weight.mul_(0.02)

    def forward(self, symbols):
        x = self.symbols(symbols) + self.places(torch.arange(symbols.shape[1]))
        for layer in self.layers:
            x = layer(x, self.hidden)
        return self.scores(self.norm(x))


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
    """Of a byte, over the first 128 Ki that were held out."""
    text = load()[1]
    model.eval()
    end = min(len(text) - 1, 1 << 17)
    losses = [loss_of(model, *piece(text, torch.arange(begin, begin + 64 * LENGTH, LENGTH))).item()
              for begin in range(0, end - 64 * LENGTH + 1, 64 * LENGTH)]
    return math.exp(sum(losses) / len(losses))
