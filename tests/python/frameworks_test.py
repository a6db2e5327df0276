# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tests gradtune inside other tools: loggers, `logging`, callbacks of frameworks. Tests of frameworks that are not
installed are left out."""

from __future__ import annotations

import importlib.util
import io
import logging
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import ranks

ALWAYS = {"step_ms", "encode_ms", "decode_ms", "wait_ms", "bytes", "epoch", "stage", "nonfinite_steps"}


def has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def new_model() -> Any:
    import torch

    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def wrapped(**options: Any) -> tuple[Any, Any]:
    import gradtune
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = new_model()
    return model, gradtune.wrap(torch.optim.SGD(model.parameters(), 0.1), model, timeout=30, **options)


def train(model: Any, optimizer: Any, steps: int) -> None:
    import torch

    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


# --- loggers ---------------------------------------------------------------------------------------------------------


class Run:
    """As a run of W&B."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        self.logged.append((step or 0, data))


class MetricsLogger:
    """As a logger of Lightning."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.logged.append((step or 0, metrics))


class Events:
    """As TensorBoard's writer."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int = 0) -> None:
        if not self.logged or self.logged[-1][0] != global_step:
            self.logged.append((global_step, {}))
        self.logged[-1][1][tag] = scalar_value


def logged() -> dict[str, Any]:
    """The loggers take turns."""
    model, optimizer = wrapped(quiet=True, tuning_budget=0)
    told: dict[str, Any] = {}
    for writer in (Run(), MetricsLogger(), Events()):
        optimizer.log_to(writer, every=2)
        train(model, optimizer, 4)
        told[type(writer).__name__] = writer.logged
    told["scalars"] = optimizer.scalars()
    told["progress"] = [optimizer.progress().bytes, optimizer.progress().stage]
    refused = []
    for writer in (3, logging.getLogger("any"), Path("file")):
        try:
            optimizer.log_to(writer)
        except TypeError as error:
            refused.append(str(error))
    told["refused"] = refused
    optimizer.close()
    told["closed"] = optimizer.scalars() == told["scalars"]
    return told


def committed() -> list[float]:
    """The scalars around a commit: a slow link gives bf16 an advantage."""
    import gradtune

    names = [scalar.name for scalar in gradtune.SCALARS]
    progress = gradtune.Progress(7, 3, "watch", "bf16", 0, 5.0, 0.1, 0.1, 2.0, 900)
    facts: dict[str, Any] = dict(predicted_ms=None, gain=0.4, gain_low=0.3, gain_high=0.5, steps=5, cost_ms=9.0)
    facts |= dict(cost_share=0.1, first_commit=5, story="", strategy="bf16", description="", fidelity="half")
    result = gradtune.Result(decided=True, committed=True, baseline_ms=10.0, committed_ms=6.0, **facts)
    from gradtune._results import scalars_of

    values = scalars_of(progress, result)
    assert list(values) == [f"gradtune/{name}" for name in names]
    assert all(scalar.unit in ("ms", "B", "share", "") and scalar.meaning for scalar in gradtune.SCALARS)
    return [values["gradtune/gain"], values["gradtune/stage"], values["gradtune/bytes"]]


