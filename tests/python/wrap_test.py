# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tests what wrap() accepts and refuses, what it adds to an optimizer, and its messages to users and ranks."""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import io
import tempfile
import threading
import time
import unittest
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ranks


def message_of(body: Callable[[], Any]) -> str:
    """The message, with the kind of the error in front."""
    try:
        body()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def set_up() -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")


def new_model(seed: int = 1) -> Any:
    import torch

    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def train(model: Any, optimizer: Any, steps: int) -> None:
    import torch

    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


# --- refusals --------------------------------------------------------------------------------------------------------


def refusals() -> dict[str, str]:
    """One rank does something that is refused, in the even cases rank 0 too; all get an error."""
    import gradtune
    import torch
    import torch.distributed as dist
    from torch import nn

    set_up()
    told = {}

    def refused(name: str, change: Callable[[], tuple[Any, Any]], **options: Any) -> None:
        told[name] = message_of(lambda: gradtune.wrap(*change(), quiet=True, timeout=30, **options))

    def plain(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), 0.1)

    def lazy() -> tuple[Any, Any]:
        model = nn.Sequential(nn.LazyLinear(4))
        return torch.optim.SGD(model.parameters(), 0.1), model

    def sharded() -> tuple[Any, Any]:
        from torch.distributed.fsdp import fully_shard

        model = new_model()
        fully_shard(model)
        return plain(model), model

    def distributed() -> tuple[Any, Any]:
        from torch.distributed.tensor import distribute_tensor

        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        model = new_model()
        model[0].weight = nn.Parameter(distribute_tensor(model[0].weight.detach(), mesh))
        return plain(model), model

    def ddp() -> tuple[Any, Any]:
        model = nn.Sequential(nn.parallel.DistributedDataParallel(new_model()))
        return plain(model), model

    def zero() -> tuple[Any, Any]:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        model = new_model()
        return ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1), model

    def stepping_inside() -> tuple[Any, Any]:
        model = new_model()
        next(model.parameters()).register_post_accumulate_grad_hook(lambda p: None)
        return plain(model), model

    def masters(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD([nn.Parameter(p.detach().float()) for p in model.bfloat16().parameters()], 0.1)

    def of_model(change: Callable[[Any], Any]) -> Callable[[], tuple[Any, Any]]:
        def make() -> tuple[Any, Any]:
            model = new_model()
            changed = change(model)
            return plain(model) if changed is None else changed, model

        return make

    refused("lazy", lazy)
    refused("FSDP2", sharded)
    refused("DTensor", distributed)
    refused("DDP", ddp)
    refused("ZeRO", zero)
    refused("LBFGS", of_model(lambda m: torch.optim.LBFGS(m.parameters())))
    refused("post-accumulate hook", stepping_inside)
    refused("complex", of_model(lambda m: m.register_parameter("c", nn.Parameter(torch.zeros(2, dtype=torch.cfloat)))))
    refused(
        "another device", of_model(lambda m: m.register_parameter("meta", nn.Parameter(torch.empty(2, device="meta"))))
    )
    refused("twice in the optimizer", of_model(lambda m: [plain(m), plain(m)]))
    refused("not of the model", of_model(lambda m: torch.optim.SGD([nn.Parameter(torch.zeros(3))], 0.1)))
    refused("master weights", of_model(masters))
    refused("a name that is none", of_model(lambda m: None), ignore=["expert"])
    refused("nothing to train", of_model(lambda m: m.requires_grad_(False) and None))
    refused("option", of_model(lambda m: None), fidelity="some")
    refused("budget", of_model(lambda m: None), tuning_budget=-1)
    refused("no compressors", of_model(lambda m: None), compressors=[])
    refused("no strategy", of_model(lambda m: None), strategy="")
    refused("missing strategy", of_model(lambda m: None), strategy="/nowhere/s.json")
    refused("large number", of_model(lambda m: None), error_budget=10**400)
    refused("misspelt value", of_model(lambda m: None), fidelity="lossi")
    rank = dist.get_rank()
    refused("learning rate", of_model(lambda m: torch.optim.SGD(m.parameters(), 0.1 + rank)))
    refused("kind of optimizer", of_model(lambda m: (torch.optim.Adam if rank else torch.optim.AdamW)(m.parameters())))

    def resumed() -> tuple[Any, Any]:
        model = new_model()
        optimizer = torch.optim.Adam(model.parameters())
        if rank == 0:
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
        return optimizer, model

    refused("state on one rank", resumed)
    refused("one rank alone", of_model(lambda m: torch.optim.LBFGS(m.parameters()) if rank == 1 else None))
    # A mistake in the program, reported without sending anything to others.
    model = new_model()
    told["misspelt"] = message_of(lambda: gradtune.wrap(plain(model), model, fidelty="exact"))  # type: ignore[call-overload]
    told["of C++"] = message_of(lambda: gradtune.wrap(plain(model), model, forward_overlap=True))  # type: ignore[call-overload]
    told["type of an option"] = message_of(lambda: gradtune.wrap(plain(model), model, tuning_budget="many"))  # type: ignore[call-overload]
    told["no optimizer"] = message_of(lambda: gradtune.wrap(model, model))  # type: ignore[call-overload]
    told["no model"] = message_of(lambda: gradtune.wrap(plain(model), [list(model)]))  # type: ignore[call-overload]
    told["no models"] = message_of(lambda: gradtune.wrap(plain(model), []))
    import torch.testing._internal.distributed.fake_pg  # it registers the backend

    fake = dist.new_group(backend="fake")
    told["fake group"] = message_of(lambda: gradtune.wrap(plain(model), model, fake))
    told["no group"] = message_of(lambda: gradtune.wrap(plain(model), model, "gloo"))  # type: ignore[call-overload]
    optimizer = gradtune.wrap(plain(model), model, quiet=True, timeout=30)
    told["twice"] = message_of(lambda: gradtune.wrap(optimizer, model))
    told["other wrap"] = message_of(lambda: gradtune.wrap(plain(model), model, quiet=True, timeout=30))
    told["add_param_group"] = message_of(lambda: optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]}))
    optimizer.close()
    other = gradtune.wrap(plain(model), model, quiet=True, timeout=30)  # like the former one
    train(model, other, 2)
    other.close()
    ranks.leave_group()
    told["no process group"] = message_of(lambda: gradtune.wrap(plain(model), model))
    return told


