#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""examples/demo: what its ranks are told, and that what it says of a decision is all of that decision."""

import contextlib
import importlib.machinery
import importlib.util
import io
import os
import pathlib
import unittest
from unittest import mock

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def load_demo():
    loader = importlib.machinery.SourceFileLoader("demo", str(EXAMPLES / "demo"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("demo", loader))
    loader.exec_module(module)
    return module


DEMO = load_demo()


def report(committed_ms, first_commit):
    committed = committed_ms is not None
    return {
        "network": "none", "baseline_ms": 100.0, "committed_ms": committed_ms, "accuracy": 80.0,
        "gain": 0.3 if committed else None, "interval": [0.2, 0.4] if committed else None,
        "strategy": {"label": "the label", "description": ""}, "steps": [{"loss": 1.0, "stage": "watch"}],
        "tuning": {"steps": 9, "cost_ms": 1.0, "cost_share": 0.01, "first_commit": first_commit},
    }


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
    def test_of_a_commit(self):
        text = summary_of(committed_ms=70.0, first_commit=120)
        self.assertIn("100.0 -> 70.0 ms a step, gain 30.0%", text)
        self.assertIn("tuning: committed after 120 steps;", text)

    def test_of_a_baseline_that_stays(self):
        text = summary_of(committed_ms=None, first_commit=None)
        self.assertIn("baseline stays: 100.0 ms a step", text)
        self.assertIn("tuning: nothing was committed;", text)

    def test_of_a_commit_that_was_dropped(self):
        text = summary_of(committed_ms=None, first_commit=120)
        self.assertIn("baseline stays", text)
        self.assertIn("first committed after 120 steps, dropped since;", text)


if __name__ == "__main__":
    unittest.main()
