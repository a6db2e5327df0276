# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Ways to train. Each scenario is run twice on every rank, once under DistributedDataParallel and once under gradtune."""

from __future__ import annotations

import contextlib
import copy
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gradtune
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import devices

STEPS = 6
DEVICE = devices.device()


@dataclass
class Job:
    """One training: the data that a scenario needs, with either way of averaging gradients."""

    model: nn.Module  # the user's own
    forward: nn.Module  # the module to call: DDP's, or the model
    optimizers: list[torch.optim.Optimizer]
    no_sync: Callable[[], contextlib.AbstractContextManager[Any]]
    is_gradtune: bool
    facts: dict[str, Any] = field(default_factory=dict)  # must be equal for both

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.optimizers[0]


@dataclass(frozen=True)
class Scenario:
    make_model: Callable[[], nn.Module]
    train: Callable[[Job], None]
    make_optimizers: Callable[[nn.Module], list[torch.optim.Optimizer]] = lambda model: [
        torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    ]
    ddp: dict[str, Any] = field(default_factory=dict)  # options of DistributedDataParallel
    allowed: float = 0.0
    compiled: Callable[[nn.Module], Any] | None = None  # made from the module to call
    dtype: torch.dtype | None = torch.float32  # of all parameters; None: unchanged
    hook: dict[str, Any] | None = None  # options of a DistributedDataParallel whose hook is gradtune
    parts: Callable[[nn.Module], list[nn.Module]] | None = None  # parts of the model that gradtune gets
    options: dict[str, Any] = field(default_factory=dict)  # of gradtune
    own: tuple[str, ...] = ()  # prefixes of the names that are each rank's own


