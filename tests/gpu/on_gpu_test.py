#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tests the summary of `./run gpu` for steps that pass, fail, hang, or are no programs; without a GPU."""
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from contextlib import redirect_stdout
from pathlib import Path

sys.dont_write_bytecode = True  # leave no __pycache__ in the source tree

import on_gpu  # noqa: E402

HANGS = [sys.executable, "-c", "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"]


class OnGpu(unittest.TestCase):
    def run_all(self, steps, seconds=100):
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()) as said:
            status = on_gpu.run_all(steps, Path(folder), seconds, dict(os.environ))
            summary = json.loads((Path(folder) / "summary.json").read_text(encoding="utf-8"))
            logs = {path.stem: path.read_text(encoding="utf-8") for path in Path(folder).glob("*.log")}
        return status, {name: step["ended"] for name, step in summary.items()}, logs, said.getvalue()

    def test_each_step_has_an_end_and_a_log(self):
        begin = time.monotonic()
        status, ended, logs, said = self.run_all([("good", 20, ["echo", "said this"]), ("bad", 20, ["false"]), ("hangs", 1, HANGS),
                                                  ("none", 20, ["/no/such/program"]), ("after", 20, ["true"]),
                                                  ("skips", 20, ["echo", "[  SKIPPED ] Cuda.Copies"])])
        self.assertEqual(1, status)
        self.assertEqual({"good": "passed", "bad": "failed with status 1", "hangs": "ran out of time after 1 s", "after": "passed",
                          "skips": "failed: a test was skipped"},
                         {name: end for name, end in ended.items() if name != "none"})
        self.assertIn("not run", ended["none"])
        self.assertEqual("said this\n", logs["good"])
        self.assertIn("2 of 6 passed; not: bad, hangs, none, skips", said)
        self.assertLess(time.monotonic() - begin, 30, "what hangs is killed with what it started")

    def test_where_all_pass_the_status_is_0(self):
        self.assertEqual(0, self.run_all([("good", 20, ["true"])])[0])

    def test_a_second_call_goes_on_where_the_first_was_cut_off(self):
        steps = [("good", 20, ["true"]), ("bad", 20, ["false"]), ("late", 20, ["true"])]
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()) as said:
            results = Path(folder)
            self.assertEqual(steps, on_gpu.wanted(steps, [], results))
            on_gpu.run_all(steps[:2], results, 100, dict(os.environ))
            self.assertEqual(steps[1:], on_gpu.wanted(steps, [], results))
            self.assertEqual(steps[:1], on_gpu.wanted(steps, ["good"], results))
            self.assertEqual(1, on_gpu.run_all(steps[1:], results, 100, dict(os.environ)))
        self.assertIn("2 of 3 passed; not: bad", said.getvalue())

    def test_what_comes_when_time_is_up_is_not_run(self):
        status, ended, _, _ = self.run_all([("slow", 20, ["sleep", "60"]), ("late", 20, ["true"])], seconds=0.5)
        self.assertEqual(1, status)
        self.assertIn("ran out of time", ended["slow"])
        self.assertEqual("not run: no time left", ended["late"])

    def test_sanitizers_look_at_a_compressor_of_every_source_of_kernels(self):
        sources = {path.stem for path in (on_gpu.ROOT / "engine" / "compress").glob("*/*.cu")}
        self.assertEqual(sources - {"device_compressor"}, set(on_gpu.SANITIZED))

    def test_unknown_steps_are_errors_that_list_the_known_ones(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, on_gpu.__file__, "--only", "nonsense", folder, folder], capture_output=True,
                                  text=True, check=False)
        self.assertEqual(2, done.returncode)
        self.assertIn("--only nonsense: there are machine, device, step_kernels, compressors", done.stderr)


if __name__ == "__main__":
    unittest.main()
