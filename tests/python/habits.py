# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Training programs as people write them, in a few lines each. Each is written for DistributedDataParallel.
habits_test.py replaces its lines `name = DDP(name)` by one call of gradtune, and nothing else changes. A program
returns the model that it trained."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

__all__ = ["DDP", "DataLoader", "PROGRAMS", "TensorDataset", "checkpoint", "copy", "math"]


def points(samples: int = 48, size: int = 16, classes: int = 4) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(samples, size, generator=generator)
    return TensorDataset(inputs, inputs[:, :classes].argmax(1))


def loader(data: TensorDataset, batch_size: int = 6, workers: int = 0) -> DataLoader[Any]:
    return DataLoader(data, batch_size, sampler=DistributedSampler(data, seed=1), num_workers=workers, drop_last=True)


def own_seed() -> None:
    """From here on every rank draws its own numbers."""
    torch.manual_seed(100 + dist.get_rank())


def mnist() -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(), nn.Linear(8 * 9, 10)
    )
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    model = DDP(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    own_seed()
    for _ in range(2):
        model.train()
        for _ in range(4):
            data, target = torch.randn(4, 1, 8, 8), torch.randint(10, (4,))
            optimizer.zero_grad()
            loss = F.nll_loss(F.log_softmax(model(data), 1), target)
            loss.backward()
            optimizer.step()
        model.eval()
        scheduler.step()
    return model


def imagenet() -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
    )
    model.append(nn.Flatten()).append(nn.Linear(8, 5))
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    model = DDP(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3)
    own_seed()
    for _ in range(6):
        loss = criterion(model(torch.randn(4, 3, 8, 8)), torch.randint(5, (4,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    return model


def one_cycle() -> nn.Module:
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True)
    model = DDP(model)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=8)
    for epoch in range(2):
        data = loader(points())
        data.sampler.set_epoch(epoch)
        for x, y in data:
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=True)
    return model