def batch(step: int, rank: int | None = None, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs [8, 12] and targets [8] of a rank in a step."""
    generator = torch.Generator().manual_seed(1000 * step + (dist.get_rank() if rank is None else rank))
    inputs = torch.randn(8, 12, generator=generator).to(dtype)
    return inputs, torch.randint(0, 4, (8,), generator=generator)


def loss_of(job: Job, step: int) -> torch.Tensor:
    inputs, targets = batch(step, dtype=next(job.model.parameters()).dtype)
    return nn.functional.cross_entropy(job.forward(inputs).float(), targets)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


def compare(scenario: Scenario) -> dict[str, Any]:
    """Trains both ways. `difference`: the largest to DDP, `between_ranks`: to rank 0, `moved`: the change by
    training."""
    first, of_ddp = _run(scenario, is_gradtune=False)
    start, of_gradtune = _run(scenario, is_gradtune=True)
    del first
    return {
        "difference": _largest(of_ddp.model, _values(of_gradtune.model)),
        "between_ranks": _largest_to_rank0(of_gradtune.model, scenario.own),
        "own": _largest_to_rank0(of_gradtune.model, ()) if scenario.own else None,
        "moved": _largest(of_gradtune.model, start),
        "allowed": scenario.allowed,
        "facts": of_gradtune.facts,
        "facts_of_ddp": of_ddp.facts,
    }


def _run(scenario: Scenario, is_gradtune: bool) -> tuple[dict[str, torch.Tensor], Job]:
    torch.manual_seed(3)
    model = scenario.make_model().to(scenario.dtype)
    start = _values(model)
    optimizers = scenario.make_optimizers(model)
    if is_gradtune:
        what = model if scenario.hook is None else DistributedDataParallel(model, **scenario.hook)
        options = {"fidelity": "exact", "quiet": True, "tuning_budget": 0, "timeout": 60} | scenario.options
        wrapped = gradtune.wrap(optimizers, what if scenario.parts is None else scenario.parts(model), **options)
        forward: nn.Module = what if scenario.compiled is None else scenario.compiled(what)
        job = Job(model, forward, list(wrapped), wrapped[0].no_sync, True)
    else:
        ddp = DistributedDataParallel(model, **scenario.ddp)
        forward = ddp if scenario.compiled is None else scenario.compiled(ddp)
        job = Job(model, forward, optimizers, ddp.no_sync, False)
    torch.manual_seed(11 + dist.get_rank())
    scenario.train(job)
    if isinstance(job.optimizer, gradtune.Optimizer):
        job.optimizer.close()
    return start, job


def _values(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).abs().max()) if a.numel() else 0.0


def _largest(model: nn.Module, other: dict[str, torch.Tensor]) -> float:
    return max(_difference(value, other[name]) for name, value in _values(model).items())


def _largest_to_rank0(model: nn.Module, own: tuple[str, ...]) -> float:
    largest = 0.0
    for name, value in _values(model).items():
        if name.startswith(own):
            continue
        first = value.cpu().clone().contiguous()
        dist.broadcast(first, 0)
        largest = max(largest, _difference(value.cpu(), first))
    return largest


# --- the ways ------------------------------------------------------------------------------------------------------------


def plain(job: Job) -> None:
    for step in range(STEPS):
        job.optimizer.zero_grad()
        loss_of(job, step).backward()
        job.optimizer.step()


def clipped(job: Job) -> None:
    norms = []
    for step in range(STEPS):
        job.optimizer.zero_grad()
        loss_of(job, step).backward()
        norms.append(float(nn.utils.clip_grad_norm_(job.model.parameters(), 0.3)))
        job.optimizer.step()
    job.facts["norms"] = norms


def zeroed_in_place(job: Job) -> None:
    for step in range(STEPS):
        if step % 2 == 0:
            job.optimizer.zero_grad(set_to_none=False)
        else:
            job.model.zero_grad()
        loss_of(job, step).backward()
        job.optimizer.step()


def zeroed_after(job: Job) -> None:
    for step in range(STEPS):
        loss_of(job, step).backward()
        job.optimizer.step()
        job.optimizer.zero_grad()


def with_closure(job: Job) -> None:
    losses = []
    for step in range(STEPS):

        def closure(at: int = step) -> torch.Tensor:
            job.optimizer.zero_grad()
            loss = loss_of(job, at)
            loss.backward()
            return loss

        losses.append(float(job.optimizer.step(closure)))
    job.facts["losses"] = losses


def accumulated(job: Job) -> None:
    for step in range(STEPS):
        job.optimizer.zero_grad()
        with job.no_sync():
            for part in range(2):
                (loss_of(job, 10 * step + part) / 3).backward()
        (loss_of(job, 10 * step + 2) / 3).backward()
        job.optimizer.step()


def scaled(job: Job) -> None:
    """One rank's loss is infinite in some steps: every rank has to skip them."""
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=256, growth_interval=3)
    stepped = 0
    for step in range(2 * STEPS):
        job.optimizer.zero_grad()
        loss = loss_of(job, step)
        if step in (3, 8) and dist.get_rank() == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(job.optimizer)
        nn.utils.clip_grad_norm_(job.model.parameters(), 1.0)
        before = float(next(job.model.parameters()).detach().flatten()[0])
        scaler.step(job.optimizer)
        stepped += before != float(next(job.model.parameters()).detach().flatten()[0])
        scaler.update()
    job.facts.update(scale=scaler.get_scale(), stepped=stepped)


def autocast(job: Job) -> None:
    for step in range(STEPS):
        job.optimizer.zero_grad()
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            loss = loss_of(job, step)
        loss.backward()
        job.optimizer.step()


def scheduled(job: Job) -> None:
    """Schedulers of two kinds, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warmup = torch.optim.lr_scheduler.LinearLR(job.optimizer, 0.1, total_iters=3)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(job.optimizer, STEPS)
        rates = []
        for step in range(STEPS):
            job.optimizer.zero_grad()
            loss_of(job, step).backward()
            job.optimizer.step()
            warmup.step()
            cosine.step()
            rates.append(job.optimizer.param_groups[0]["lr"])
    job.facts["rates"] = rates


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4), nn.BatchNorm1d(4)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs)


def with_statistics(job: Job) -> None:
    """Running statistics are rank 0's before each forward pass under DDP, and after each step here. An evaluation
    between them sees rank 0's in both."""
    plain(job)
    evaluate(job)


def evaluate(job: Job) -> None:
    if job.forward is not job.model:
        for buffer in job.model.buffers():
            first = buffer.cpu()
            dist.broadcast(first, 0)
            buffer.copy_(first)
    job.model.eval()
    job.facts["evaluated"] = float(job.model(batch(99, rank=0)[0]).sum())