REFUSED = {
    "lazy": "Error: gradtune: parameter 0.weight is lazy and has no shape yet",
    "FSDP2": "sharded by fully_shard() without replicas (FSDPSequential)",
    "DTensor": "parameter 0.weight is a DTensor: sharded or composite tensors",
    "DDP": "the module 0 is wrapped in DistributedDataParallel",
    "ZeRO": "ZeroRedundancyOptimizer can not be wrapped: it keeps a part of the parameters on each rank, and sends them "
    "itself; wrap one of the class that it was given",
    "LBFGS": "LBFGS can not be wrapped: it evaluates its closure several times",
    "post-accumulate hook": "hook, which finds this rank's own gradient, and not the average",
    "complex": "parameter c is ComplexFloat",
    "another device": "parameter meta is on meta",
    "twice in the optimizer": "is in the optimizer twice, or in two of them",
    "not of the model": "of shape [3] that is not in the module: it would differ between ranks; give wrap all modules",
    "master weights": "wrap(torch.optim.SGD(model.parameters(), 0.0), model), before the copies are made",
    "a name that is none": 'option ignore names "expert", which is no parameter or buffer, and no module with one',
    "nothing to train": "the module has no parameter that requires a gradient",
    "option": 'option fidelity (argument) is "some"',
    "budget": 'option tuning_budget (argument) is "-1": allowed is a whole number of steps from 0 to',
    "no compressors": 'option compressors (argument) is "": the list is empty',
    "no strategy": 'option strategy (argument) is ""',
    "missing strategy": "option strategy: can not open /nowhere/s.json: No such file",
    "large number": 'option error_budget (argument) is "inf"',
    "misspelt value": '(did you mean "lossy"?)',
    "learning rate": "optimizer 0, group 0: lr is 1.1 on rank 1 and 0.1 on rank 0",
    "kind of optimizer": "optimizer 0, group 0: class is Adam on rank 1 and AdamW on rank 0",
    "state on one rank": "optimizer 0, group 0: state is  on rank 1 and exp_avg, exp_avg_sq, step (step 1.0) on rank 0",
    "one rank alone": "LBFGS can not be wrapped",
    "misspelt": "TypeError: gradtune: unexpected keyword argument 'fidelty' (did you mean fidelity?); the options are fidelity,",
    "of C++": "unexpected keyword argument 'forward_overlap' (it is for optimizers of C++ alone); the options are",
    "type of an option": "TypeError: gradtune: option tuning_budget is 'many'; allowed is an int",
    "no optimizer": "TypeError: gradtune: Sequential is not a torch.optim.Optimizer",
    "no model": "TypeError: gradtune: the model is a list; allowed is a torch.nn.Module, or a list of them",
    "no models": "Error: gradtune: wrap needs at least one model",
    "no group": "TypeError: gradtune: group is 'gloo'",
    "fake group": "Error: gradtune: the group's backend is fake: its other ranks are not there",
    "twice": "Error: gradtune: the optimizer is wrapped already",
    "other wrap": "belongs to another wrapped optimizer that still lives",
    "add_param_group": "Error: gradtune: parameters were added to the optimizer after wrap",
    "no process group": "Error: gradtune: torch.distributed is not initialised",
}


