# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The values that a wrapped optimizer reports to a program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """The state of tuning. Times are in ms, for the previous step on this rank."""

    step: int
    """Steps done."""
    epoch: int
    """Number of the strategy in force, the same on all ranks."""
    stage: str
    """observe, partition, race, confirm, watch, audit or imported; "follow" on ranks but 0."""
    strategy: str
    """In force, for people."""
    nonfinite_steps: int
    """Steps in which some rank met a NaN or Inf."""
    step_ms: float
    encode_ms: float
    decode_ms: float
    wait_ms: float
    """Of encode, decode and wait: on the thread that runs backward."""


@dataclass(frozen=True)
class Result:
    """The result of tuning, the same on all ranks. Times in ms, maximum over ranks; gain = 1 - committed / baseline."""

    decided: bool
    committed: bool
    baseline_ms: float
    committed_ms: float | None
    predicted_ms: float | None
    """Of what was committed, where the policy has a model."""
    gain: float
    gain_low: float
    gain_high: float
    """The lower bound decided: above 0 where a strategy is committed, and too high with a probability of 4 %. The upper
    one is too low with a probability of 2.5 %."""
    steps: int
    """Of tuning, audits and further tunings included."""
    cost_ms: float
    """Sum of max(0, step - baseline) in these."""
    cost_share: float
    """The same as a share of 2,000 steps of the baseline."""
    first_commit: int | None
    """Steps before the first committed strategy came into force."""
    story: str
    """How the job stands and what led to it, in the words of the line that rank 0 prints when something is decided."""
    strategy: str
    """Label of what is committed; before that of what the job began with, or of the baseline."""
    description: str
    """Its buckets, for people."""
    fidelity: str

    def __str__(self) -> str:
        """The decision and its reasons, in a few lines."""
        lines = [f"gradtune: {self.story}"]
        if self.committed and self.predicted_ms is not None:
            lines.append(f"predicted: {self.predicted_ms:.1f} ms a step")
        lines.append(f"fidelity {self.fidelity}; {self.description}")
        return "\n".join(lines)
