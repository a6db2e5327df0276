#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tests examples/demo: the environment of its ranks, and that it prints the whole decision."""

import contextlib
import importlib.machinery
import importlib.util
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def load_demo():
    loader = importlib.machinery.SourceFileLoader("demo", str(EXAMPLES / "demo"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("demo", loader))
    loader.exec_module(module)
    return module


DEMO = load_demo()


STORY = "committed bf16, 8 buckets: 100.0 -> 70.0 ms a step, gain 30.0 % (at least 20.0 % with 96 % confidence), baseline fp32"


def report(**more):
    return {"network": "none", "accuracy": 80.0, "story": STORY, "steps": [{"loss": 1.0, "stage": "watch"}], **more}


def summary_of(**of_decision):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        DEMO.summary("title", report(**of_decision), {})
    return text.getvalue()


class Variables(unittest.TestCase):
    def test_c10d_warns_of_nothing_unless_the_user_asks(self):
        with mock.patch.dict(os.environ):
            os.environ.pop("TORCH_CPP_LOG_LEVEL", None)
            self.assertEqual(DEMO.variables(RANK="1")["TORCH_CPP_LOG_LEVEL"], "ERROR")
            os.environ["TORCH_CPP_LOG_LEVEL"] = "INFO"
            self.assertEqual(DEMO.variables(RANK="1")["TORCH_CPP_LOG_LEVEL"], "INFO")
            self.assertEqual(DEMO.variables(RANK="1")["RANK"], "1")


class Summary(unittest.TestCase):
    def test_has_the_words_of_the_job_itself(self):
        self.assertIn(f"\n  {STORY}\n", summary_of())
        dropped = "sparse was dropped in step 288: its residual runs away (bucket 3: 12, allowed 10); fp32 runs instead"
        self.assertIn(f"\n  {dropped}\n", summary_of(story=dropped))

    def test_compares_only_steps_that_took_turns(self):
        parts = {"compute_ms": 9.0, "encode_ms": 1.0, "decode_ms": 1.0, "wait_ms": 50.0, "step_ms": 61.0}
        text = summary_of(profile={"before": parts, "imported": parts})
        self.assertNotIn("time went", text)
        text = summary_of(profile={"baseline": parts, "committed": {**parts, "wait_ms": 20.0, "step_ms": 31.0}})
        self.assertRegex(text, r"step +61\.0 +31\.0\n")


# Replaces the training program: it leaves the files of a run.
TRAINS = """#!{python}
import json, shutil, sys
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
shutil.copy({journal!r}, flags["--journal"])
json.dump({report!r}, open(flags["--report"], "w"))
"""
# Replaces the program that makes pages.
REPORTS = """#!{python}
import sys
open(sys.argv[sys.argv.index("-o") + 1], "w").write("page of " + sys.argv[2])
"""


class Runs(unittest.TestCase):
    def test_names_its_pages_in_the_last_line(self):
        with tempfile.TemporaryDirectory() as name:
            build = pathlib.Path(name)
            (build / "examples").mkdir()
            for path, program in [(build / "examples" / "train_fashion_mnist", TRAINS), (build / "gradtune", REPORTS)]:
                path.write_text(program.format(python=sys.executable, journal=__file__, report=report()))
                path.chmod(0o755)
            text = io.StringIO()

            def plain(_rate, command):
                return subprocess.run(command, check=False).returncode

            with mock.patch.object(DEMO, "on_shaped_links", plain), mock.patch.object(sys, "argv", ["demo", name]), \
                    contextlib.redirect_stdout(text):
                DEMO.main()
            lines = text.getvalue().splitlines()
            self.assertEqual([line.split(":")[0] for line in lines if line.startswith("== ")], ["== 1 of 2", "== 2 of 2"])
            for rate in ("1gbit", "200mbit"):
                page = build.resolve() / "demo" / rate / "report.html"
                self.assertIn(str(page), lines[-1])
                self.assertIn("journal.jsonl", page.read_text())


if __name__ == "__main__":
    unittest.main()
