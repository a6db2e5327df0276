# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Probes the link between the ranks of a torchrun call, and predicts steps of a model over it.

All ranks call run(). They first time all-reduces of several sizes, then train a small classifier with gradtune, which
observes collectives and compressors. Rank 0 fits the program's cost model to the journal, and replays a job with it.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ._errors import Error
from ._program import program
from ._wrap import wrap

LIMIT_S = 20  # of the probe, and of each wait for another rank
_TRAINED_UNTIL_S = 15.0  # since the beginning of the probe; the rest of the time is for fitting and planning
_FIRST_BYTES, _MOST_BYTES = 16 << 10, 4 << 20
# A message that takes so much longer than an empty one is large enough.
_CLEARLY_MS, _CLEARLY = 30.0, 2.0
_STEP_S = 0.25  # of the trained model in fp32
_LEAST_PARAMETERS, _MOST_PARAMETERS = 10_000, 4_000_000
_WIDTH_OF_LAYERS = 64  # width of a transformer over its number of layers, as in GPT-2 small

_PREDICTED = (
    ("DDP fp32", "baseline", "exact"),
    ("DDP bf16", "baseline", "half"),
    ("gradtune half", "auto", "half"),
    ("gradtune lossy", "auto", "lossy"),
)


@dataclass(frozen=True)
class Job:
    """The job whose steps are predicted."""

    shapes: tuple[tuple[int, ...], ...]  # of its parameters, from the first layer on
    compute_ms: float  # of a step on one rank; 0: communication alone
    trace: str | None  # a file as `gradtune trace` writes it, in the place of `shapes`


def transformer(parameters: int) -> tuple[tuple[int, ...], ...]:
    """The shapes of a transformer with about so many parameters: four matrices a layer, without embedding and biases."""
    layers = max(1, round(math.pow(parameters / (12 * _WIDTH_OF_LAYERS**2), 1 / 3)))
    width = max(1, round(math.sqrt(parameters / (12 * layers))))
    return ((3 * width, width), (width, width), (4 * width, width), (width, 4 * width)) * layers


def run(job: Job) -> list[str]:
    """Returns the lines for people, on rank 0. All ranks call it, without a default process group."""
    if job.trace is not None and os.environ.get("RANK") == "0":
        _run_program("replay", job.trace, "--json")  # a file that is no trace is an error at once
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=LIMIT_S))
    began = time.monotonic()
    signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        empty_ms, bytes_per_ms = _time_all_reduces()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            lines = [
                f"link: {dist.get_world_size()} ranks over Gloo, {empty_ms:.2f} ms for an empty all-reduce, "
                f"{bytes_per_ms * 8 / 1e3:.3g} Mbit/s in one direction"
            ]
            try:
                trained = _train(bytes_per_ms, folder / "journal.jsonl", began)
            except Error:
                if time.monotonic() - began < LIMIT_S - 1:
                    raise
                return [*lines, f"probe: it did not end within {LIMIT_S} s on this link, so nothing is predicted"]
            signal.setitimer(signal.ITIMER_REAL, 0)
            dist.barrier()  # rank 0 has the store, which the sessions of all ranks need to their end
            lines += [
                f"probe: {trained.steps} steps of a model of {trained.parameters / 1e6:.2f} M parameters with gradtune, up to "
                f"stage {trained.stage}",
            ]
            if dist.get_rank() == 0:
                lines += _predict(folder, job, knows_compressors=trained.stage != "observe")
            return lines
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        dist.destroy_process_group()


def _give_up(*_signal: Any) -> None:
    raise Error(f"gradtune: the probe did not end within {LIMIT_S} s", "timeout")


# --- all ranks -------------------------------------------------------------------------------------------------------


def _slowest(value: float) -> float:
    """The largest value of all ranks."""
    told = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(told, dist.ReduceOp.MAX)
    return float(told.item())


