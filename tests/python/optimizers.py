# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The optimizers that people use, as scenarios (scenarios.py). Optimizers of packages are included if the packages
are installed."""

from __future__ import annotations

import abc
import collections
import copy
import pickle
from collections.abc import Callable
from typing import Any

import gradtune
import torch
from torch import nn

from scenarios import STEPS, Job, Scenario, loss_of, mlp

Made = list[torch.optim.Optimizer]
Make = Callable[[Any], torch.optim.Optimizer]


def said(body: Callable[[], Any]) -> str:
    try:
        return str(body())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def numbers(value: Any) -> Any:
    """The numbers as text, for comparing states to the bit."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): numbers(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [numbers(each) for each in value]
    return repr(value)


def note(job: Job) -> None:
    """The state of an optimizer after its steps, which must be the same without gradtune."""
    for at, optimizer in enumerate(job.optimizers):
        assert isinstance(optimizer, gradtune.Optimizer) == job.is_gradtune
        facts = {
            "class": repr(type(optimizer)),
            "state": numbers(optimizer.state_dict()),
            "copied": said(lambda of=optimizer: numbers(copy.deepcopy(of).state_dict())),
            "pickled": said(lambda of=optimizer: numbers(pickle.loads(pickle.dumps(of)).state_dict())),
            "loaded": said(lambda of=optimizer: of.load_state_dict(copy.deepcopy(of.state_dict()))),
        }
        job.facts |= {f"{name} {at}": fact for name, fact in facts.items()}


def scheduled_and_noted(job: Job) -> None:
    """With a scheduler, which replaces step(), and once more after a load."""
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9) for optimizer in job.optimizers]
    for step in range(STEPS):
        if step == STEPS - 1:
            note(job)
        for optimizer in job.optimizers:
            optimizer.zero_grad()
        loss_of(job, step).backward()
        for optimizer, scheduler in zip(job.optimizers, schedulers, strict=True):
            optimizer.step()
            scheduler.step()


def by_closure(job: Job) -> None:
    """Sharpness-aware: the closure runs the second pass, at other weights."""
    for step in range(STEPS):

        def closure(at: int = step) -> torch.Tensor:
            job.optimizer.zero_grad()
            loss = loss_of(job, at)
            loss.backward()
            return loss

        closure()
        job.optimizer.step(closure)  # type: ignore[arg-type]
    note(job)


def without_schedule(job: Job) -> None:
    """Schedule-free: other weights in evaluations."""
    for step in range(STEPS):
        job.optimizer.train()  # type: ignore[attr-defined]
        job.optimizer.zero_grad()
        loss_of(job, step).backward()
        job.optimizer.step()
        job.optimizer.eval()  # type: ignore[attr-defined]
    note(job)


def in_a_wrapper_that_is_none(job: Job) -> None:
    """Schedule-free around any optimizer, by a class that is no optimizer: the one inside is wrapped."""
    import schedulefree

    outer = schedulefree.ScheduleFreeWrapper(job.optimizer)
    if job.is_gradtune:
        refusal = said(lambda: gradtune.wrap(outer, job.model))
        assert "ScheduleFreeWrapper is not a torch.optim.Optimizer" in refusal, refusal
        assert "the one that a wrapper holds" in refusal, refusal
    outer.train()
    for step in range(STEPS):
        outer.zero_grad()
        loss_of(job, step).backward()
        outer.step()
    outer.eval()


# --- classes of shapes that are met ----------------------------------------------------------------------------------


class Base(torch.optim.Optimizer):
    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad, alpha=group["lr"])


class OfAbc(abc.ABC, Base):
    """Its layout differs from that of a plain subclass."""


class Mixin:
    kind = "mine"


class AfterMixin(Mixin, torch.optim.SGD):
    pass


class BeforeMixin(torch.optim.SGD, Mixin):
    pass


class WithSlots(torch.optim.SGD):
    __slots__ = ("extra",)


class SuperOfItsClass(Base):
    """A habit from Python 2, which no subclass survives."""

    def step(self, closure: Any = None) -> Any:
        return super(self.__class__, self).step(closure)


class Final(Base):
    def __init_subclass__(cls, **_options: Any) -> None:
        raise TypeError("a final class")


class Registered(type):
    known: list[str] = []

    def __new__(cls, name: str, bases: Any, namespace: Any) -> Any:
        assert name not in cls.known, f"{name} is registered already"
        cls.known.append(name)
        return super().__new__(cls, name, bases, namespace)


class OfRegistry(Base, metaclass=Registered):
    pass