class Halves(nn.Module):
    """Uses one of two branches, by the step or by the rank."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(12, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.never = nn.Linear(3, 3)
        self.goes_left = True

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.trunk(inputs).relu()
        return self.left(hidden) if self.goes_left else self.right(hidden)


def unused_alike(job: Job) -> None:
    for step in range(STEPS):
        job.model.goes_left = step % 2 == 0
        job.optimizer.zero_grad()
        loss_of(job, step).backward()
        job.facts[f"none {step}"] = [name for name, p in job.model.named_parameters() if p.grad is None]
        job.optimizer.step()


def unused_apart(job: Job) -> None:
    for step in range(STEPS):
        job.model.goes_left = (step + dist.get_rank()) % 2 == 0
        job.optimizer.zero_grad()
        loss_of(job, step).backward()
        job.optimizer.step()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(12, 12), nn.Linear(12, 12)
        self.head = nn.Linear(12, 4)
        self.outer.weight = self.inner.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.outer(self.inner(inputs).relu()).relu())


class Segments(nn.Module):
    """Checkpointed by segment, the first of which has a leaf that needs a gradient as input."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Linear(12, 16)
        self.segments = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(4))
        self.head = nn.Linear(16, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(inputs)
        for segment in self.segments:
            hidden = checkpoint(segment, hidden, use_reentrant=self.reentrant)
        return self.head(hidden)


def averaged_weights(job: Job) -> None:
    """Exponential averages that are swapped in for an evaluation, and back."""
    averages = copy.deepcopy(job.model)
    for step in range(STEPS):
        job.optimizer.zero_grad()
        loss_of(job, step).backward()
        job.optimizer.step()
        with torch.no_grad():
            for average, p in zip(averages.parameters(), job.model.parameters(), strict=True):
                average.lerp_(p, 0.1)
        kept = [p.data for p in job.model.parameters()]
        for average, p in zip(averages.parameters(), job.model.parameters(), strict=True):
            p.data = average.data
        with torch.no_grad():
            job.facts[f"evaluated {step}"] = float(job.model(batch(77, rank=0)[0]).sum())
        for value, p in zip(kept, job.model.parameters(), strict=True):
            p.data = value


def two_optimizers(job: Job) -> None:
    for step in range(STEPS):
        for optimizer in job.optimizers:
            optimizer.zero_grad()
        loss_of(job, step).backward()
        for optimizer in job.optimizers:
            optimizer.step()


def head_and_trunk(model: nn.Module) -> list[torch.optim.Optimizer]:
    assert isinstance(model, nn.Sequential)
    return [torch.optim.SGD(model[:3].parameters(), 0.1), torch.optim.AdamW(model[3:].parameters(), 1e-2)]


class Words(nn.Module):
    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16, sparse=sparse)
        self.head = nn.Linear(16, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.words((inputs.abs() * 10).long() % 50).mean(1))


def sparse_words() -> nn.Module:
    return Words(sparse=True)


def words_and_head(model: nn.Module) -> list[torch.optim.Optimizer]:
    assert isinstance(model, Words)
    words = torch.optim.SparseAdam(model.words.parameters(), 1e-2)
    return [words, torch.optim.Adam(model.head.parameters(), 1e-2)]


def sparse_and_accumulated(job: Job) -> None:
    """The gradients of several passes are added before they travel, rows of several passes among them."""
    for step in range(STEPS):
        for optimizer in job.optimizers:
            optimizer.zero_grad()
        with job.no_sync():
            (loss_of(job, 10 * step) / 2).backward()
        (loss_of(job, 10 * step + 1) / 2).backward()
        assert job.model.words.weight.grad.is_sparse
        for optimizer in job.optimizers:
            optimizer.step()


