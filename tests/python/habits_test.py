# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tests programs with users' habits (habits.py): one call of gradtune replaces each `model = DDP(model)`. All train
to the bits of DistributedDataParallel, and none needs a second change. examples_test.py has those of frameworks."""

from __future__ import annotations

import re
import unittest
from typing import Any

import ranks

# Programs that use something that a device does not have (devices.py).
NOT_ON_ANY_DEVICE = {"with_workers": "a process that was forked from one that uses it"}
NOT_ON = {
    "cpu": {},
    "cuda": NOT_ON_ANY_DEVICE,
    "fake": {
        "word_model": "the cell of an LSTM as one operator",
        "character_model": "the cell of a GRU as one operator",
        "speech": "the cell of a GRU as one operator",
        **NOT_ON_ANY_DEVICE,
    },
}[ranks.DEVICE]

LINE = re.compile(r"^( +)(\w+) = DDP\(\2[^)]*\)(?:  # (\w+))?$", re.MULTILINE)


def with_gradtune(source: str) -> str:
    """Replaces DDP's line; a comment behind it names the optimizer if it has another name."""

    def replaced(match: re.Match[str]) -> str:
        name = match.group(3) or "optimizer"
        return f"{match.group(1)}{name} = gradtune.wrap({name}, {match.group(2)})"

    text, count = LINE.subn(replaced, source)
    assert count >= 1, source
    return text


def all_programs(*only: str) -> dict[str, Any]:
    """All of them, or those with these names."""
    import inspect
    import os
    import traceback

    import gradtune
    import torch
    import torch.distributed as dist

    import habits

    os.environ.update(GRADTUNE_FIDELITY="exact", GRADTUNE_QUIET="1", GRADTUNE_TUNING_BUDGET="0", GRADTUNE_TIMEOUT="60")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    results: dict[str, Any] = {}
    for program in habits.PROGRAMS:
        if only and program.__name__ not in only:
            continue
        if program.__name__ in NOT_ON:
            continue
        try:
            trained = []
            for source in (inspect.getsource(program), with_gradtune(inspect.getsource(program))):
                names = {**vars(habits), "gradtune": gradtune}
                exec(source, names)
                torch.manual_seed(7)
                model = names[program.__name__]()
                # At the end DDP's running statistics are rank 0's only on rank 0: it sends them before a forward
                # pass.
                trained.append(model.state_dict() if dist.get_rank() == 0 else dict(model.named_parameters()))
            theirs, ours = (list(state.values()) for state in trained)
            assert len(theirs) == len(ours)
            results[program.__name__] = max(
                float((a.double() - b.double()).abs().max()) for a, b in zip(theirs, ours, strict=True)
            )
        except Exception:
            results[program.__name__] = traceback.format_exc()[-1500:]
    ranks.leave_group()
    return results


class Habits(unittest.TestCase):
    def test_one_line_is_enough(self) -> None:
        results = ranks.must_run(all_programs, 2, limit_s=600)
        self.assertGreaterEqual(len(results[0]), 28 - len(NOT_ON))
        for rank, of_rank in enumerate(results):
            for name, difference in of_rank.items():
                with self.subTest(program=name, rank=rank):
                    self.assertEqual(difference, 0)


if __name__ == "__main__":
    ranks.main()
