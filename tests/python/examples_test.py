# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the training programs of examples/python, on two ranks under torchrun. Programs of a framework that is not
installed are left out."""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path

import ranks

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"

NO_NETWORK = 4  # exit code of examples/cluster


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs ranks of one thread each; output and errors come together."""
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=280,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ends the process behind the block."""
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def torchrun(size: int, script: str, *arguments: str) -> str:
    """The printed text, output and errors together."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size)]
    command += ["--master-port", str(ranks.free_port()), str(EXAMPLES / script), *arguments]
    ran = run(command)
    if ran.returncode != 0:
        raise AssertionError(f"{script} ended with {ran.returncode}:\n{ran.stdout}")
    return ran.stdout


# It follows the recipe of with_lightning.py.
GAN = '''
class Gan(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 6))
        self.discriminator = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.LeakyReLU(), torch.nn.Linear(16, 1))

    def training_step(self, batch, index):
        of_generator, of_discriminator = self.optimizers()
        noise = torch.randn(8, 4)
        if index % 2 == 0:
            self.toggle_optimizer(of_generator)
            of_generator.zero_grad()
            self.manual_backward(-self.discriminator(self.generator(noise)).sigmoid().mean())
            of_generator.step()
            self.untoggle_optimizer(of_generator)
        self.toggle_optimizer(of_discriminator)
        of_discriminator.zero_grad()
        made = self.discriminator(self.generator(noise).detach())
        self.manual_backward((made.sigmoid() - self.discriminator(batch[0]).sigmoid()).mean())
        of_discriminator.step()
        self.untoggle_optimizer(of_discriminator)

    def configure_optimizers(self):
        return [torch.optim.Adam(half.parameters(), 1e-2) for half in (self.generator, self.discriminator)]


torch.manual_seed(0)
data = TensorDataset(torch.randn(160, 6))
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy=DDPStrategy(process_group_backend="gloo"),
    callbacks=[gradtune.for_lightning.GradtuneCallback()],
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
module = Gan()
trainer.fit(module, DataLoader(data, batch_size=8))
values = torch.cat([value.detach().float().flatten() for value in module.state_dict().values()])
assert torch.equal(*trainer.strategy.all_gather(values).unbind()), "ranks drifted apart"
print(f"ranks are alike after {trainer.optimizers[0].progress().step} steps", flush=True)
'''


# Rank 1 of group 1 dies in its 40th update, the first time that the group runs. Group 0 is slow while group 1 is not there.
KILLED_ONCE = """
import os, runpy, signal, socket, sys, time
from pathlib import Path
from torch.optim.optimizer import register_optimizer_step_pre_hook
folder, group, rank = Path(os.environ["FOLDER"]), os.environ["GROUP"], os.environ["RANK"]
here, killed, returned = folder / "here", folder / "killed", folder / "returned"
is_back = group == "1" and killed.exists()
updates = 0
def count(*_):
    global updates
    updates += 1
    if group == "1" and updates == 3:
        (returned if is_back else here).touch()
    elif group == "1" and rank == "1" and updates == 40 and not is_back:
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    elif group == "0" and (not here.exists() or (killed.exists() and not returned.exists())):
        time.sleep(0.2)
register_optimizer_step_pre_hook(count)
sys.argv = sys.argv[1:]
socket.gethostname = lambda: "localhost"  # torchft's groups find each other by it, and not every machine's name resolves
runpy.run_path(sys.argv[0], run_name="__main__")
"""

# accelerate shards on a machine with several GPUs alone; here it is told of one, with tensors on the CPU.
ON_CPU = '''
import runpy, sys
import accelerate.state as state
made = state.PartialState.__init__
def init(self, *args, **options):
    made(self, *args, **options)
    if self.distributed_type == state.DistributedType.MULTI_CPU:
        self.distributed_type = state.DistributedType.MULTI_GPU
state.PartialState.__init__ = init
runpy.run_path(sys.argv[1], run_name="__main__")
'''


def accuracies(output: str) -> dict[int, float]:
    return {int(epoch): float(right) for epoch, right in re.findall(r"epoch (\d+): accuracy ([\d.]+) %", output)}