# --- while it trains -------------------------------------------------------------------------------------------------


def changes() -> dict[str, str]:
    """Changes that are forbidden after wrap are an error in the step in which they happen, from backward() or
    step()."""
    import gradtune
    import torch
    from torch import nn

    set_up()
    told = {}

    def changed(name: str, change: Callable[[Any, Any], Any]) -> None:
        model = new_model()
        for p in model[2].parameters():
            p.requires_grad = False
        optimizer = gradtune.wrap(torch.optim.SGD(model.parameters(), 0.1), model, quiet=True, timeout=30)
        train(model, optimizer, 12)

        def go_on() -> None:
            change(model, optimizer)
            train(model, optimizer, 1)

        told[name] = message_of(go_on)
        optimizer.close()

    changed("nothing", lambda m, o: None)
    changed("added", lambda m, o: m.append(nn.Linear(4, 4)))
    changed("assigned", lambda m, o: setattr(m[0], "weight", nn.Parameter(torch.zeros(16, 8))))
    changed("converted", lambda m, o: (m.double(), o.step()))
    changed("unfrozen", lambda m, o: m.requires_grad_())
    changed("unfrozen and refreshed", lambda m, o: (m.requires_grad_(), o.refresh()))
    changed("refreshed late", refreshed_late)
    changed("buffer", lambda m, o: m.register_buffer("mean", torch.zeros(3)))
    return told


def refreshed_late(model: Any, optimizer: Any) -> None:
    model.requires_grad_()
    assert "call refresh() of the wrapped optimizer" in message_of(lambda: train(model, optimizer, 1))
    optimizer.refresh()


def joined() -> dict[str, str]:
    """Uneven inputs: DDP's own solution is refused before anything is sent, and available again after close()."""
    import gradtune
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.join import Join

    set_up()
    told = {}
    model = new_model()
    optimizer = gradtune.wrap(torch.optim.SGD(model.parameters(), 0.1), model, quiet=True, timeout=30)
    told["join"] = message_of(lambda: optimizer.join())
    told["Join"] = message_of(lambda: Join([optimizer]))
    train(model, optimizer, 2)
    optimizer.close()
    ddp = torch.nn.parallel.DistributedDataParallel(new_model())
    optimizer = gradtune.wrap(torch.optim.SGD(ddp.parameters(), 0.1), ddp, quiet=True, timeout=30)
    told["DDP's"] = message_of(lambda: ddp.join())
    train(ddp, optimizer, 2)
    optimizer.close()
    with ddp.join():
        train(ddp, optimizer, 2 + dist.get_rank())
    told["closed"] = type(optimizer).__name__
    return told