class Loggers(unittest.TestCase):
    def test_every_kind_gets_the_same_scalars(self) -> None:
        for told in ranks.must_run(logged):
            for kind, first in (("Run", 2), ("MetricsLogger", 6), ("Events", 10)):
                self.assertEqual([step for step, _ in told[kind]], [first, first + 2], kind)
                for _, values in told[kind]:
                    self.assertEqual(set(values), {f"gradtune/{name}" for name in ALWAYS}, kind)
                    self.assertGreater(values["gradtune/step_ms"], 0)
            self.assertEqual(set(told["scalars"]), {f"gradtune/{name}" for name in ALWAYS})
            # 8 x 16 + 16 + 16 x 4 + 4 elements of fp32: two ranks exchange them in halves, once each way.
            self.assertEqual(told["progress"][0], 4 * 212)
            self.assertEqual(told["scalars"]["gradtune/bytes"], 4 * 212)
            self.assertTrue(told["closed"])
            for sentence in told["refused"]:
                self.assertIn("allowed is an object with add_scalar(tag, value, step)", sentence)
            self.assertEqual(len(told["refused"]), 3)

    def test_a_commit_has_all_scalars_of_the_list(self) -> None:
        self.assertEqual(committed(), [0.4, 4, 900])

    @unittest.skipUnless(has("lightning"), "lightning is not installed")
    def test_a_logger_of_lightning(self) -> None:
        from gradtune._writers import write_with
        from lightning.pytorch.loggers import CSVLogger

        with tempfile.TemporaryDirectory() as folder:
            logger = CSVLogger(folder, name="", version="")
            write_with(logger)({"gradtune/step_ms": 12.5}, 3)
            logger.save()
            (table,) = Path(folder).rglob("metrics.csv")
            self.assertEqual(table.read_text().split(), ["gradtune/step_ms,step", "12.5,3"])

    @unittest.skipUnless(has("accelerate") and has("tensorboard"), "accelerate or tensorboard is not installed")
    def test_an_accelerator(self) -> None:
        from accelerate import Accelerator
        from gradtune._writers import write_with
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        with tempfile.TemporaryDirectory() as folder:
            accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=folder)
            accelerator.init_trackers("job")
            write_with(accelerator)({"gradtune/step_ms": 12.5}, 3)
            accelerator.end_training()
            events = EventAccumulator(str(Path(folder) / "job"))
            events.Reload()
            self.assertEqual([(e.step, e.value) for e in events.Scalars("gradtune/step_ms")], [(3, 12.5)])

    def test_no_framework_is_imported(self) -> None:
        code = "import sys, gradtune; print([m for m in ('transformers', 'lightning', 'wandb') if m in sys.modules])"
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(ran.stdout.strip(), "[]", ran.stderr)


# --- the module logging ----------------------------------------------------------------------------------------------


def with_logging(way: str) -> list[Any]:
    """Lines that a handler gets, and what goes to stderr."""
    records: list[logging.LogRecord] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    root, ours = logging.getLogger(), logging.getLogger("gradtune")
    if way == "root":
        root.addHandler(Handler())
        root.setLevel(logging.INFO)
    elif way == "gradtune":
        ours.addHandler(Handler(logging.INFO))
        ours.setLevel(logging.INFO)
    elif way == "silent":
        root.addHandler(Handler())
        ours.setLevel(logging.ERROR)
    elif way == "default level":
        root.addHandler(Handler())
    stderr, sys.stderr = sys.stderr, io.StringIO()
    try:
        model, optimizer = wrapped(tuning_budget=10)
        train(model, optimizer, 4)
        optimizer.close()
        printed = sys.stderr.getvalue()
    finally:
        sys.stderr = stderr
    lines = [record.getMessage() for record in records if record.name == "gradtune"]
    return [lines, printed, sorted({record.levelname for record in records if record.name == "gradtune"})]


class Logging(unittest.TestCase):
    def told(self, way: str) -> tuple[list[str], str, list[str]]:
        lines, printed, levels = ranks.must_run(with_logging, arguments=[way])[0]
        return lines, printed, levels

    def test_lines_go_to_a_handler_of_the_program(self) -> None:
        for way in ("root", "gradtune"):
            lines, printed, levels = self.told(way)
            self.assertTrue(lines[0].startswith("fidelity half"), lines)
            self.assertTrue(all("\n" not in line and not line.startswith("gradtune") for line in lines), lines)
            self.assertEqual(levels, ["INFO"])
            self.assertNotIn("gradtune:", printed)

    def test_a_level_of_the_logger_is_obeyed(self) -> None:
        lines, printed, _ = self.told("silent")
        self.assertEqual(lines, [])
        self.assertNotIn("gradtune:", printed)

    def test_lines_go_to_stderr_otherwise(self) -> None:
        for way in ("nothing", "default level"):
            lines, printed, _ = self.told(way)
            self.assertEqual(lines, [], way)
            self.assertTrue(printed.startswith("gradtune: fidelity half"), printed)


