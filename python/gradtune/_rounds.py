# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Training in rounds, for ranks that are far apart.

Each rank updates its own parameters, and every few updates an exchange averages what they changed (Douillard et al.,
DiLoCo, 2023). gradtune chooses the number of updates in a round, and tunes the exchange.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import Unpack

from . import _gradtune
from ._checks import check_group, refuse
from ._errors import Error
from ._hooked import Wrap
from ._optimizer import Methods, methods_of, names_of
from ._options import Options, PathLike, as_given, with_options
from ._shards import TrainedShards, check_sites, is_sharded
from ._trained import Group, Named, Trained, to_be_ignored
from ._wrap import begin, check
from .replicas import is_replicated


@dataclass(frozen=True)
class RoundProgress:
    """The state of training in rounds."""

    synchronous: bool
    """Rounds have not begun: during the dense steps, and while an exchange at each step is cheap."""
    rounds: int
    """Rounds that ended."""
    updates: int
    """Updates since the last exchange of the round before began."""
    updates_a_round: int
    """Updates that the round under way will have."""
    delay: int
    """Updates during which each of its exchanges will be under way."""
    exchange_ms: float
    """An exchange of the last round on the slowest rank, with the part that updates hid; the mean over fragments."""
    update_ms: float
    """One update of the last round, on the slowest rank."""
    lost: int = 0
    """Rounds after which a parameter was NaN or infinite on some rank, so that all ranks went back."""


class _Plan(NamedTuple):
    """The options of rounds, in the extension's order."""

    most: int
    least: int
    delay: int | None
    fragments: int
    dense_steps: int
    outer_lr: float
    outer_momentum: float
    uneven: bool


class _Attached:
    """The same parameters for a second session, whose hooks are attached already."""

    def __init__(self, trained: Trained) -> None:
        self._trained = trained

    def check(self) -> None:
        """Does nothing, because the first session checked everything."""

    def identity(self) -> int:
        return self._trained.identity()

    def parameters(self) -> Named:
        return self._trained.parameters()

    def buffers(self) -> Named:
        return self._trained.buffers()

    def groups(self) -> list[Group]:
        return self._trained.groups()