class Ahead(torch.optim.Optimizer):
    """Lookahead as it is often written: it does not call torch's constructor, and has two of its dictionaries."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self._make_hooks()
        self.inner, self.count = inner, 0
        self.param_groups, self.defaults = inner.param_groups, inner.defaults
        self.state: Any = collections.defaultdict(dict)

    def _make_hooks(self) -> None:
        self._optimizer_step_pre_hooks = collections.OrderedDict()
        self._optimizer_step_post_hooks = collections.OrderedDict()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = self.inner.step(closure)
        self.count += 1
        for p in (p for group in self.param_groups for p in group["params"]):
            slow = self.state[p].setdefault("slow", p.clone())
            if self.count % 2 == 0:
                p.copy_(slow.lerp_(p, 0.5))
        return loss

    def state_dict(self) -> Any:
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        self.inner.load_state_dict(state_dict)
        self.param_groups = self.inner.param_groups


class Forwarding(Ahead):
    """Forwards missing attributes to the inner optimizer, including its hooks."""

    def _make_hooks(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)


class OldAhead(Ahead):
    """Written before torch had step hooks."""

    def _make_hooks(self) -> None:
        pass

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


def in_an_old_wrapper(job: Job) -> None:
    outer = OldAhead(job.optimizer)
    if job.is_gradtune:
        job.optimizer.close()
        refusal = said(lambda: gradtune.wrap(outer, job.model))
        assert "OldAhead has no step hooks" in refusal and "the one that a wrapper holds" in refusal, refusal
        gradtune.wrap(job.optimizer, job.model, fidelity="exact", quiet=True, tuning_budget=0, timeout=60)
    for step in range(STEPS):
        outer.zero_grad()
        loss_of(job, step).backward()
        outer.step()


def of(kind: Any, *arguments: Any, **options: Any) -> Callable[[nn.Module], Made]:
    return lambda model: [kind(model.parameters(), *arguments, **options)]


def around(outer: Callable[[torch.optim.Optimizer], torch.optim.Optimizer]) -> Callable[[nn.Module], Made]:
    return lambda model: [outer(torch.optim.AdamW(model.parameters(), 1e-2))]


def muon_and_adamw(model: nn.Module) -> Made:
    flat = [p for p in model.parameters() if p.dim() < 2]
    return [torch.optim.Muon([p for p in model.parameters() if p.dim() == 2]), torch.optim.AdamW(flat)]


TORCH = (
    "SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "ASGD", "Adafactor",
)  # fmt: skip
CLASSES = (Base, OfAbc, AfterMixin, BeforeMixin, WithSlots, SuperOfItsClass, Final, OfRegistry)


def scenarios() -> dict[str, Scenario]:
    found = {name: Scenario(mlp, scheduled_and_noted, of(getattr(torch.optim, name))) for name in TORCH}
    if hasattr(torch.optim, "Muon"):  # older versions of torch have none
        found["Muon and AdamW"] = Scenario(mlp, scheduled_and_noted, muon_and_adamw)
    found |= {kind.__name__: Scenario(mlp, scheduled_and_noted, of(kind)) for kind in CLASSES}
    found |= {kind.__name__: Scenario(mlp, scheduled_and_noted, around(kind)) for kind in (Ahead, Forwarding)}
    found["OldAhead, by the one inside"] = Scenario(mlp, in_an_old_wrapper, of(torch.optim.AdamW))
    try:
        import pytorch_optimizer as other
        import schedulefree
    except ModuleNotFoundError:
        return found
    found |= {
        f"pytorch_optimizer's {name}": Scenario(mlp, scheduled_and_noted, of(getattr(other, name)))
        for name in ("Lion", "Prodigy", "SOAP", "Lamb", "AdaBelief", "Shampoo")
    }
    found["pytorch_optimizer's Lookahead"] = Scenario(mlp, scheduled_and_noted, around(other.Lookahead))
    found["pytorch_optimizer's SAM"] = Scenario(mlp, by_closure, of(other.SAM, torch.optim.SGD, lr=0.1))
    found["pytorch_optimizer's ScheduleFreeAdamW"] = Scenario(mlp, without_schedule, of(other.ScheduleFreeAdamW))
    found["pytorch_optimizer's ScheduleFreeWrapper"] = Scenario(
        mlp, without_schedule, around(other.ScheduleFreeWrapper)
    )
    found["schedulefree's AdamWScheduleFree"] = Scenario(mlp, without_schedule, of(schedulefree.AdamWScheduleFree))
    found["schedulefree's ScheduleFreeWrapper"] = Scenario(mlp, in_a_wrapper_that_is_none, of(torch.optim.SGD))
    return found