def uneven() -> str:
    """Rank 1 has no more inputs, and its program ends."""
    import gradtune
    import torch
    import torch.distributed as dist

    set_up()
    model = new_model()
    optimizer = gradtune.wrap(torch.optim.SGD(model.parameters(), 0.1), model, quiet=True, timeout=30)
    said = message_of(lambda: train(model, optimizer, 5 if dist.get_rank() == 0 else 3))
    if dist.get_rank() == 1:
        optimizer.close()
    return said


def slow() -> str:
    """Rank 1 is busy for longer than the group waits."""
    import gradtune
    import torch
    import torch.distributed as dist

    set_up()
    group = dist.new_group(timeout=datetime.timedelta(seconds=4))
    model = new_model()
    optimizer = gradtune.wrap(torch.optim.SGD(model.parameters(), 0.1), model, group, quiet=True)
    train(model, optimizer, 3)
    if dist.get_rank() == 1:
        time.sleep(9)
    return message_of(lambda: train(model, optimizer, 3))


def compiled_autograd() -> str:
    import gradtune
    import torch

    set_up()
    model = new_model()
    optimizer = gradtune.wrap(torch.optim.SGD(model.parameters(), 0.1), model, quiet=True, timeout=30)

    def backward() -> None:
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):  # type: ignore[attr-defined]
            model(torch.randn(4, 8)).sum().backward()

    said = message_of(backward)
    optimizer.close()
    return said


def one_rank_fails() -> list[str]:
    """Rank 1 ends in its third step."""
    import gradtune
    import torch
    import torch.distributed as dist

    set_up()
    model = new_model()
    optimizer = gradtune.wrap(torch.optim.SGD(model.parameters(), 0.1), model, quiet=True, timeout=30)
    train(model, optimizer, 2)
    if dist.get_rank() == 1:
        raise ValueError("no such file")
    try:
        train(model, optimizer, 100)
    except gradtune.Error as error:
        return [type(error).__name__, error.code, str(error), str(isinstance(error, RuntimeError))]
    return ["no error"]


def watched() -> dict[str, Any]:
    """Scalars for TensorBoard, and spans for profilers."""
    import gradtune
    import torch

    set_up()
    model = new_model()
    optimizer = gradtune.wrap(torch.optim.SGD(model.parameters(), 0.1), model, quiet=True, timeout=30, tuning_budget=0)
    written: list[tuple[str, float, int]] = []

    class Writer:
        def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> None:
            written.append((tag, float(scalar_value), global_step or 0))

    refused = message_of(lambda: optimizer.log_to(3))  # type: ignore[arg-type]
    optimizer.log_to(Writer(), every=2)
    with torch.profiler.profile() as profile:
        train(model, optimizer, 4)
    spans = {
        event.key: event.count for event in profile.key_averages() if event.key.startswith(("gradtune::", "Optimizer"))
    }
    optimizer.log_to(None)
    train(model, optimizer, 2)
    optimizer.close()
    return {"written": written, "spans": spans, "refused": refused}


def to_tensorboard(folder: str) -> None:
    import gradtune
    import torch
    import torch.distributed as dist
    from torch.utils.tensorboard import SummaryWriter

    set_up()
    model = new_model()
    optimizer = gradtune.wrap(torch.optim.SGD(model.parameters(), 0.1), model, quiet=True, timeout=30)
    with SummaryWriter(str(Path(folder) / str(dist.get_rank()))) as writer:
        optimizer.log_to(writer, every=3)
        train(model, optimizer, 9)
    optimizer.close()