def two_passes(job: Job) -> None:
    """Sharpness-aware: a second pass at other weights, whose gradients are used in the step."""
    for step in range(STEPS):
        job.optimizer.zero_grad()
        loss_of(job, step).backward()
        with torch.no_grad():
            moved = [0.05 * p.grad for p in job.model.parameters()]
            for p, by in zip(job.model.parameters(), moved, strict=True):
                p.add_(by)
        job.optimizer.zero_grad()
        loss_of(job, step).backward()
        with torch.no_grad():
            for p, by in zip(job.model.parameters(), moved, strict=True):
                p.sub_(by)
        job.optimizer.step()


def penalised(job: Job) -> None:
    """A gradient penalty: gradients of gradients, with autograd.grad inside the loss."""
    for step in range(STEPS):
        job.optimizer.zero_grad()
        inputs, targets = batch(step)
        inputs.requires_grad_()
        loss = nn.functional.cross_entropy(job.forward(inputs), targets)
        (of_inputs,) = torch.autograd.grad(loss, inputs, create_graph=True)
        (loss + 0.1 * of_inputs.square().sum()).backward()
        job.optimizer.step()


def moved_to_the_same_place(job: Job) -> None:
    for step in range(STEPS):
        job.model.to(DEVICE)
        job.optimizer.zero_grad()
        loss_of(job, step).backward()
        job.optimizer.step()


def copied_and_pickled(job: Job) -> None:
    """A copy is a plain optimizer, and state goes to a plain one and back."""
    plain(job)
    for other in (copy.deepcopy(job.optimizer), pickle.loads(pickle.dumps(job.optimizer))):
        assert type(other) is torch.optim.SGD, type(other)
        assert other.state_dict()["param_groups"] == job.optimizer.state_dict()["param_groups"]
    job.optimizer.load_state_dict(copy.deepcopy(job.optimizer.state_dict()))
    assert isinstance(job.optimizer, torch.optim.SGD) and type(job.optimizer).__name__ == "SGD"
    for step in range(STEPS, 2 * STEPS):
        job.optimizer.zero_grad()
        loss_of(job, step).backward()
        job.optimizer.step()


def closed_halfway(job: Job) -> None:
    """DDP continues by itself."""
    plain(job)
    if job.is_gradtune:
        job.optimizer.close()
    plain(job)


def frozen_trunk() -> nn.Module:
    model = mlp()
    for p in model[:2].parameters():  # type: ignore[index]
        p.requires_grad = False
    return model


