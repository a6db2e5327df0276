# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""More ways to train, as in scenarios.py: updates other than the wrapped step() alone, models in parts, and parts
that stay each rank's own."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import devices
from scenarios import FIND_UNUSED, STEPS, Job, Norms, Scenario, batch, evaluate, loss_of, mlp, plain


def read_at_once(job: Job) -> None:
    """Gradients are averages when backward() returns, also for a program that reads them there."""
    job.facts["sums"] = []
    for step in range(STEPS):
        job.optimizer.zero_grad()
        loss_of(job, step).backward()
        job.facts["sums"].append([float(p.grad.double().sum()) for p in job.model.parameters() if p.grad is not None])
        job.optimizer.step()


def on_a_side_stream(job: Job) -> None:
    """Backward on a stream of its own, and in the second half whole steps."""
    for step in range(STEPS):
        job.optimizer.zero_grad()
        with devices.side_stream():
            loss_of(job, step).backward()
            if step >= STEPS // 2:
                job.optimizer.step()
        if step < STEPS // 2:
            job.optimizer.step()


def computed_late(job: Job) -> None:
    """The device computes gradients long after their hooks ran, because the host does not wait for it."""
    with devices.slow(2_000):
        plain(job)
        read_at_once(job)


def from_an_overflow(job: Job) -> None:
    """Loss scaling in float16, whose first scales are too large for every gradient."""
    scaler = torch.amp.GradScaler(devices.device().type, init_scale=2.0**40)
    scales = []
    for step in range(6 * STEPS):
        job.optimizer.zero_grad()
        with torch.autocast(devices.device().type, dtype=torch.float16):
            loss = loss_of(job, step)
        scaler.scale(loss).backward()
        scaler.unscale_(job.optimizer)
        nn.utils.clip_grad_norm_(job.model.parameters(), 1.0)
        scaler.step(job.optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert 1 < scales[-1] < 2.0**39, scales
    job.facts["scales"] = scales


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimisation as commonly written: an optimizer around another one, whose step() need not be
    called."""

    def __init__(self, params: Any, base: Any, rho: float = 0.05, **options: Any) -> None:
        super().__init__(params, dict(rho=rho, **options))
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.data.clone()
                p.add_(p.grad * group["rho"])
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old"]
        self.base_optimizer.step()
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure: Callable[[], torch.Tensor] | None = None) -> None:  # type: ignore[override]
        assert closure is not None
        self.first_step()
        torch.enable_grad()(closure)()
        self.second_step()


def sharpness_aware(model: nn.Module) -> list[torch.optim.Optimizer]:
    return [SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)]


def in_two_calls(job: Job) -> None:
    """The first pass uses each rank's own gradient; running statistics move in both."""
    assert isinstance(job.optimizer, SAM)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(STEPS):
            with job.no_sync():
                loss_of(job, step).backward()
            job.optimizer.first_step()
            loss_of(job, step).backward()
            job.optimizer.second_step()
    if job.is_gradtune:  # one alone could be a part of a step, and the last one ends when the next pass begins
        assert job.optimizer.progress().step == STEPS - 2  # type: ignore[attr-defined]
    evaluate(job)


def in_one_call(job: Job) -> None:
    assert isinstance(job.optimizer, SAM)
    for step in range(STEPS):

        def closure(at: int = step) -> torch.Tensor:
            loss = loss_of(job, at)
            loss.backward()
            return loss

        closure()
        job.optimizer.step(closure)
    if job.is_gradtune:
        assert job.optimizer.progress().step == STEPS  # type: ignore[attr-defined]
    evaluate(job)


class Gan(nn.Module):
    """Both halves: the discriminator's output on made samples, and with real ones on both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 12))
        self.discriminator = nn.Sequential(nn.Linear(12, 16), nn.LeakyReLU(), nn.Linear(16, 1))

    def forward(self, noise: torch.Tensor, real: torch.Tensor | None = None) -> torch.Tensor:
        made = self.generator(noise)
        if real is None:
            return self.discriminator(made)
        return self.discriminator(real).sigmoid() - self.discriminator(made.detach()).sigmoid()


def halves(model: nn.Module) -> list[torch.optim.Optimizer]:
    assert isinstance(model, Gan)
    return [torch.optim.Adam(each.parameters(), 1e-2, betas=(0.5, 0.99)) for each in (model.generator, model.discriminator)]


@contextlib.contextmanager
def frozen(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Does the same to the others as Lightning's toggle_optimizer()."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for p in parameters:
        p.requires_grad = False
    yield
    for p in parameters:
        p.requires_grad = True


def adversarial(job: Job) -> None:
    """Each half steps after its own backward pass, the generator in every second batch; then an evaluation."""
    of_generator, of_discriminator = job.optimizers
    passes = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(STEPS + 1):
            noise, real = batch(step)[0], batch(100 + step)[0]
            if step % 2 == 0:
                with frozen(of_discriminator):
                    of_generator.zero_grad()
                    (-job.forward(noise)).sigmoid().mean().backward()
                    of_generator.step()
                passes += 1
            with frozen(of_generator):
                of_discriminator.zero_grad()
                (-job.forward(noise, real)).mean().backward()
                of_discriminator.step()
            passes += 1
    if job.is_gradtune:
        assert job.optimizer.progress().step == passes  # type: ignore[attr-defined]
    evaluate(job)


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


def exchanged(inputs: torch.Tensor) -> torch.Tensor:
    """Each rank's part of the samples of all ranks, through the host."""
    sent = inputs.cpu().contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    return received.to(inputs.device)


class Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        return exchanged(inputs)

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return exchanged(gradient)


class Margins(nn.Module):
    """A loss that contains the weights of its classes."""

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
    """Updates are computed on copies in float32. The wrapped optimizer, whose rate is 0, only reports them."""
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
    """The frozen parameters train, and the others are frozen. DDP is made anew for that."""
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


def capturable(model: nn.Module) -> list[torch.optim.Optimizer]:
    """The state of the optimizer is on the device too; torch refuses that on the CPU."""
    return [torch.optim.AdamW(model.parameters(), 1e-2, capturable=not devices.is_on_cpu())]


SCENARIOS: dict[str, Scenario] = {
    "gradients read at once": Scenario(mlp, read_at_once),
    "backward on a side stream": Scenario(mlp, on_a_side_stream),
    "gradients computed late": Scenario(mlp, computed_late),
    "float16 from an overflow": Scenario(mlp, from_an_overflow),
    "capturable AdamW": Scenario(mlp, plain, capturable),
    "SAM in two calls": Scenario(Norms, in_two_calls, sharpness_aware),
    "SAM in one call": Scenario(Norms, in_one_call, sharpness_aware),
    "GAN in one wrap": Scenario(Gan, adversarial, halves, ddp=FIND_UNUSED),
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