class Examples(unittest.TestCase):
    def test_train_with_and_without_gradtune(self) -> None:
        ours = torchrun(2, "train.py", "--epochs", "2", "--fidelity", "exact", "--accumulate", "2")
        ddp = torchrun(2, "train.py", "--epochs", "2", "--no-gradtune", "--accumulate", "2")
        self.assertEqual(set(accuracies(ours)), {0, 1})
        self.assertGreater(accuracies(ours)[1], 90)
        self.assertEqual(accuracies(ours), accuracies(ddp))
        self.assertIn("fidelity exact", ours)
        self.assertNotIn("gradtune", ddp)

    def test_train_goes_on_from_a_checkpoint_on_another_number_of_ranks(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            torchrun(2, "train.py", "--epochs", "1", "--checkpoint", folder)
            output = torchrun(1, "train.py", "--epochs", "2", "--checkpoint", folder)
        self.assertEqual(set(accuracies(output)), {1})
        self.assertIn("gradtune: checkpoint of step 64 loaded", output)

    def recipe(self, package: str, script: str) -> None:
        if importlib.util.find_spec(package) is None:
            self.skipTest(f"{package} is not installed")
        text = (EXAMPLES / script).read_text()
        (recipe,) = re.findall(r"# --- the recipe.*?# ---$|^[^\n]*# the recipe", text, re.S | re.M)
        self.assertLessEqual(len(recipe.splitlines()), 6)
        self.assertIn("fidelity half", torchrun(2, script))

    def test_accelerate(self) -> None:
        self.recipe("accelerate", "with_accelerate.py")

    def between_replicas(self, *command: str) -> None:
        """Runs a program on two nodes of two ranks, with a network between them."""
        launcher = [sys.executable, str(EXAMPLES.parent / "cluster"), "--ranks-per-node", "2", "--rate", "1gbit", "--"]
        ran = run([*launcher, sys.executable, "-B", *command])
        if ran.returncode == NO_NETWORK:
            self.skipTest(ran.stdout)
        self.assertEqual(ran.returncode, 0, ran.stdout)
        self.assertEqual(ran.stdout.count("step 0: observing the baseline"), 1, ran.stdout)
        self.assertRegex(ran.stdout, r"unit 0 \(.*weight and \d more\)")

    def test_two_sites(self) -> None:
        printed = torchrun(2, "two_sites.py")
        self.assertRegex(printed, r"RoundProgress\(synchronous=False, rounds=\d+, updates=0")

    def test_in_torchft(self) -> None:
        """A rank of one of two replica groups is killed; its group comes back, and both end with equal parameters."""
        if importlib.util.find_spec("torchft") is None:
            self.skipTest("torchft is not installed")
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            killing = folder / "killing.py"
            killing.write_text(KILLED_ONCE)
            port = ranks.free_port()
            command = [str(Path(sys.executable).parent / "torchft_lighthouse"), "--min_replicas", "1"]
            command += ["--bind", f"[::]:{port}", "--join_timeout_ms", "1000"]

            def keep_running(group: str) -> list[str]:
                """The printed texts of a group that is started again when it fails, at most twice."""
                launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
                launcher += ["--master-port", str(ranks.free_port())]
                given = ["--steps", "300", "--strategy", str(folder / f"{group}.json")]
                told = {"GROUP": group, "FOLDER": name, "TORCHFT_LIGHTHOUSE": f"http://localhost:{port}"}
                printed = []
                for _ in range(3):
                    ran = run([*launcher, str(killing), str(EXAMPLES / "in_torchft.py"), *given], **told)
                    printed.append(ran.stdout)
                    if ran.returncode == 0:
                        return printed
                raise AssertionError("\n".join(printed))

            with ended(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)):
                with concurrent.futures.ThreadPoolExecutor() as threads:
                    stays, returns = threads.map(keep_running, ("0", "1"))
        self.assertEqual((len(stays), len(returns)), (1, 2))
        found = [re.findall(r"rank \d of group \d: (\S+) after 300 steps", text) for text in (stays[0], returns[1])]
        self.assertEqual([len(digests) for digests in found], [2, 2], (stays, returns))
        self.assertEqual(len({*found[0], *found[1]}), 1, found)

    def test_hsdp(self) -> None:
        self.between_replicas(str(EXAMPLES / "hsdp.py"))

    def test_hsdp_with_accelerate(self) -> None:
        if importlib.util.find_spec("accelerate") is None:
            self.skipTest("accelerate is not installed")
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "on_cpu.py"
            script.write_text(ON_CPU)
            self.between_replicas(str(script), str(EXAMPLES / "hsdp_with_accelerate.py"))

    def test_hsdp_with_lightning(self) -> None:
        if importlib.util.find_spec("lightning") is None:
            self.skipTest("lightning is not installed")
        self.between_replicas(str(EXAMPLES / "hsdp_with_lightning.py"))

    def test_trainer(self) -> None:
        self.recipe("transformers", "with_trainer.py")

    def test_lightning(self) -> None:
        self.recipe("lightning", "with_lightning.py")

    def test_lightning_with_a_gan(self) -> None:
        """The recipe also works for manual optimization of two halves, one of which steps less often."""
        if importlib.util.find_spec("lightning") is None:
            self.skipTest("lightning is not installed")
        head = (EXAMPLES / "with_lightning.py").read_text().split("\n\nclass Classifier")[0]
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "gan.py"
            script.write_text(head + GAN)
            output = torchrun(2, str(script))
        self.assertIn("ranks are alike after 15 steps", output)
        self.assertNotIn("Warning: gradtune", output)


if __name__ == "__main__":
    ranks.main()
