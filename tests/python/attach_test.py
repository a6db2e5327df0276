# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tests the hooks of wrap(), and that none of them is left when it fails, ends or is collected."""

from __future__ import annotations

import copy
import functools
import gc
import sys
import unittest
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ranks

OPTIONS: dict[str, Any] = {"fidelity": "exact", "quiet": True, "tuning_budget": 0, "timeout": 30}


def message_of(body: Callable[[], Any]) -> str:
    """The message, with the kind of the error in front."""
    try:
        body()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def set_up() -> int:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    return dist.get_rank()


def new_model() -> Any:
    import torch

    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def sgd(model: Any) -> Any:
    import torch

    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def train(forward: Any, optimizer: Any, steps: int) -> None:
    import torch
    import torch.distributed as dist

    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        forward(torch.randn(4, 8, generator=generator)).square().mean().backward()
        optimizer.step()


def values(model: Any) -> list[Any]:
    return [p.tolist() for p in model.parameters()]


def threads() -> int:
    """The number of threads; streams of the tests' device are threads that stay."""
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    return len([name for name in names if name != "fake_stream\n"])


# --- a wrap that fails -----------------------------------------------------------------------------------------------


def of_ddp(steps: int) -> list[Any]:
    import torch

    model = new_model()
    train(torch.nn.parallel.DistributedDataParallel(model), sgd(model), steps)
    return values(model)


def failed() -> dict[str, Any]:
    """Each way to fail, then training under DistributedDataParallel, then another wrap of the same parameters."""
    import gradtune
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    rank = set_up()

    class NoHooks(torch.optim.SGD):
        def register_step_post_hook(self, hook: Any) -> Any:
            if rank == 1:
                raise RuntimeError("no hooks here")
            return super().register_step_post_hook(hook)

    class Taken(torch.optim.SGD):
        progress = 0.5

    def of_two(model: Any, kind: Any) -> list[Any]:
        return [torch.optim.SGD(model[0].parameters(), 0.1), kind(model[2].parameters(), 0.1)]

    def builtin_hook(model: Any) -> tuple[Any, Any]:
        ddp = DistributedDataParallel(model)
        if rank == 1:
            ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
        return sgd(model), ddp

    def hook_of_before(model: Any) -> tuple[Any, Any]:
        """The hook of another wrap: after ranks agreed, DDP itself refuses it."""
        ddp = DistributedDataParallel(model)
        gradtune.wrap(sgd(model), ddp, **OPTIONS).close()
        return sgd(model), ddp

    def own_hook(model: Any) -> tuple[Any, Any]:
        ddp = DistributedDataParallel(model)
        if rank == 1:
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

            ddp.register_comm_hook(None, allreduce_hook)
        return sgd(model), ddp

    def interrupted(model: Any) -> tuple[Any, Any]:
        """Interrupted by its user, after the ranks agreed."""

        class Closed(torch.nn.parallel.DistributedDataParallel):
            @property
            def reducer(self) -> Any:
                if armed:
                    raise KeyboardInterrupt
                return self.__dict__["reducer"]

            @reducer.setter
            def reducer(self, value: Any) -> None:
                self.__dict__["reducer"] = value

        armed: list[int] = []
        ddp = Closed(model)
        armed.append(1)
        return sgd(model), ddp

    ways: dict[str, Callable[[Any], tuple[Any, Any]]] = {
        "no hooks on one rank": lambda model: (of_two(model, NoHooks), model),
        "a name that is taken": lambda model: (of_two(model, Taken), model),
        "DDP's builtin hook on one rank": builtin_hook,
        "DDP's hook of before": hook_of_before,
        "DDP's hook on one rank": own_hook,
        "interrupted": interrupted,
    }
    wanted, told = of_ddp(3), {}
    for name, make in ways.items():
        model = new_model()
        optimizers, given = make(model)
        before = threads()
        told[name] = {"said": message_of(functools.partial(gradtune.wrap, optimizers, given, **OPTIONS))}
        told[name]["threads left"] = threads() - before
        of_one = optimizers if isinstance(optimizers, list) else [optimizers]
        told[name]["left"] = [
            [key for key in vars(each) if key in ("_gradtune", "result", "close")]
            + [repr(hook) for hook in each._optimizer_step_pre_hooks.values()]
            + [repr(hook) for hook in each._optimizer_step_post_hooks.values()]
            for each in of_one
        ]
        train(DistributedDataParallel(model), sgd(model), 3)
        told[name]["under DDP"] = values(model) == wanted
        model.load_state_dict(new_model().state_dict())
        again = gradtune.wrap(sgd(model), model, **OPTIONS)
        train(model, again, 3)
        told[name]["wrapped again"] = values(model) == wanted
        again.close()
        told[name]["closed"] = not isinstance(again, gradtune.Optimizer) and again.result() is not None
        model.load_state_dict(new_model().state_dict())
        again.state.clear()
        train(model, gradtune.wrap(again, model, **OPTIONS), 3)
        told[name]["the same wrapped again"] = isinstance(again, gradtune.Optimizer) and values(model) == wanted
        again.close()
    return told


# --- what changes, ends, is compiled ---------------------------------------------------------------------------------


def copied_whole() -> list[str]:
    """Copied by a class whose state is its whole dictionary, hooks included, while it is wrapped and after close()."""
    import gradtune
    import torch

    class Whole(torch.optim.SGD):
        def __getstate__(self) -> dict[str, Any]:
            return dict(vars(self))

    set_up()
    model = new_model()
    optimizer = gradtune.wrap(Whole(model.parameters(), 0.1), model, **OPTIONS)
    said = [message_of(lambda: copy.deepcopy(optimizer))]
    optimizer.close()
    return [*said, type(copy.deepcopy(optimizer)).__name__]