# --- profilers -------------------------------------------------------------------------------------------------------


def profiled(folder: str) -> list[dict[str, Any]]:
    """The spans of buckets, and of the backward passes that they are in."""
    import json

    import torch
    import torch.distributed as dist

    model, optimizer = wrapped(quiet=True, tuning_budget=0)
    train(model, optimizer, 2)
    with torch.profiler.profile() as profile:
        train(model, optimizer, 3)
    path = Path(folder) / f"{dist.get_rank()}.json"
    profile.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    optimizer.close()
    names = ("gradtune::bucket", "gradtune::finish_backward", "gradtune::gradient_ready")
    return [
        {"name": each["name"], "begin": each["ts"], "us": each["dur"]}
        for each in events
        if str(each.get("name", "")).startswith(names) and "dur" in each
    ]


class Profiler(unittest.TestCase):
    def test_each_bucket_has_a_span(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for spans in ranks.must_run(profiled, arguments=[folder]):
                buckets = [each for each in spans if each["name"] == "gradtune::bucket 0 (none)"]
                self.assertEqual(len(buckets), 3, spans)
                ends = sorted(
                    each["begin"] + each["us"] for each in spans if each["name"] == "gradtune::finish_backward"
                )
                begins = sorted(each["begin"] for each in spans if each["name"] == "gradtune::gradient_ready")
                for number, bucket in enumerate(sorted(buckets, key=lambda each: each["begin"])):
                    # Clocks are compared at the end of the pass, to microseconds.
                    self.assertGreater(bucket["us"], 0)
                    self.assertGreaterEqual(bucket["begin"], begins[4 * number] - 200, spans)
                    self.assertLessEqual(bucket["begin"] + bucket["us"], ends[number] + 200, spans)


# --- callbacks -------------------------------------------------------------------------------------------------------


def under_trainer(folder: str) -> dict[str, Any]:
    import gradtune.for_transformers
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = new_model()

        def forward(self, inputs: Any, labels: Any) -> Any:
            logits = self.layers(inputs)
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    seen: list[dict[str, float]] = []

    class Tracker(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
            seen.append(dict(logs))

    data = [{"inputs": torch.randn(8), "labels": i % 4} for i in range(128)]
    arguments = TrainingArguments(
        folder,
        use_cpu=True,
        max_steps=6,
        per_device_train_batch_size=4,
        eval_strategy="steps",
        eval_steps=4,
        logging_steps=2,
        save_strategy="no",
        report_to=["tensorboard"] if has("tensorboard") else [],
        ddp_backend="gloo",
        disable_tqdm=True,
    )
    trainer = Trainer(Model(), arguments, train_dataset=data, eval_dataset=data[:8], callbacks=[Tracker()])
    gradtune.for_transformers.attach(trainer, quiet=True, tuning_budget=0)
    told: dict[str, Any] = {"twice": "", "wrong": ""}
    for case, options in (("twice", {}), ("wrong", {"fidelty": "half"})):
        try:
            gradtune.for_transformers.attach(trainer, **options)
        except (gradtune.Error, TypeError) as error:
            told[case] = str(error)
    trainer.train()
    told["ddp"] = isinstance(trainer.model_wrapped, torch.nn.parallel.DistributedDataParallel)
    told["logs"] = seen
    total = torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
    told["alike"] = torch.equal(*trainer.accelerator.gather(total[None]).unbind())
    told["steps"] = trainer.optimizer.optimizer.progress().step
    return told


def under_lightning() -> dict[str, Any]:
    import gradtune.for_lightning
    import lightning
    import torch
    from lightning.pytorch.loggers import Logger
    from torch.utils.data import DataLoader, TensorDataset

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = new_model()

        def training_step(self, batch: Any, _: int) -> Any:
            return torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

        def validation_step(self, batch: Any, _: int) -> Any:
            self.log("loss", self.training_step(batch, 0))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    class Memory(Logger):
        def __init__(self) -> None:
            super().__init__()
            self.logged: list[tuple[int, dict[str, float]]] = []

        name, version = "memory", 0

        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            self.logged.append((step or 0, dict(metrics)))

        def log_hyperparams(self, *_args: Any, **_more: Any) -> None: ...

    def trainer_with(strategy: str, devices: int, memory: Any) -> Any:
        return lightning.Trainer(
            accelerator="cpu",
            devices=devices,
            strategy=strategy,
            max_steps=8,
            val_check_interval=4,
            log_every_n_steps=2,
            logger=memory,
            callbacks=[gradtune.for_lightning.GradtuneCallback(quiet=True, tuning_budget=0)],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )

    data = DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(4, (64,))), batch_size=4)
    memory, module = Memory(), Module()
    trainer = trainer_with("ddp", 2, memory)
    trainer.fit(module, data, data)
    total = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    told: dict[str, Any] = {"alike": torch.equal(*trainer.strategy.all_gather(total).unbind())}
    told["ddp"] = isinstance(trainer.strategy.model, torch.nn.parallel.DistributedDataParallel)
    told["steps"] = trainer.optimizers[0].progress().step
    told["logged"] = [(step, sorted(values)) for step, values in memory.logged if "gradtune/step_ms" in values]
    return told


