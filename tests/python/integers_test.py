# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tests integer options: Python's integers have no bounds, those of C++ do."""

from __future__ import annotations

import unittest
from typing import get_type_hints

import ranks

# The largest value of each integer option.
MOST = {
    "lossy_after": 2**40,
    "tuning_budget": 2**40,
    "memory_budget": 2**40,
    "host_threads": 1024,
    "seed": 2**63 - 1,
}


def beyond() -> dict[str, list[str]]:
    """Integers that are too large or too small, by the least and by the most possible."""
    import gradtune
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = torch.nn.Linear(8, 4)

    def refusal(name: str, value: int) -> str:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        try:
            gradtune.wrap(optimizer, model, quiet=True, timeout=30, **{name: value})  # type: ignore[call-overload]
        except gradtune.Error as error:
            return str(error)
        return "no error"

    return {name: [refusal(name, value) for value in (most + 1, 2**64, -1, -(2**70))] for name, most in MOST.items()}


class Integers(unittest.TestCase):
    def test_integers_out_of_range_are_refused_by_name_whoever_finds_them(self) -> None:
        from gradtune._options import Options

        self.assertEqual(set(MOST), {name for name, kind in get_type_hints(Options).items() if kind == int | None})
        for told in ranks.must_run(beyond):
            for name, most in MOST.items():
                for value, said in zip((most + 1, 2**64, -1, -(2**70)), told[name], strict=True):
                    self.assertIn(
                        f'gradtune: option {name} (argument) is "{value}": allowed is a whole number', said
                    )
                    self.assertTrue(said.endswith(f" from 0 to {most}"), said)


if __name__ == "__main__":
    ranks.main()
