# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Trainings of models that FSDP2 shards or replicates, for tests of the communication between replicas."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WIDTH, CLASSES = 12, 4
LAYERS = 3  # of a new model, before its last one, which takes part in every pass


def set_up(replicas: int, shards: int) -> tuple[Any, Any]:
    """A mesh of torch's own groups, and one of which the replicas' groups are gradtune's."""
    import torch
    import torch.distributed as dist

    import devices

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    names = {"mesh_dim_names": ("replica", "shard")}
    place = devices.device().type
    return (
        dist.init_device_mesh(place, (replicas, shards), **names),
        dist.init_device_mesh(place, (replicas, shards), **names, backend_override={"replica": devices.REPLICAS}),
    )


def new_model(width: int = WIDTH) -> Any:
    """Each layer becomes a unit; the model around them has no parameters of its own."""
    import torch
    from torch import nn

    torch.manual_seed(2)
    layers = [nn.Sequential(nn.Linear(WIDTH, width), nn.GELU(), nn.Linear(width, WIDTH)) for _ in range(LAYERS)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))


def sharded(model: Any, mesh: Any, **options: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def fsdp_modules(model: Any) -> Iterator[Any]:
    from torch.distributed.fsdp import FSDPModule

    return (module for module in model.modules() if isinstance(module, FSDPModule))


def loss_of(model: Any, seed: int, skipped: int | None = None) -> Any:
    """The loss of a batch of this rank; without one of the layers if its number is given."""
    import torch
    import torch.distributed as dist

    generator = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    parameter = next(model.parameters())
    inputs = torch.randn(6, WIDTH, generator=generator, device="cpu").to(parameter.device, parameter.dtype)
    targets = torch.randint(CLASSES, (6,), generator=generator, device="cpu").to(parameter.device)
    model.skipped = skipped
    return torch.nn.functional.cross_entropy(model(inputs).float(), targets)


def one_pass(model: Any, step: int) -> None:
    loss_of(model, step).backward()


@dataclass(frozen=True)
class Case:
    """A way to train."""

    backward: Callable[[Any, int], None] = one_pass  # the passes of a step
    change: Callable[[Any], Any] = lambda model: model  # of a new model, before it is sharded
    prepare: Callable[[Any], None] = lambda model: None  # of the sharded model
    shard: Callable[..., Any] = sharded
    options: Callable[[], dict[str, Any]] = dict  # of fully_shard
    zero: bool = True
    # Number of steps of the session that should be done after a training of a number of steps; None: there is none,
    # since the gradients go as they are.
    session_steps: Callable[[int], int | None] = field(default=lambda steps: steps - 1)


def _micro_batches(switch: str) -> Callable[[Any, int], None]:
    def passes(model: Any, step: int) -> None:
        for part in range(3):
            getattr(model, switch)(part == 2)
            loss_of(model, 10 * step + part).backward()

    return passes


def _two_passes(model: Any, step: int) -> None:
    for part in range(2):
        loss_of(model, 10 * step + part).backward()


def _two_passes_as_one(model: Any, step: int) -> None:
    """FSDP's streams are not waited for at the end of the first pass."""
    for part in range(2):
        model.set_is_last_backward(part == 1)
        loss_of(model, 10 * step + part).backward()


def _reduced_afterwards(model: Any, step: int) -> None:
    """As a stage of a pipeline does after its micro-batches."""
    model.set_requires_gradient_sync(False)
    loss_of(model, step).backward()
    model.set_requires_gradient_sync(True)
    for module in fsdp_modules(model):
        unit = module._get_fsdp_state()._fsdp_param_group
        if unit is not None:
            unit.post_backward()


def _sums(factor: float | None) -> Callable[[Any], None]:
    def prepare(model: Any) -> None:
        for module in fsdp_modules(model):
            module.set_force_sum_reduction_for_comms(True)
            if factor is not None:
                module.set_gradient_divide_factor(factor)

    return prepare


def _divided_by_shards(model: Any) -> None:
    for layer in model:
        shards = layer._get_fsdp_state()._fsdp_param_group.mesh_info.shard_mesh_size
        layer.set_gradient_divide_factor(float(shards))


def mixed(reduce: str | None, of_model: str | None = None) -> Callable[[], dict[str, Any]]:
    """Options of fully_shard: gradients are reduced in a dtype, and the model computes in another one."""
    def options() -> dict[str, Any]:
        import torch
        from torch.distributed.fsdp import MixedPrecisionPolicy

        kind = None if reduce is None else getattr(torch, reduce)
        return {"mp_policy": MixedPrecisionPolicy(getattr(torch, of_model) if of_model else None, kind)}

    return options


def _offloaded() -> dict[str, Any]:
    from torch.distributed.fsdp import CPUOffloadPolicy

    return {"offload_policy": CPUOffloadPolicy(pin_memory=False)}


def _as(dtype: str) -> Callable[[Any], Any]:
    def change(model: Any) -> Any:
        import torch

        return model.to(getattr(torch, dtype))

    return change


def _skipping(model: Any) -> Any:
    """Makes forward leave out the layer whose number is in `skipped`."""
    from torch import nn

    class Some(nn.Sequential):
        skipped: int | None = None

        def forward(self, inputs: Any) -> Any:
            for i, layer in enumerate(self):
                if i != self.skipped:
                    inputs = layer(inputs)
            return inputs

    return Some(*model)


def _skip(layers: Callable[[int], int]) -> Callable[[Any, int], None]:
    def passes(model: Any, step: int) -> None:
        loss_of(model, step, layers(step)).backward()

    return passes


def _checkpointed(reentrant: bool) -> Callable[[Any], Any]:
    def change(model: Any) -> Any:
        from torch import nn
        from torch.utils.checkpoint import checkpoint

        class Checkpointed(nn.Module):
            def __init__(self, layer: Any) -> None:
                super().__init__()
                self.layer = layer

            def forward(self, inputs: Any) -> Any:
                return checkpoint(self.layer, inputs, use_reentrant=reentrant)

        return nn.Sequential(*(Checkpointed(layer) for layer in model[:-1]), model[-1])

    return change


def _sharded_inside(model: Any, mesh: Any, **options: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    for layer in model[:-1]:
        fully_shard(layer.layer, mesh=mesh, **options)
    fully_shard(model[-1], mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def _compiled(model: Any) -> Any:
    for layer in model[:-1]:
        layer.compile(backend="aot_eager")
    return model


def _used_twice(model: Any) -> Any:
    from torch import nn

    class Twice(nn.Sequential):
        def forward(self, inputs: Any) -> Any:
            inputs = self[0](self[0](inputs))
            for layer in self[1:]:
                inputs = layer(inputs)
            return inputs

    return Twice(*model)


def _replicated(model: Any, mesh: Any, **options: Any) -> Any:
    from torch.distributed._composable.replicate_with_fsdp import replicate

    for layer in model:
        replicate(layer, mesh=mesh["replica"], **options)
    return replicate(model, mesh=mesh["replica"], **options)


def _with_hook(model: Any) -> None:
    def hook(parameter: Any) -> None:
        parameter.grad.to_local().mul_(2)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)


def never(_steps: int) -> None:
    return None


CASES: dict[str, Case] = {
    "averages": Case(),
    "micro-batches, set_requires_all_reduce": Case(_micro_batches("set_requires_all_reduce")),
    "micro-batches, set_requires_gradient_sync": Case(_micro_batches("set_requires_gradient_sync")),
    "two passes that add up": Case(_two_passes),
    "two passes that add up, set_is_last_backward": Case(_two_passes_as_one, prepare=_sums(7.0)),
    "gradients that are kept": Case(zero=False, session_steps=lambda steps: 0),
    "sums": Case(prepare=_sums(None)),
    "sums divided by 1": Case(prepare=_sums(1.0)),
    "sums divided by 7": Case(prepare=_sums(7.0)),
    "divided by the number of shards": Case(prepare=_divided_by_shards),
    "bfloat16": Case(change=_as("bfloat16")),
    "float16": Case(change=_as("float16")),
    "reduced in bfloat16": Case(options=mixed("bfloat16")),
    "reduced in float16": Case(options=mixed("float16")),
    "computed in bfloat16, reduced in float32": Case(options=mixed("float32", "bfloat16")),
    "offloaded to the CPU": Case(options=_offloaded),
    "a layer without gradients in some passes": Case(
        _skip(lambda step: 1 if step % 3 == 2 else LAYERS + 9), change=_skipping
    ),
    "other layers in each pass": Case(
        _skip(lambda step: step % LAYERS), change=_skipping, session_steps=lambda steps: steps - 2
    ),
    "activation checkpoints": Case(change=_checkpointed(False)),
    "reentrant activation checkpoints": Case(change=_checkpointed(True)),
    "reentrant checkpoints around units": Case(shard=_sharded_inside, change=_checkpointed(True)),
    "reduced after backward": Case(_reduced_afterwards, session_steps=never),
    "compiled blocks": Case(change=_compiled),
    "a layer that is used twice": Case(change=_used_twice),
    "replicate()": Case(shard=_replicated),
    "a hook after accumulation": Case(prepare=_with_hook, session_steps=never),
}


@contextlib.contextmanager
def slow_streams(model: Any) -> Iterator[None]:
    """Within it, FSDP's streams do each piece of their work late. FSDP makes them in the first forward pass."""
    import devices

    streams = model[0]._get_fsdp_state()._fsdp_param_group.comm_ctx
    if not hasattr(streams, "all_reduce_stream"):
        yield
        return
    with devices.slow(3_000, streams.reduce_scatter_stream.stream_id), devices.slow(3_000, streams.all_reduce_stream.stream_id):
        yield


def trained(
    case: Case,
    mesh: Any,
    steps: int,
    wrap: Callable[[Any], Any] = lambda model: model,
    around: Callable[[Any], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> tuple[Any, list[Any]]:
    """The result of `wrap` for the model, and the parameters and the optimizer's state after training, on this rank.

    Each step's passes run within `around` of the model.
    """
    import torch

    model = case.shard(case.change(new_model()), mesh, **case.options())
    case.prepare(model)
    wrapped = wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, eps=1e-4)
    for step in range(steps):
        if case.zero:
            optimizer.zero_grad()
        with around(model):
            case.backward(model, step)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    state = [value for each in optimizer.state.values() for value in each.values()]
    whole = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in [*model.parameters(), *state]]
    return wrapped, [each.detach() for each in whole]


def farthest(ones: Iterable[Any], others: Iterable[Any]) -> float:
    """The largest difference of tensors, as far as there are others."""
    pairs = zip(ones, others, strict=False)
    return max(float((a.detach().cpu().double() - b.detach().cpu().double()).abs().max()) for a, b in pairs)


@contextlib.contextmanager
def caught() -> Iterator[list[str]]:
    """Collects the text of an exception."""
    texts: list[str] = []
    try:
        yield texts
    except Exception as error:
        texts.append(f"{type(error).__name__}: {error}")


def saved_and_loaded(mesh: Any, folder: Path, steps: int, wrapped: Callable[[Any], Any]) -> list[Any]:
    """The parameters after training with a checkpoint (DCP) in the middle, which another model loads."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model: Any = None
    for part in range(2):
        model = sharded(new_model(), mesh)
        wrapped(model)
        optimizer = torch.optim.AdamW(model.parameters(), 0.01, eps=1e-4)
        if part == 1:
            weights, moments = get_state_dict(model, optimizer)
            state = {"model": weights, "optimizer": moments}
            dcp.load(state, checkpoint_id=folder)
            set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        for step in range(part * steps, (part + 1) * steps):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
        if part == 0:
            weights, moments = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder)
    return [parameter.full_tensor().detach() for parameter in model.parameters()]