def told_to_people(folder: str) -> dict[str, Any]:
    """Lines on sys.stderr, warnings, results from another thread, files."""
    import gradtune
    import torch
    import torch.distributed as dist

    set_up()
    model = new_model()
    lines = io.StringIO()
    seen: list[gradtune.Progress] = []
    done = threading.Event()

    def monitor(optimizer: gradtune.Optimizer) -> None:
        while not done.is_set():
            seen.append(optimizer.progress())
            optimizer.result()
            time.sleep(0.005)

    with contextlib.redirect_stderr(lines), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        optimizer = gradtune.wrap(
            torch.optim.SGD(model.parameters(), 0.01),
            model,
            tuning_budget=30,
            timeout=60,
            journal=Path(folder) / "j.jsonl",
        )
        thread = threading.Thread(target=monitor, args=(optimizer,))
        thread.start()
        for _ in range(60):
            train(model, optimizer, 1)
            time.sleep(0.002)
        done.set()
        thread.join()
        asked: list[gradtune.Progress] = []
        for _ in range(5):
            train(model, optimizer, 1)
            other = threading.Thread(target=lambda: asked.append(optimizer.progress()))
            other.start()
            other.join()
        as_asked = [each.step for each in asked]
        result = optimizer.result()
        text = str(result)
        optimizer.export_strategy(Path(folder) / "strategy.json")
        optimizer.save_checkpoint(Path(folder) / "checkpoint")
        optimizer.load_checkpoint(Path(folder) / "checkpoint")
        for _ in range(2):
            with optimizer.no_sync():
                train(model, optimizer, 1)
        last = [optimizer.progress(), optimizer.result()]
        optimizer.close()
    told = {
        "rank": dist.get_rank(),
        "lines": lines.getvalue(),
        "warnings": [str(each.message) for each in warned if "gradtune" in str(each.message)],
        "steps seen": sorted({progress.step for progress in seen}),
        "steps told to another thread": as_asked,
        "decided": result.decided,
        "result": text,
        "files": sorted(path.name for path in Path(folder).iterdir()),
        "is plain": type(optimizer) is torch.optim.SGD,
        "closed again": message_of(lambda: optimizer.close()),
        "answers as before": [optimizer.progress(), optimizer.result()] == last,
        "exclude_step": message_of(lambda: optimizer.exclude_step()),
    }
    # The exported strategy pinned.
    again = gradtune.wrap(
        torch.optim.SGD(model.parameters(), 0.01),
        model,
        tuning_budget=0,
        quiet=True,
        strategy=Path(folder) / "strategy.json",
    )
    told["pinned"] = again.result().strategy
    again.close()
    return told


