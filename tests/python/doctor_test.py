# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tests `python -m gradtune doctor` and `--version`, with ranks on this machine and over an emulated link."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import ranks

ROOT = Path(__file__).resolve().parents[2]
GRADTUNE = [sys.executable, "-B", "-m", "gradtune"]
NO_NETWORK = 4  # exit code of examples/cluster


def run(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )


def predicted(output: str) -> dict[str, float]:
    """The predicted ms of a step by kind."""
    found = re.findall(r"^  (DDP fp32|DDP bf16|gradtune half|gradtune lossy) +([0-9.]+) ms", output, re.M)
    return {name: float(ms) for name, ms in found}


class Version(unittest.TestCase):
    def test_the_package_and_its_program_say_it(self) -> None:
        ran = run([*GRADTUNE, "--version"])
        self.assertRegex(ran.stdout, r"^gradtune \d+\.\d+\.\d+\n$")
        found = run([sys.executable, "-c", "from gradtune._program import program; print(program() or '')"])
        if found.stdout.strip():
            self.assertEqual(run([found.stdout.strip(), "--version"]).stdout, ran.stdout)


class Doctor(unittest.TestCase):
    def test_alone_it_says_what_is_there(self) -> None:
        ran = run([*GRADTUNE, "doctor"])
        self.assertEqual(ran.returncode, 0, ran.stderr)
        for start in ("gradtune ", "program gradtune: ", "backends of torch: gloo", "devices: ", "NCCL ", "interfaces: "):
            self.assertRegex(ran.stdout, rf"(?m)^{re.escape(start)}.+")
        self.assertIn("lo (127.0.0.1)", ran.stdout)
        self.assertIn("link: not probed", ran.stdout)

    def test_an_nccl_that_is_not_there_is_named(self) -> None:
        ran = run([*GRADTUNE, "doctor"], GRADTUNE_NCCL_LIBRARY="libnothing.so")
        self.assertIn("libnothing.so can not be loaded", ran.stdout)
        self.assertIn("GRADTUNE_NCCL_LIBRARY=libnothing.so", ran.stdout)

    def test_misuse_is_named(self) -> None:
        for words, text in (
            (["--parameters", "7"], "allowed is a number from 1000 to 1e12"),
            (["--parameters", "many"], "allowed is a number from 1000 to 1e12"),
            (["--compute-ms", "nan"], "allowed are milliseconds from 0"),
            (["--shapes", "64x0"], "allowed are shapes of positive sizes"),
            (["--shapes", "64x64,,2"], "allowed are shapes of positive sizes"),
            (["--shapes", "1000000x1000001"], "more than 1e12 parameters"),
            (["--shapes", "64x64", "--parameters", "2M"], "not allowed with argument"),
            (["--bogus"], "--bogus"),
        ):
            ran = run([*GRADTUNE, "doctor", *words])
            self.assertEqual(ran.returncode, 2, words)
            self.assertIn(text, ran.stderr)
        ran = run([*GRADTUNE, "doctor"], WORLD_SIZE="two")
        self.assertEqual(ran.returncode, 1)
        self.assertIn('WORLD_SIZE is "two"; allowed is a number', ran.stderr)

    def test_a_rank_that_does_not_come_is_an_error_in_time(self) -> None:
        ran = run([*GRADTUNE, "doctor"], **ranks.environment(0, 2, ranks.free_port()))
        self.assertEqual(ran.returncode, 1)
        self.assertRegex(ran.stderr, r"gradtune: doctor on rank 0: .*1/2 clients joined")

    def test_a_file_that_is_no_trace_is_named(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "other.json"
            trace.write_text("{}")
            ran = self.torchrun("--trace", str(trace))
        self.assertEqual(ran.returncode, 1)
        self.assertRegex(ran.stderr, r"doctor on rank 0: gradtune replay failed: \S*other\.json: .*tensors")

    def torchrun(self, *words: str) -> subprocess.CompletedProcess[str]:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        return run([*launcher, "--master-port", str(ranks.free_port()), "-m", "gradtune", "doctor", *words])

    def test_under_torchrun_rank_0_speaks(self) -> None:
        ran = self.torchrun("--parameters", "2M", "--compute-ms", "30")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(ran.stdout.count("link: 2 ranks over Gloo"), 1)
        self.assertRegex(ran.stdout, r"predicted steps of a model of 2\S* M parameters in 12 tensors, 30 ms of computation:")
        self.assertEqual(len(predicted(ran.stdout)), 4, ran.stdout)
        self.assertRegex(ran.stdout, r"all_reduce \(flat\) .* samples, median error \d+ %")
        for name, ms in predicted(ran.stdout).items():
            self.assertGreaterEqual(ms, 30, name)

    def test_predictions_follow_the_rate_of_the_link(self) -> None:
        cluster = [sys.executable, str(ROOT / "examples" / "cluster"), "--nodes", "2", "--ranks-per-node", "1"]
        ran = run([*cluster, "--rate", "200mbit", "--", *GRADTUNE, "doctor", "--parameters", "8.55M"])
        if ran.returncode == NO_NETWORK:
            self.skipTest(ran.stderr)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        ms = predicted(ran.stdout)
        on_the_wire = 8.55e6 * 4 / 25e6 * 1e3
        self.assertGreater(ms["DDP fp32"], 0.8 * on_the_wire)
        self.assertLess(ms["DDP fp32"], 1.6 * on_the_wire)  # a busy machine makes the link look slower
        self.assertLess(ms["DDP bf16"], 0.7 * ms["DDP fp32"])
        self.assertLessEqual(ms["gradtune half"], 1.05 * ms["DDP bf16"])
        self.assertLess(ms["gradtune lossy"], 0.6 * ms["gradtune half"])


if __name__ == "__main__":
    ranks.main()