def _time_all_reduces() -> tuple[float, float]:
    """Returns ms of an empty all-reduce, and the bytes that a rank sends in a ms of a large one."""

    def usual_ms(size: int) -> float:
        data = torch.zeros(max(1, size // 4))
        dist.all_reduce(data)  # opens connections
        times = []
        for _ in range(2):
            began = time.monotonic()
            dist.all_reduce(data)
            times.append((time.monotonic() - began) * 1e3)
        return _slowest(min(times))

    ranks = dist.get_world_size()
    empty_ms = usual_ms(4)
    size = _FIRST_BYTES
    while True:
        more_ms = max(usual_ms(size) - empty_ms, 1e-3)
        if more_ms >= max(_CLEARLY_MS, _CLEARLY * empty_ms) or size >= _MOST_BYTES:
            return empty_ms, size * 2 * (ranks - 1) / ranks / more_ms
        size *= 4


@dataclass(frozen=True)
class _Trained:
    parameters: int
    steps: int
    stage: str  # of tuning at the end


def _train(bytes_per_ms: float, journal: Path, began: float) -> _Trained:
    """Trains a classifier of about the size that takes _STEP_S to send."""
    ranks = dist.get_world_size()
    sent = bytes_per_ms * _STEP_S * 1e3 / (2 * (ranks - 1) / ranks)
    wanted = min(max(sent / 4, _LEAST_PARAMETERS), _MOST_PARAMETERS)
    width, classes, batch = int(math.sqrt(wanted / 4)), 10, 32
    torch.manual_seed(dist.get_rank())
    centers = torch.randn(classes, width, generator=torch.Generator().manual_seed(0)).relu()
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(width, classes))
    optimizer = wrap(
        torch.optim.SGD(model.parameters(), 0.05),
        model,
        fidelity="lossy",
        journal=journal,
        quiet=True,
        timeout=LIMIT_S,
    )
    steps = 0
    while _slowest(time.monotonic() - began) < _TRAINED_UNTIL_S:
        labels = torch.randint(classes, (batch,))
        inputs = (centers[labels] + 0.5 * torch.randn(batch, width)).relu()
        optimizer.zero_grad()
        loss: Any = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        steps += 1
    stage = optimizer.progress().stage
    optimizer.close()
    return _Trained(sum(each.numel() for each in model.parameters()), steps, stage)


# --- rank 0 ----------------------------------------------------------------------------------------------------------


def _predict(folder: Path, job: Job, knows_compressors: bool) -> list[str]:
    if program() is None:
        return ["predictions: none, as they need the program gradtune"]
    rates = _run_program("cost", folder / "journal.jsonl", "-o", folder / "cost.json")
    uses = []
    if knows_compressors:
        _run_program("trace", folder / "journal.jsonl", "-o", folder / "observed.json")
        uses = json.loads((folder / "observed.json").read_text()).get("uses", [])
    trace = job.trace
    if trace is None:
        trace = str(folder / "trace.json")
        Path(trace).write_text(json.dumps(_trace(job, uses)))
    lines = [f"predicted steps of {_named(job)}:"]
    for name, policy, fidelity in _PREDICTED:
        if policy != "baseline" and not knows_compressors:
            lines.append(f"  {name:<15} not known, as the link is too slow to try compressors within {LIMIT_S} s")
            continue
        planned = json.loads(
            _run_program(
                "replay", trace, "--cost", folder / "cost.json", "--policy", policy,
                "--fidelity", fidelity, "--json",
            )
        )  # fmt: skip
        step_ms = planned["timeline_ms"] + max(0, job.compute_ms - planned["backward_ms"])
        codecs = sorted({bucket["option"].partition(":")[0] for bucket in planned["buckets"]})
        lines.append(f"  {name:<15} {step_ms:10.1f} ms   {len(planned['buckets'])} buckets: {', '.join(codecs)}")
    lines.append("how sure: these are the rates behind it, with the error by which each misses its own samples")
    lines += [f"  {line}" for line in rates.splitlines()]
    if job.trace is None and uses:
        shares = ", ".join(f"{each['compressor']} {each['share']:.2f}" for each in uses)
        lines.append(f"  gradients of your model may compress to other shares than those of the probe: {shares}")
        lines.append("  larger matrices suit powersgd better: --shapes takes those of your model, --trace all of a recorded job")
    return lines


def _named(job: Job) -> str:
    parameters = sum(math.prod(shape) for shape in job.shapes)
    what = f"{job.compute_ms:g} ms of computation" if job.compute_ms else "without the time before the first gradient"
    return f"{job.trace or f'a model of {parameters / 1e6:.3g} M parameters in {len(job.shapes)} tensors'}, {what}"


def _run_program(*words: Any) -> str:
    own = program()
    if own is None:
        raise Error("gradtune: the program gradtune was not built with this package (it needs CLI11), and is needed here")
    command = [own, *(str(word) for word in words)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise Error(f"gradtune: gradtune {words[0]} did not end within {LIMIT_S} s") from None
    if ran.returncode != 0:
        raise Error(f"gradtune: gradtune {words[0]} failed: {ran.stderr.strip().removeprefix('gradtune: ')}")
    return ran.stdout


def _trace(job: Job, uses: list[Any]) -> dict[str, Any]:
    """The last parameters' gradients are ready first, at equal intervals of backward, two thirds of the computation."""
    interval_us = job.compute_ms * 1e3 * 2 / 3 / max(1, len(job.shapes) - 1)
    return {
        "schema": "gradtune.trace/2",
        "model": _named(job),
        "forward_us": 0.0,
        "update_element_us": 0.0,
        "tensors": [
            {"name": f"{number}", "shape": list(shape), "dtype": "float32", "ready_us": interval_us * number}
            for number, shape in enumerate(reversed(job.shapes))
        ],
        "uses": uses,
    }