class Wrap(unittest.TestCase):
    def test_what_can_not_be_served_is_refused_by_name_on_all_ranks(self) -> None:
        for rank, told in enumerate(ranks.must_run(refusals)):
            self.assertEqual(set(told), set(REFUSED))
            for name, message in REFUSED.items():
                with self.subTest(refused=name, rank=rank):
                    self.assertIn(message, told[name])

    def test_what_changes_after_wrap_is_an_error(self) -> None:
        for rank, told in enumerate(ranks.must_run(changes)):
            with self.subTest(rank=rank):
                self.assertEqual(told["nothing"], "no error")
                self.assertEqual(told["buffer"], "no error", "programs assign new buffers")
                self.assertIn("Error: gradtune: ", told["added"])
                self.assertIn("parameter 3.weight was added, replaced or unfrozen", told["added"])
                self.assertIn("parameter 0.weight was added, replaced or unfrozen", told["assigned"])
                self.assertRegex(told["converted"], r"parameter 0\.\w+ was moved, converted or replaced")
                self.assertIn("was added, replaced or unfrozen", told["unfrozen"])
                self.assertIn("after that, call refresh() of the wrapped optimizer", told["unfrozen"])
                self.assertEqual(told["unfrozen and refreshed"], "no error")
                self.assertEqual(told["refreshed late"], "no error")

    def test_uneven_inputs_are_refused_by_name(self) -> None:
        for told in ranks.must_run(joined):
            for how in ("join", "Join", "DDP's"):
                self.assertIn("Error: gradtune: join() is not served", told[how])
            self.assertEqual(told["closed"], "SGD")
        first, last = ranks.must_run(uneven)
        self.assertEqual(last, "no error")
        self.assertIn("Error: gradtune: rank 0 at step 3: ", first)
        self.assertIn("rank 1", first)

    def test_waits_are_as_long_as_the_group_says_and_the_error_names_the_option(self) -> None:
        first, last = ranks.must_run(slow)
        self.assertIn("Error: gradtune: rank 0 at step 3: it waited longer than option timeout (4 s) allows", first)
        # Rank 0 holds the store, and may be gone with its message when rank 1 is back.
        self.assertRegex(last, r"rank 0 at step 3: it waited longer than option timeout \(4 s\) allows|suspected: rank 0")

    def test_compiled_autograd_is_refused_by_name(self) -> None:
        for said in ranks.must_run(compiled_autograd):
            self.assertIn("a backward pass under compiled autograd runs no hooks of gradients", said)

    def test_an_exception_of_one_rank_ends_the_other_with_its_text(self) -> None:
        ends = ranks.run(one_rank_fails)
        self.assertEqual(ends[1].code, 1)
        self.assertIn("ValueError: no such file", ends[1].output)
        self.assertEqual(ends[0].code, 0, ends[0].output)
        kind, code, message, is_runtime_error = ends[0].returned
        self.assertEqual((kind, is_runtime_error), ("Error", "True"))
        self.assertIn(code, ("peer", "lost"), "whether it read what the other one told before or after it lost it")
        self.assertIn("rank 1 at step 2: its program ended with ValueError: no such file", message)

    def test_it_can_be_watched(self) -> None:
        for told in ranks.must_run(watched):
            self.assertEqual(sorted({step for _, _, step in told["written"]}), [2, 4])
            self.assertIn("gradtune/step_ms", {tag for tag, _, _ in told["written"]})
            self.assertEqual(told["spans"]["gradtune::finish_backward"], 4)
            self.assertEqual(told["spans"]["gradtune::gradient_ready"], 4 * 4)
            self.assertEqual(told["spans"]["gradtune::end_update"], 4)
            self.assertEqual(told["spans"]["Optimizer.step#SGD.step"], 4)
            self.assertIn("TypeError: gradtune: writer is 3; allowed is an object with add_scalar(", told["refused"])

    @unittest.skipUnless(importlib.util.find_spec("tensorboard"), "tensorboard is not installed")
    def test_tensorboard_shows_its_scalars(self) -> None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        with tempfile.TemporaryDirectory() as folder:
            ranks.must_run(to_tensorboard, arguments=[folder])
            for rank in ("0", "1"):
                events = EventAccumulator(str(Path(folder) / rank))
                events.Reload()
                self.assertIn("gradtune/bytes", events.Tags()["scalars"])
                self.assertEqual([each.step for each in events.Scalars("gradtune/step_ms")], [3, 6, 9])
                self.assertTrue(all(each.value > 0 for each in events.Scalars("gradtune/step_ms")))

    def test_people_are_told_where_their_program_tells_them(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            told = ranks.must_run(told_to_people, arguments=[folder])
        why = f"the process group's backend for {ranks.DEVICE}"
        self.assertIn(f", gradients over {ranks.BACKEND} ({why})", told[0]["lines"])
        self.assertNotIn("\r", told[0]["lines"])
        self.assertEqual(told[1]["lines"], "")
        for of_rank in told:
            self.assertEqual(len([each for each in of_rank["warnings"] if "were all under no_sync()" in each]), 1)
            self.assertGreater(len(of_rank["steps seen"]), 2, "seen from another thread")
            self.assertTrue(of_rank["is plain"])
            self.assertEqual(of_rank["closed again"], "no error")
            self.assertTrue(of_rank["answers as before"])
            self.assertIn("AttributeError", of_rank["exclude_step"])
            self.assertEqual(of_rank["steps told to another thread"], [61, 62, 63, 64, 65])
            self.assertTrue(of_rank["decided"])
        self.assertIn("strategy.json", told[0]["files"])
        self.assertIn("j.jsonl", told[0]["files"])
        self.assertIn("checkpoint", told[0]["files"])
        self.assertEqual(told[0]["result"], told[1]["result"])
        story = told[0]["result"].splitlines()[0]
        self.assertTrue(any(line.startswith(story) for line in told[0]["lines"].splitlines()), told[0]["lines"])
        self.assertIn("bucket", told[0]["result"])
        self.assertEqual(told[0]["pinned"], told[1]["pinned"])


if __name__ == "__main__":
    ranks.main()