class GPT(nn.Module):
    def __init__(self, tied: bool = True, saving: bool = False) -> None:
        super().__init__()
        self.saving = saving
        self.tokens, self.places = nn.Embedding(20, 16), nn.Embedding(8, 16)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True) for _ in range(2))
        self.head = nn.Linear(16, 20, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.saving else block(x)
        return self.head(x)


def text() -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(20, (3, 9))
    return tokens[:, :-1], tokens[:, 1:]


def nano_gpt() -> nn.Module:
    """Groups with and without decay, accumulation with the sync in the last pass alone, clipping."""
    model = GPT()
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))
    model = DDP(model)
    own_seed()
    for step in range(5):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * 0.5 * (1 + math.cos(math.pi * step / 5))
        for _ in range(2):
            x, y = text()
            (F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return model


def gpt_with_checkpoints() -> nn.Module:
    model = GPT(saving=True)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    model = DDP(model)
    own_seed()
    for _ in range(4):
        x, y = text()
        optimizer.zero_grad()
        F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()
    return model


def gpt_in_bfloat16() -> nn.Module:
    model = GPT(tied=False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    model = DDP(model)
    own_seed()
    for _ in range(4):
        x, y = text()
        optimizer.zero_grad()
        with torch.autocast(x.device.type, torch.bfloat16):
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
    return model


def masked_language_model() -> nn.Module:
    """Warm-up by LambdaLR."""
    model = GPT(tied=False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 3))
    model = DDP(model)
    own_seed()
    for _ in range(5):
        x, _ = text()
        masked = torch.where(torch.rand(x.shape) < 0.3, torch.zeros_like(x), x)
        loss = F.cross_entropy(model(masked).flatten(0, 1), x.flatten())
        loss.backward()
        optimizer.step()
        scheduler.step()
        model.zero_grad()
    return model


class WordModel(nn.Module):
    def __init__(self, kind: str = "LSTM") -> None:
        super().__init__()
        self.words = nn.Embedding(30, 12)
        self.rnn = getattr(nn, kind)(12, 16, batch_first=True)
        self.head = nn.Linear(16, 30)

    def forward(self, words: torch.Tensor, state: Any = None) -> tuple[torch.Tensor, Any]:
        x, state = self.rnn(self.words(words), state)
        return self.head(x), state


def word_model() -> nn.Module:
    """Hidden states that are detached from step to step, and clipping."""
    model = WordModel()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    model = DDP(model)
    own_seed()
    state = None
    for _ in range(5):
        words = torch.randint(30, (4, 7))
        optimizer.zero_grad()
        logits, state = model(words[:, :-1], state)
        state = tuple(each.detach() for each in state)
        F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
    return model


def character_model() -> nn.Module:
    model = WordModel("GRU")
    optimizer = torch.optim.RMSprop(model.parameters(), 1e-3, alpha=0.95)
    model = DDP(model)
    own_seed()
    for _ in range(5):
        words = torch.randint(30, (4, 7))
        logits, _ = model(words[:, :-1])
        optimizer.zero_grad()
        F.cross_entropy(logits.transpose(1, 2), words[:, 1:]).backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
    return model


def speech() -> nn.Module:
    model = WordModel("GRU")
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    model = DDP(model)
    own_seed()
    for _ in range(4):
        logits, _ = model(torch.randint(30, (2, 12)))
        scores = logits.log_softmax(2).transpose(0, 1)
        lengths = torch.full((2,), 12), torch.full((2,), 4)
        optimizer.zero_grad()
        F.ctc_loss(scores, torch.randint(1, 30, (2, 4)), *lengths).backward()
        optimizer.step()
    return model


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inner, outer in zip(sizes[:-1], sizes[1:], strict=True):
        layers += [nn.Linear(inner, outer), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def adversarial() -> nn.Module:
    """Two models, each with its optimizer and its line."""
    generator, discriminator = mlp(4, 16, 8), mlp(8, 16, 1)
    of_generator = torch.optim.Adam(generator.parameters(), 1e-3, betas=(0.5, 0.999))
    of_discriminator = torch.optim.Adam(discriminator.parameters(), 1e-3, betas=(0.5, 0.999))
    generator = DDP(generator)  # of_generator
    discriminator = DDP(discriminator, broadcast_buffers=False)  # of_discriminator
    own_seed()
    real, fake = torch.ones(4, 1), torch.zeros(4, 1)
    for _ in range(4):
        of_discriminator.zero_grad()
        F.binary_cross_entropy_with_logits(discriminator(torch.randn(4, 8) + 1), real).backward()
        made = generator(torch.randn(4, 4))
        F.binary_cross_entropy_with_logits(discriminator(made.detach()), fake).backward()
        of_discriminator.step()
        of_generator.zero_grad()
        for p in discriminator.parameters():
            p.requires_grad_(False)
        F.binary_cross_entropy_with_logits(discriminator(made), real).backward()
        for p in discriminator.parameters():
            p.requires_grad_(True)
        of_generator.step()
    return nn.ModuleList([generator, discriminator])


def variational() -> nn.Module:
    class Coder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = mlp(16, 12, 8), mlp(4, 12, 16)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            mean, logvar = self.encoder(x).chunk(2, 1)
            return self.decoder(mean + torch.randn_like(mean) * (0.5 * logvar).exp()), mean, logvar

    model = Coder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model = DDP(model)
    own_seed()
    for x, _ in loader(points()):
        optimizer.zero_grad()
        again, mean, logvar = model(x)
        loss = F.mse_loss(again, x) - 0.5 * torch.mean(1 + logvar - mean.pow(2) - logvar.exp())
        loss.backward()
        optimizer.step()
    return model


def denoising() -> nn.Module:
    model = mlp(16, 32, 16)
    optimizer = torch.optim.Adagrad(model.parameters(), 0.01)
    model = DDP(model)
    own_seed()
    for x, _ in loader(points()):
        optimizer.zero_grad()
        F.l1_loss(model(x + 0.1 * torch.randn_like(x)), x).backward()
        optimizer.step()
    return model


def factors() -> nn.Module:
    """Recommendation by sparse embeddings and SGD."""

    class Factors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = nn.Embedding(20, 4, sparse=True), nn.Embedding(30, 4, sparse=True)

        def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
            return (self.users(user) * self.items(item)).sum(1)

    model = Factors()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model = DDP(model)
    own_seed()
    for _ in range(5):
        optimizer.zero_grad()
        F.mse_loss(model(torch.randint(20, (6,)), torch.randint(30, (6,))), torch.rand(6)).backward()
        optimizer.step()
    return model


def deep_fm() -> nn.Module:
    """Recommendation by embeddings with a separate optimizer, which only takes sparse gradients."""

    class DeepFM(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.linear = nn.Embedding(40, 4, sparse=True), nn.Embedding(40, 1, sparse=True)
            self.deep = mlp(12, 16, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            v = self.embedding(x)
            cross = 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(1)
            return self.linear(x).sum((1, 2)) + cross + self.deep(v.flatten(1)).squeeze(1)

    model = DeepFM()
    of_tables = torch.optim.SparseAdam([*model.embedding.parameters(), *model.linear.parameters()], 1e-2)
    optimizers = [of_tables, torch.optim.Adam(model.deep.parameters(), 1e-2)]
    model = DDP(model)  # optimizers
    own_seed()
    for _ in range(5):
        for optimizer in optimizers:
            optimizer.zero_grad()
        x, y = torch.randint(40, (8, 3)), torch.randint(2, (8,)).float()
        F.binary_cross_entropy_with_logits(model(x), y).backward()
        for optimizer in optimizers:
            optimizer.step()
    return model


def triplets() -> nn.Module:
    """Three forward passes, one backward."""
    model = mlp(16, 16, 4)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    model = DDP(model)
    own_seed()
    for _ in range(4):
        anchor, positive, negative = (model(torch.randn(4, 16)) for _ in range(3))
        optimizer.zero_grad()
        F.triplet_margin_loss(anchor, positive, negative).backward()
        optimizer.step()
    return model


def reinforce() -> nn.Module:
    policy = mlp(4, 16, 2)
    optimizer = torch.optim.Adam(policy.parameters(), 1e-2)
    policy = DDP(policy)
    own_seed()
    for _ in range(4):
        chosen = torch.distributions.Categorical(logits=policy(torch.randn(10, 4)))
        action = chosen.sample()
        returns = torch.randn(10)
        optimizer.zero_grad()
        (-chosen.log_prob(action) * (returns - returns.mean())).sum().backward()
        optimizer.step()
    return policy


def q_learning() -> nn.Module:
    """With a target network that is a copy, and clamped gradients."""
    network = mlp(4, 16, 2)
    target = copy.deepcopy(network)
    optimizer = torch.optim.AdamW(network.parameters(), 1e-3, amsgrad=True)
    network = DDP(network)
    own_seed()
    for _ in range(5):
        state, action = torch.randn(8, 4), torch.randint(2, (8, 1))
        with torch.no_grad():
            wanted = torch.rand(8) + 0.99 * target(torch.randn(8, 4)).max(1).values
        loss = F.smooth_l1_loss(network(state).gather(1, action).squeeze(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        for p in network.parameters():
            p.grad.data.clamp_(-1, 1)
        optimizer.step()
        for old, new in zip(target.parameters(), network.parameters(), strict=True):
            old.data.mul_(0.99).add_(new.data, alpha=0.01)
    return network


def averaged_model() -> nn.Module:
    model = mlp(16, 16, 4)
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model = DDP(model)
    for x, y in loader(points()):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        average.update_parameters(model)
    return model


def mixed_up() -> nn.Module:
    model = mlp(16, 16, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model = DDP(model)
    own_seed()
    for x, y in loader(points()):
        by, order = float(torch.rand(())), torch.randperm(len(x))
        logits = model(by * x + (1 - by) * x[order])
        optimizer.zero_grad()
        (by * F.cross_entropy(logits, y) + (1 - by) * F.cross_entropy(logits, y[order])).backward()
        optimizer.step()
    return model


def distilled() -> nn.Module:
    teacher, model = mlp(16, 32, 4).eval(), mlp(16, 8, 4)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    model = DDP(model)
    for x, y in loader(points()):
        with torch.no_grad():
            wanted = teacher(x).softmax(1)
        optimizer.zero_grad()
        logits = model(x)
        (F.cross_entropy(logits, y) + F.kl_div(logits.log_softmax(1), wanted, reduction="batchmean")).backward()
        optimizer.step()
    return model


def two_losses() -> nn.Module:
    """Two backward passes over one graph before a step."""
    model = mlp(16, 16, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model = DDP(model)
    for x, y in loader(points()):
        optimizer.zero_grad()
        logits = model(x)
        loss, other = F.cross_entropy(logits, y), logits.square().mean()
        (loss + other).backward()
        optimizer.step()
    return model


def graph_network() -> nn.Module:
    class Convolution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(16, 8), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            return torch.mm(edges, self.second(torch.mm(edges, self.first(x)).relu()))

    model = Convolution()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, weight_decay=5e-4)
    model = DDP(model)
    own_seed()
    for _ in range(4):
        edges = (torch.rand(10, 10) < 0.3).float().to_sparse()
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(10, 16), edges), torch.randint(4, (10,))).backward()
        optimizer.step()
    return model


def segmentation() -> nn.Module:
    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up = nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ConvTranspose2d(4, 4, 2, stride=2)
            self.head = nn.Conv2d(5, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.cat([x, self.up(self.down(x).relu())], 1))

    model = UNet().to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
    model = DDP(model)
    own_seed()
    for _ in range(4):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(2, 1, 8, 8)), torch.randint(2, (2, 8, 8))).backward()
        optimizer.step()
    return model


def low_rank() -> nn.Module:
    """Adapters beside frozen weights, and an optimizer of those that train."""

    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(16, 4).requires_grad_(False)
            self.down, self.up = nn.Linear(16, 2, bias=False), nn.Linear(2, 4, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.base(x) + self.up(self.down(x))

    model = Adapted()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
    model = DDP(model)
    for x, y in loader(points()):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def normalised_weights() -> nn.Module:
    model = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(16, 16)),
        nn.ReLU(),
        nn.utils.parametrizations.spectral_norm(nn.Linear(16, 4)),
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model = DDP(model)
    for x, y in loader(points()):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def with_workers() -> nn.Module:
    model = mlp(16, 16, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model = DDP(model)
    for epoch in range(2):
        data = loader(points(), workers=2)
        data.sampler.set_epoch(epoch)
        for x, y in data:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def on_plateau() -> nn.Module:
    """Validation after each epoch controls the schedule, and the best weights are kept."""
    model = mlp(16, 16, 4)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    model = DDP(model)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    best, kept = math.inf, None
    x_all, y_all = points().tensors
    for _ in range(3):
        model.train()
        for x, y in loader(points()):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            loss = float(F.cross_entropy(model(x_all), y_all))
        scheduler.step(loss)
        if loss < best:
            best, kept = loss, copy.deepcopy(model.state_dict())
    assert kept is not None
    model.load_state_dict(kept)
    return model


PROGRAMS = [
    mnist, imagenet, one_cycle, nano_gpt, gpt_with_checkpoints, gpt_in_bfloat16, masked_language_model, word_model,
    character_model, speech, adversarial, variational, denoising, factors, deep_fm, triplets, reinforce, q_learning,
    averaged_model, mixed_up, distilled, two_losses, graph_network, segmentation, low_rank,
    normalised_weights, with_workers, on_plateau,
]  # fmt: skip