def alone_under_lightning() -> str:
    """One device needs no strategy."""
    import gradtune.for_lightning
    import lightning
    import torch

    class Module(lightning.LightningModule):
        def training_step(self, batch: Any, _: int) -> None: ...

        def configure_optimizers(self) -> None: ...

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=1,
        logger=False,
        callbacks=[gradtune.for_lightning.GradtuneCallback()],
        enable_checkpointing=False,
    )
    try:
        trainer.fit(Module(), torch.utils.data.DataLoader([1]))
    except gradtune.Error as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


class Callbacks(unittest.TestCase):
    @unittest.skipUnless(has("transformers"), "transformers is not installed")
    def test_trainer(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for told in ranks.must_run(under_trainer, arguments=[folder]):
                self.assertFalse(told["ddp"])
                self.assertTrue(told["alike"])
                self.assertEqual(told["steps"], 6)
                losses = [logs for logs in told["logs"] if "loss" in logs]
                self.assertEqual(len(losses), 3, told["logs"])
                for logs in losses:
                    self.assertLess({f"gradtune/{name}" for name in ALWAYS}, set(logs))
                self.assertIn("attached already", told["twice"])
                self.assertIn("did you mean fidelity?", told["wrong"])
            if has("tensorboard"):
                self.assertTrue(list(Path(folder).rglob("events.out.tfevents.*")))

    @unittest.skipUnless(has("lightning"), "lightning is not installed")
    def test_lightning(self) -> None:
        rank0, rank1 = ranks.must_run(under_lightning)
        for told in (rank0, rank1):
            self.assertTrue(told["alike"])
            self.assertFalse(told["ddp"])
            self.assertEqual(told["steps"], 8)
        self.assertEqual([step for step, _ in rank0["logged"]], [2, 4, 6, 8])
        for _, names in rank0["logged"]:
            self.assertEqual(set(names), {f"gradtune/{name}" for name in ALWAYS})

    @unittest.skipUnless(has("lightning"), "lightning is not installed")
    def test_lightning_on_one_device_is_refused(self) -> None:
        self.assertIn('SingleDeviceStrategy; allowed is strategy="ddp"', ranks.must_run(alone_under_lightning, 1)[0])


if __name__ == "__main__":
    ranks.main()