class OwnStep(torch.optim.SGD):
    """A user's optimizer, whose step calls that of its base class."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["lr"] *= 0.99
        return super().step(closure)


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 2), nn.Flatten(), nn.Linear(4, 4)
        )
        self.to(memory_format=torch.channels_last)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs.reshape(-1, 3, 2, 2).to(memory_format=torch.channels_last))


class Shifted(nn.Module):
    """One parameter in double precision among others."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp()
        self.shift = nn.Parameter(torch.zeros(4, dtype=torch.float64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs).double() + self.shift


def in_double(job: Job) -> None:
    for step in range(STEPS):
        job.optimizer.zero_grad()
        inputs, targets = batch(step, dtype=list(job.model.parameters())[-1].dtype)
        outputs = job.forward(inputs)
        assert outputs.dtype == torch.float64
        nn.functional.cross_entropy(outputs, targets).backward()
        job.optimizer.step()


def in_double_words(job: Job) -> None:
    plain(job)
    assert job.model.words.weight.grad.is_sparse
    assert job.model.words.weight.grad.dtype == torch.float64


def compiled_blocks(model: nn.Module) -> Any:
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    for layer in inner.children():
        layer.compile(backend="aot_eager")
    return model


def sgd(**options: Any) -> Callable[[nn.Module], list[torch.optim.Optimizer]]:
    return lambda model: [torch.optim.SGD(model.parameters(), 0.1, **options)]


def adamw(**options: Any) -> Callable[[nn.Module], list[torch.optim.Optimizer]]:
    return lambda model: [torch.optim.AdamW(model.parameters(), 1e-2, **options)]


EACH_TENSOR = {"bucket_cap_mb": 1e-6}
FIND_UNUSED = {"find_unused_parameters": True}
SCENARIOS: dict[str, Scenario] = {
    "plain": Scenario(mlp, plain),
    "AdamW": Scenario(mlp, plain, adamw()),
    "fused AdamW": Scenario(mlp, plain, adamw(fused=True)),
    "foreach SGD": Scenario(mlp, plain, sgd(foreach=True, momentum=0.9)),
    "clipping": Scenario(mlp, clipped),
    "zero_grad in place": Scenario(mlp, zeroed_in_place),
    "zero_grad after the step": Scenario(mlp, zeroed_after),
    "closure": Scenario(mlp, with_closure),
    "accumulation": Scenario(mlp, accumulated),
    "GradScaler": Scenario(mlp, scaled),
    "autocast": Scenario(mlp, autocast),
    "schedulers": Scenario(mlp, scheduled),
    "BatchNorm": Scenario(Norms, with_statistics),
    "unused by all ranks": Scenario(Halves, unused_alike, ddp=FIND_UNUSED),
    "unused by some ranks": Scenario(Halves, unused_apart, ddp=FIND_UNUSED),
    "tied weights": Scenario(Tied, plain),
    "reentrant checkpoints": Scenario(lambda: Segments(True), plain),
    "other checkpoints": Scenario(lambda: Segments(False), plain),
    "averages swapped in": Scenario(mlp, averaged_weights),
    "two optimizers": Scenario(mlp, two_optimizers, head_and_trunk),
    "embedding": Scenario(Words, plain),
    "sparse embedding, SGD": Scenario(sparse_words, plain, sgd(momentum=0.9)),
    "sparse embedding, Adagrad": Scenario(
        sparse_words, plain, lambda model: [torch.optim.Adagrad(model.parameters(), 0.1)]
    ),
    "SparseAdam and Adam": Scenario(sparse_words, two_optimizers, words_and_head),
    "SparseAdam and Adam, accumulation": Scenario(sparse_words, sparse_and_accumulated, words_and_head),
    "two passes a step": Scenario(mlp, two_passes),
    "gradient penalty": Scenario(mlp, penalised),
    "model.to the same device": Scenario(mlp, moved_to_the_same_place),
    "copies and pickles": Scenario(mlp, copied_and_pickled),
    "frozen parameters": Scenario(frozen_trunk, plain),
    "a class of the user": Scenario(mlp, plain, lambda model: [OwnStep(model.parameters(), 0.1)]),
    "channels_last": Scenario(Convolution, plain),
    "bfloat16 parameters": Scenario(mlp, plain, dtype=torch.bfloat16),
    "float64 parameters": Scenario(mlp, in_double, adamw(), dtype=torch.float64),
    "one float64 parameter": Scenario(Shifted, in_double, adamw(), dtype=None),
    "sparse float64 embedding": Scenario(sparse_words, in_double_words, dtype=torch.float64),
    "DDP's hook": Scenario(mlp, plain, hook={}),
    "DDP's hook, float64 parameters": Scenario(mlp, in_double, dtype=torch.float64, hook=EACH_TENSOR),
    "DDP's hook, a bucket a tensor": Scenario(mlp, clipped, hook=EACH_TENSOR),
    "DDP's hook, views": Scenario(mlp, plain, adamw(), hook={"gradient_as_bucket_view": True} | EACH_TENSOR),
    "DDP's hook, accumulation": Scenario(mlp, accumulated, hook=EACH_TENSOR),
    "DDP's hook, unused": Scenario(Halves, unused_apart, ddp=FIND_UNUSED, hook=FIND_UNUSED | EACH_TENSOR),
    "DDP's hook, unused by all": Scenario(Halves, unused_alike, ddp=FIND_UNUSED, hook=FIND_UNUSED),
    "DDP's hook, channels_last": Scenario(Convolution, plain, hook={}),
    "DDP's hook, BatchNorm": Scenario(Norms, with_statistics, hook={}),
    "DDP's hook, SparseAdam and Adam": Scenario(
        sparse_words, two_optimizers, words_and_head, hook={}
    ),
    "DDP's hook, closed halfway": Scenario(mlp, closed_halfway, hook=EACH_TENSOR),
    "compiled": Scenario(mlp, plain, compiled=lambda model: torch.compile(model, backend="aot_eager"), allowed=1e-6),
    "compiled by blocks": Scenario(mlp, plain, compiled=compiled_blocks, allowed=1e-6),
}