class _RoundsWrap(Wrap):
    """A wrap whose session is synchronous at first, and exchanges in rounds from a step on that all ranks agree on."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        plan: _Plan,
        group: dist.ProcessGroup,
        kept: _KeptRound | None,
    ) -> None:
        super().__init__([optimizer], None, names_of(_RoundsMethods))
        self.dense_steps = 0
        self._plan = plan
        self._group = group
        self._kept = kept
        self._given: Mapping[str, Any] = {}

    @property
    def rounds(self) -> _gradtune.Rounds | None:
        """The session, if it is in rounds."""
        return self.session if isinstance(self.session, _gradtune.Rounds) else None

    def make_session(
        self, trained: Trained, group: dist.ProcessGroup, options: dict[str, Any]
    ) -> _gradtune.Session:
        self._given = options
        if self._plan.fragments > 1:  # the files are of fragments
            options = {**options, "strategy": "none"}
        session = super().make_session(trained, group, options)  # of the dense steps
        session.compare_rounds(self._plan)
        session.learn_round_length(self._plan)
        self.dense_steps = 0
        return session

    def begin_rounds(self, first: tuple[int, int]) -> _gradtune.Rounds:
        """Ends the synchronous session, and begins rounds of so many updates and that delay; all ranks call it."""
        self.session.close(None)
        # The dense steps are those that lossy compressors wait for.
        options = {"lossy_after": 0, **self._given}
        trained, plan = self._trained, self._plan
        self.session = session = _gradtune.Rounds(
            _Attached(trained), trained.count, self._group, options, plan, first
        )
        self.keep()
        return session

    def close(self, failure: str | None = None) -> None:
        if self.rounds is not None and failure is None and self.is_hooked:
            self.rounds.complete()
        super().close(failure)

    def end_round(self) -> bool:
        if self.rounds is None:
            return False
        with self._rescued():
            ended = self.rounds.end_round(lambda: self._exchanged(True))
        self._exchanged(False)  # exchanges that ended no round may have been lost
        return ended

    def save_checkpoint(self, path: str) -> None:
        self.end_round()
        if self.rounds is None:
            self.session.save_synchronous(path, self.dense_steps)
            return
        with self._rescued():
            self.session.save_checkpoint(path)

    def load_checkpoint(self, path: str) -> None:
        if self.rounds is not None:
            self.rounds.complete()
        first, dense_steps = self.session.saved_rounds(path, self._plan.fragments)
        if first[0] > 0 and self.rounds is None:
            self.begin_rounds(first)
        self.session.load_checkpoint(path)
        self.dense_steps = dense_steps
        self.keep()

    def restore(self, count: int, first: tuple[int, int], momenta: list[torch.Tensor]) -> None:
        self.session.check_outer_momenta(momenta)  # a job that refuses them stays as it is
        rounds = self.rounds or self.begin_rounds(first)
        rounds.restore(count, first, momenta)
        self.keep()

    def keep(self) -> None:
        """Called at the end of a round, or after another state was loaded."""
        if self._kept is not None:
            self._kept.keep(self)

    def _updated(self) -> None:
        if self.rounds is not None:
            self._exchanged(self.rounds.round_progress()["updates"] == 0)  # keep_round goes without a delay
            return
        self.dense_steps += 1
        first = self.session.round_shape()
        if self.dense_steps >= self._plan.dense_steps and first[0] > 1:
            self.begin_rounds(first)

    def _exchanged(self, has_ended: bool) -> None:
        """Called after each update and each end of a round."""
        if self.rounds is not None and self.rounds.take_lost_here():
            for optimizer in self.alive():
                _make_state_finite(optimizer)
        if has_ended:
            self.keep()

    def _after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        with self._rescued():
            super()._after(optimizer, args, kwargs)

    @contextlib.contextmanager
    def _rescued(self) -> Iterator[None]:
        """Writes the kept round if the body raises an error between ranks."""
        try:
            yield
        except Error as error:
            if self._kept is not None and self.rounds is not None and error.code in ("lost", "timeout", "peer"):
                self._kept.write()
            raise


class _ShardedRoundsWrap(_RoundsWrap):
    """A wrap of a model that FSDP2 shards in each site. It is in rounds from the first step on; the dense steps are
    rounds of one update."""

    kind_of_trained = TrainedShards

    def make_session(
        self, trained: Trained, group: dist.ProcessGroup, options: dict[str, Any]
    ) -> _gradtune.Session:
        speaks = 0 in dist.get_process_group_ranks(group)  # the group of one shard speaks for all
        given = options if speaks else {**options, "quiet": True}
        dense = self._plan._replace(most=1, least=1, delay=0)
        session = _gradtune.Rounds(trained, trained.count, group, given, dense, (1, 0))
        session.compare_rounds(self._plan)
        self._is_dense = True
        return session

    def load_checkpoint(self, path: str) -> None:
        super().load_checkpoint(path)
        self._leave_dense_rounds()

    def _exchanged(self, has_ended: bool) -> None:
        super()._exchanged(has_ended)
        self._leave_dense_rounds()

    def _leave_dense_rounds(self) -> None:
        rounds = self.rounds
        if self._is_dense and rounds is not None and rounds.round_progress()["rounds"] >= self._plan.dense_steps:
            self._is_dense = False
            rounds.allow(self._plan)


class _KeptRound:
    """The state of the end of the last round, in memory, and the file that gets it when another rank is lost."""

    def __init__(self, path: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._path = path
        self._model = weakref.ref(model)
        self._optimizer = weakref.ref(optimizer)
        self._state: dict[str, Any] | None = None

    def keep(self, wrap: _RoundsWrap) -> None:
        model, optimizer, rounds = self._model(), self._optimizer(), wrap.rounds
        if model is None or optimizer is None or rounds is None:
            return
        of_rounds = {"rounds": rounds.round_progress()["rounds"], "updates_a_round": rounds.shape()[0]}
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        self._state = copy.deepcopy({**state, "rounds": {**of_rounds, "momenta": rounds.outer_momenta()}})

    def write(self) -> None:
        """Writes the file. It says so if it can not, as the error of the lost rank matters more."""
        if self._state is None:
            return
        try:
            with tempfile.NamedTemporaryFile(dir=_folder_of(self._path), delete=False) as file:
                try:
                    torch.save(self._state, file)
                    file.flush()
                    os.fsync(file.fileno())
                    os.replace(file.name, self._path)
                except BaseException:
                    os.unlink(file.name)
                    raise
        except (OSError, RuntimeError) as error:
            print(f"gradtune: the state of the end of the last round is lost: {error}", file=sys.stderr, flush=True)
            return
        print(f"gradtune: the state of the end of the last round is in {self._path}", file=sys.stderr, flush=True)


def _make_state_finite(optimizer: torch.optim.Optimizer) -> None:
    """Sets what is not finite in the state to 0, as moments would stay so for ever; also in optimizers inside of it."""

    def mend(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            if value.is_floating_point():
                value.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        elif isinstance(value, Mapping):
            for each in value.values():
                mend(each)
        elif isinstance(value, (list, tuple)):
            for each in value:
                mend(each)

    with torch.no_grad():
        mend(optimizer.state)
    for inside in vars(optimizer).values():
        if isinstance(inside, torch.optim.Optimizer):
            _make_state_finite(inside)


def _folder_of(path: str) -> str:
    return os.path.dirname(os.path.abspath(path))


class _RoundsMethods(Methods):
    """The methods that rounds() adds to an optimizer."""

    _gradtune: _RoundsWrap

    def end_round(self) -> bool:
        """Ends the round with the updates that it has, so that all ranks have equal parameters.

        All ranks must call it, for instance before an evaluation or at the end, also if they made different numbers of
        updates. Returns False if there was nothing to exchange.
        """
        return self._gradtune.end_round()

    def round_progress(self) -> RoundProgress:
        """The current state of training in rounds."""
        rounds = self._gradtune.rounds
        if rounds is None:
            return RoundProgress(True, 0, 0, 1, 0, 0.0, 0.0)
        return RoundProgress(synchronous=False, **rounds.round_progress())

    def save_checkpoint(self, folder: PathLike) -> None:
        """Ends the round, and saves gradtune's own state, with the outer momentum; all ranks must call it.

        Save model and optimizer after it. A job of another world size can load it.
        """
        self._gradtune.save_checkpoint(os.fspath(folder))

    def load_checkpoint(self, folder: PathLike) -> None:
        """Loads a checkpoint of an equal model; all ranks must call it. Load model and optimizer before rounds().

        A job that loads a checkpoint of rounds goes on in rounds, without dense steps.
        """
        self._gradtune.load_checkpoint(os.fspath(folder))

    def load_round(self, state: Mapping[str, Any]) -> None:
        """Goes on from the end of a round; all ranks must call it, with the same state.

        `state` is the value "rounds" of the file that option keep_round named. Load its "model" and "optimizer" before
        the call of rounds(). The world size may be another one. Residuals of compression start at zero.
        """
        first = int(state["updates_a_round"]), 0
        self._gradtune.restore(int(state["rounds"]), first, list(state["momenta"]))


class RoundsOptimizer(_RoundsMethods, torch.optim.Optimizer):
    """The type of an optimizer that rounds() returned, for type checkers; the object keeps its own class."""


def _begin(wrap: Wrap, model: weakref.ref[torch.nn.Module], group: dist.ProcessGroup, options: dict[str, Any]) -> None:
    begin(wrap, [model], group, options, methods_of(wrap, _RoundsMethods))


def _check_kind(
    model: torch.nn.Module,
    group: dist.ProcessGroup | None,
    plan: _Plan,
    keep_round: PathLike | None,
    ignored: Sequence[str],
) -> None:
    """Raises Error for a kind of model that is not served, or not with this plan."""
    if isinstance(model, DistributedDataParallel) or is_replicated([model]):
        refuse(
            "rounds() takes the plain model; allowed is the module inside DistributedDataParallel, or a model that FSDP2 shards "
            "over a mesh of one dimension"
        )
    if keep_round is not None and (plan.delay, plan.fragments) != (0, 1):
        refuse(
            f"keep_round is {keep_round!r} with delay {plan.delay} and fragments {plan.fragments}; allowed is a delay of 0 and "
            "one fragment, with which ranks are equal when a round ends"
        )
    if keep_round is not None and not os.access(_folder_of(os.fspath(keep_round)), os.W_OK | os.X_OK):
        refuse(f"keep_round is {keep_round!r}; allowed is a file in a folder that exists and can be written to")
    if not is_sharded(model):
        return
    check_sites(model, group, ignored)
    if plan.least != plan.most or plan.delay is None:
        refuse(
            f"the model is sharded, with least {plan.least}, most {plan.most} and delay {plan.delay}; allowed is least equal "
            "to most and a fixed delay, as the groups of the shards would choose rounds of different lengths"
        )
    if plan.uneven:
        refuse("uneven was given for a sharded model; allowed is False, as the ranks of a site update together")
    if keep_round is not None:
        refuse("keep_round was given for a sharded model; allowed is save_checkpoint() with a folder for each shard")


@with_options
def rounds(
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module,
    group: dist.ProcessGroup | None = None,
    *,
    most: int,
    least: int = 1,
    delay: int | None = 0,
    fragments: int = 1,
    dense_steps: int = 80,
    outer_lr: float = 0.8,
    outer_momentum: float = 0.3,
    uneven: bool = False,
    keep_round: PathLike | None = None,
    **options: Unpack[Options],
) -> RoundsOptimizer:
    """Trains with an exchange every few steps, for ranks between which the link is slow or far.

        optimizer = gradtune.rounds(torch.optim.AdamW(model.parameters(), 1e-3), model, most=8)
        for batch in loader:
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()  # exchanges when a round ends
        optimizer.end_round()  # all ranks have the same parameters from here on

    Training is synchronous for `dense_steps` steps, as with wrap(). From then on it switches to rounds as soon as an
    exchange at each step takes more than a twentieth of its computation. In a round each rank updates its own parameters,
    with its own gradients and optimizer state. When it ends, the mean over ranks of what the parameters changed is the
    gradient of an outer step: SGD with Nesterov momentum (Douillard et al., DiLoCo, 2023). All ranks go on from its
    result. A round has the fewest updates, up to `most`, with which ranks wait for at most a twentieth of the time. With a
    delay, updates go on beside the exchange. This changes what is learned, so `most` has no default: it is a limit that the
    user sets. With most=1 training stays synchronous.

    In a round, gradients are this rank's own: clipping, accumulation and schedules act on each rank alone, and no_sync()
    has no effect. Buffers become rank 0's when a round ends. If a parameter is NaN or infinite then, all ranks return to
    what they last exchanged; what is not finite in that rank's optimizer state becomes 0.

    A model that FSDP2 shards inside each site, over a mesh of one dimension, needs `group`: the ranks that hold the same
    shard at each site. `least` equals `most` then, and dense steps are rounds of one update. See python/README.md.

    Returns the same optimizer, with the methods of gradtune.RoundsOptimizer. The options are those of wrap().

    Args:
        most: The most updates in a round, from 1 to 1,000,000.
        least: The fewest updates in a round, up to `most`. With more than 1, rounds follow the dense steps on any link.
        delay: The updates that a rank makes while an exchange is under way: 0, or a number below `least`. They are added
            to the result of the exchange, which so is of older parameters: this costs accuracy. With None it is chosen, up
            to half of the updates. With 0 an exchange ends before the next update.
        fragments: The parts of the model that are exchanged one after the other, from 1 to 64 (Douillard et al., Streaming
            DiLoCo, 2025). `delay` is at most least / fragments then, and costs less accuracy.
        dense_steps: Synchronous steps before the first round.
        outer_lr: The learning rate of the outer step, above 0 and at most 1.
        outer_momentum: The momentum of the outer step, from 0 to below 1.
        uneven: A rank that is faster than the slowest makes more updates in a round, at most `most`, and weighs more.
        keep_round: A file that gets the last round's end, which is kept in memory, if a rank is lost. See load_round().

    Raises:
        Error: As wrap(), and for models of DistributedDataParallel, or that FSDP2 shards over several dimensions.
        TypeError: An argument has a wrong type or name.
    """
    plan = _Plan(most, least, delay, fragments, dense_steps, outer_lr, outer_momentum, uneven)
    _gradtune.check_rounds(plan)
    check([optimizer], [model])
    _check_kind(model, group, plan, keep_round, [*(options.get("ignore") or ()), *to_be_ignored(model)])
    kept = None if keep_round is None else _KeptRound(os.fspath(keep_round), model, optimizer)
    ranks, given = check_group(group), as_given(options)
    made = (_ShardedRoundsWrap if is_sharded(model) else _RoundsWrap)(optimizer, plan, ranks, kept)
    made.begin = functools.partial(_begin, model=weakref.ref(model), group=ranks, options=given)
    made.begin(made)
    return cast(RoundsOptimizer, optimizer)
