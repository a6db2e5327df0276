# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tests that each optimizer that people use trains to the bits of DistributedDataParallel and keeps its class, or is
refused with advice. The scenarios are in optimizers.py."""

from __future__ import annotations

import importlib.util
import unittest
from typing import Any

import ranks

PACKAGES = ("pytorch_optimizer", "schedulefree")


def all_optimizers() -> dict[str, Any]:
    import traceback

    import torch
    import torch.distributed as dist

    import optimizers
    import scenarios

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    results: dict[str, Any] = {}
    for name, scenario in optimizers.scenarios().items():
        try:
            results[name] = scenarios.compare(scenario)
        except Exception:  # in one scenario; the others continue if they can
            results[name] = {"error": traceback.format_exc()[-1500:]}
    ranks.leave_group()
    return results


class Optimizers(unittest.TestCase):
    def test_each_comes_to_the_bits_of_ddp(self) -> None:
        results = ranks.must_run(all_optimizers, limit_s=400)
        has_packages = all(importlib.util.find_spec(package) for package in PACKAGES)
        expected = 23 + ("Muon and AdamW" in results[0]) + (12 if has_packages else 0)  # older versions of torch have no Muon
        self.assertGreaterEqual(len(results[0]), expected)
        for name in results[0]:
            for rank, of_rank in enumerate(results):
                with self.subTest(optimizer=name, rank=rank):
                    result = of_rank[name]
                    self.assertNotIn("error", result, result.get("error"))
                    self.assertEqual(result["difference"], 0, "to DDP")
                    self.assertEqual(result["between_ranks"], 0)
                    self.assertEqual(result["facts"], result["facts_of_ddp"], "its class, state, copies")
                    self.assertGreater(result["moved"], 0, "nothing was trained")


if __name__ == "__main__":
    ranks.main()