def put_in_past_registration() -> list[Any]:
    """Long after the first steps, in which lists are rebuilt."""
    import gradtune
    import torch

    set_up()
    model = new_model()
    optimizer = gradtune.wrap(sgd(model), model, **OPTIONS)
    train(model, optimizer, 15)
    new = torch.nn.Parameter(model[2].weight.detach().clone())
    model[2]._parameters["weight"] = new
    optimizer.param_groups[0]["params"][2] = new
    said = message_of(lambda: train(model, optimizer, 1))
    return [said, optimizer.progress().step]


def collected() -> str:
    """Rank 1's optimizer is collected, in a session that keeps the error of an earlier cell."""
    import gradtune
    import torch.distributed as dist

    rank = set_up()
    sys.last_value = ValueError("an old one")  # type: ignore[attr-defined]
    model = new_model()
    optimizer = gradtune.wrap(sgd(model), model, **OPTIONS)
    train(model, optimizer, 2)
    said = ""
    if rank == 1:
        gc.disable()
        reference = weakref.ref(optimizer)
        del optimizer
        assert reference() is None, "it was in a cycle of references"
    else:
        said = message_of(lambda: train(model, optimizer, 1))
    dist.barrier()
    return said


def ended_interactively() -> str:
    """Rank 1's session ends normally, and keeps the error of an earlier cell."""
    import gradtune

    rank = set_up()
    model = new_model()
    optimizer = gradtune.wrap(sgd(model), model, **OPTIONS)
    train(model, optimizer, 2)
    if rank == 1:
        sys.ps1 = ">>> "
        sys.last_value = ValueError("an old one")  # type: ignore[attr-defined]
        return ""
    return message_of(lambda: train(model, optimizer, 1))


def compiled() -> dict[str, Any]:
    """A whole training step, including the update."""
    import gradtune
    import torch
    from torch._dynamo.utils import counters

    rank = set_up()
    wanted = of_ddp(4)
    model = new_model()
    optimizer = gradtune.wrap(sgd(model), model, **OPTIONS)
    generator = torch.Generator().manual_seed(rank)

    def step(inputs: Any) -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    fast = torch.compile(step, backend="eager")
    for _ in range(4):
        fast(torch.randn(4, 8, generator=generator))
    told = {
        "to DDP": max(
            float((value - torch.tensor(other)).abs().max())
            for value, other in zip(model.parameters(), wanted, strict=True)
        ),
        "step": optimizer.progress().step,
        "breaks": [str(reason) for reason in counters["graph_break"]],
    }
    optimizer.close()
    return told


class Attach(unittest.TestCase):
    def test_a_wrap_that_fails_leaves_nothing_behind(self) -> None:
        said = {
            "no hooks on one rank": ["RuntimeError: no hooks here"] * 2,
            "a name that is taken": ["Taken has an attribute progress of its own"] * 2,
            "DDP's builtin hook on one rank": ["DistributedDataParallel takes one communication hook"] * 2,
            "DDP's hook of before": ["Error: gradtune: DistributedDataParallel takes one communication hook"] * 2,
            "DDP's hook on one rank": ["DistributedDataParallel takes one communication hook"] * 2,
            "interrupted": ["KeyboardInterrupt"] * 2,
        }
        told = ranks.must_run(failed)
        for name, messages in said.items():
            for rank, message in enumerate(messages):
                with self.subTest(way=name, rank=rank):
                    of_rank = told[rank][name]
                    self.assertIn(message, of_rank["said"])
                    self.assertEqual(of_rank["threads left"], 0)
                    self.assertFalse(any(of_rank["left"]), of_rank["left"])
                    self.assertTrue(of_rank["under DDP"], "averaged once")
                    self.assertTrue(of_rank["wrapped again"])
                    self.assertTrue(of_rank["closed"])
                    self.assertTrue(of_rank["the same wrapped again"])

    def test_a_copy_of_all_that_an_optimizer_has_is_refused_while_it_is_wrapped(self) -> None:
        for said, copied in ranks.must_run(copied_whole):
            self.assertIn("Error: gradtune: a copy or a pickle was to hold all attributes of a wrapped", said)
            self.assertEqual(copied, "Whole")

    def test_a_parameter_put_in_past_registration_is_an_error_in_that_step(self) -> None:
        for said, step in ranks.must_run(put_in_past_registration):
            self.assertIn("Error: gradtune: ", said)
            self.assertIn("parameter 2.weight was added, replaced or unfrozen", said)
            self.assertEqual(step, 15)

    def test_an_old_error_is_not_told_as_the_cause(self) -> None:
        said = ranks.must_run(collected)[0]
        self.assertIn("rank 1", said)
        self.assertNotIn("an old one", said)
        said = ranks.must_run(ended_interactively)[0]
        self.assertIn("rank 1", said)
        self.assertNotIn("an old one", said)

    def test_a_compiled_step_does_not_trace_gradtune(self) -> None:
        for told in ranks.must_run(compiled):
            self.assertLess(told["to DDP"], 1e-6)
            self.assertEqual(told["step"], 4)
            breaks = [reason for reason in told["breaks"] if "gradtune" in reason or "Wrap" in reason]
            self.assertTrue(breaks)
            for reason in breaks:
                self.assertIn("torch.compiler.disable", reason)


if __name__ == "__main__":
    ranks.main()
