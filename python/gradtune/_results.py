# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""What a program can ask a wrapped optimizer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """Where tuning is. Times are of the step before, on this rank, in ms."""

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
    """What tuning showed; rank 0 knows it. Times in ms, the maximum over ranks; gain = 1 - committed / baseline."""

    decided: bool
    committed: bool
    baseline_ms: float
    committed_ms: float | None
    predicted_ms: float | None
    """Of what was committed, where the policy has a model."""
    gain: float
    gain_low: float
    gain_high: float
    """Two-sided 95 % interval."""
    steps: int
    """Of tuning, audits and further tunings included."""
    cost_ms: float
    """Sum of max(0, step - baseline) in these."""
    cost_share: float
    """The same as a share of 2,000 steps of the baseline."""
    first_commit: int | None
    """Steps before the first committed strategy came into force."""
    strategy: str
    """Label of what was committed, else of the baseline; on ranks but 0 of what is in force."""
    description: str
    """Its buckets, for people."""
    fidelity: str

    def __str__(self) -> str:
        """What was chosen and why, in a few lines."""
        if not self.decided:
            head = f"gradtune has not decided yet, after {self.steps} steps of tuning; in force: {self.strategy}"
        elif self.committed and self.committed_ms is not None:
            head = (
                f"gradtune chose {self.strategy}: {self.baseline_ms:.1f} -> {self.committed_ms:.1f} ms a step, "
                f"gain {100 * self.gain:.1f} % (95 % interval {100 * self.gain_low:.1f} to {100 * self.gain_high:.1f} %)"
            )
        else:
            head = f"gradtune stays with the baseline, {self.strategy}: nothing was confirmed to be faster"
        lines = [head]
        if self.committed and self.predicted_ms is not None:
            lines.append(f"predicted: {self.predicted_ms:.1f} ms a step")
        if self.decided:
            lines.append(
                f"tuning took {self.steps} steps and cost {self.cost_ms / 1e3:.1f} s "
                f"({100 * self.cost_share:.1f} % of 2000 steps of the baseline)"
            )
        lines.append(f"fidelity {self.fidelity}; {self.description}")
        return "\n".join(lines)
