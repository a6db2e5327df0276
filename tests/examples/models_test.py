#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Each model of the examples learns, on two ranks: models_test.py TRAIN_FASHION_MNIST TRAIN_TEXT TRAIN_SYNTHETIC"""

import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import unittest

PROGRAMS = sys.argv[1:4]


def train(folder, program, *flags):
    """The report of rank 0. If a rank fails, its output is shown."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    report = folder / "report.json"
    places = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
              "OMP_NUM_THREADS": "1", "GRADTUNE_QUIET": "1", "GRADTUNE_TUNING_BUDGET": "0"}
    command = [program, "--no-eval", "--report", report, *flags]
    ranks = [subprocess.Popen(command, env=dict(os.environ, **places, RANK=str(rank), LOCAL_RANK=str(rank)),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(2)]
    try:
        said = [rank.communicate(timeout=100)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for rank, text in zip(ranks, said):
        if rank.returncode != 0:
            raise AssertionError(f"{program} ended with code {rank.returncode}:\n{text}")
    return json.loads(report.read_text(encoding="utf-8"))


class Models(unittest.TestCase):
    def assert_learns(self, program, *flags):
        with tempfile.TemporaryDirectory() as folder:
            report = train(pathlib.Path(folder), program, *flags)
        losses = [step["loss"] for step in report["steps"]]
        self.assertEqual(2, report["world_size"])
        self.assertLess(statistics.mean(losses[-5:]), 0.8 * statistics.mean(losses[:3]), losses)

    def test_of_images(self):
        for model in ("resnet", "mlp-small"):
            with self.subTest(model):
                self.assert_learns(PROGRAMS[0], "--model", model, "--steps", "30", "--batch", "32")

    def test_a_rate_that_falls(self):
        with tempfile.TemporaryDirectory() as folder:
            flags = ["--model", "mlp-small", "--batch", "16", "--rate", "0.1"]
            kept, fallen = (train(pathlib.Path(folder), PROGRAMS[0], *flags, "--steps", "8", *more)["steps"]
                            for more in ([], ["--decay"]))
        self.assertEqual(kept[1]["loss"], fallen[1]["loss"], "the first step has the whole rate")
        self.assertNotEqual(kept[7]["loss"], fallen[7]["loss"])

    def test_of_texts(self):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder) / "text"
            text.write_text("".join(f"{n} times {n} is {n * n}.\n" for n in range(2000)), encoding="ascii")
            for model in ("transformer", "lstm"):
                with self.subTest(model):
                    self.assert_learns(PROGRAMS[1], "--model", model, "--steps", "60", "--batch", "8", "--text", text)

    def test_of_random_data(self):
        for model, flags in (("tiny", ["--length", "16", "--batch", "2"]), ("resnet50", ["--batch", "1"])):
            with self.subTest(model), tempfile.TemporaryDirectory() as folder:
                report = train(pathlib.Path(folder), PROGRAMS[2], "--model", model, "--steps", "3", *flags)
                self.assertEqual(3, len(report["steps"]))
                self.assertTrue(all(0 < step["loss"] < 20 for step in report["steps"]), report["steps"])

    def test_devices_that_are_not_there_are_errors_that_name_the_flag(self):
        for device, said in (("cuda:77", '--device is "cuda:77"'), ("meta", "allowed are cpu, cuda and cuda:N")):
            ended = subprocess.run([PROGRAMS[2], "--device", device], capture_output=True, text=True, check=False, timeout=60)
            self.assertEqual(1, ended.returncode)
            self.assertIn(said, ended.stderr)

    def test_unknown_ones_are_errors_that_list_the_known_ones(self):
        images = "vgg, resnet, mlp-small, large-first, large-last and transformer"
        known_ones = (images, "transformer and lstm", "gpt2, resnet50 and tiny")
        for program, known, flags in zip(PROGRAMS, known_ones, ([], ["--text", __file__], [])):
            ended = subprocess.run([program, "--model", "perceptron", *flags], capture_output=True, text=True, check=False,
                                   timeout=60)
            self.assertEqual(1, ended.returncode)
            self.assertIn(f'model "perceptron" is unknown; known are {known}', ended.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
