"""Spread the forwards of an evaluation over all GPUs of its stage, by programs that hold its model too.

The stage stays one program. It cuts its work into the same batches as on one GPU and deals these out, so results do
not depend on the number of GPUs. A model that is too large for a GPU is held by a team of programs (tensor
parallelism); the stage itself then holds none.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any, Generic, TypeVar

import torch

from containers.contracts.hardware import GpuProfile
from containers.distributed.probe import setting_to_change
from containers.distributed.spread_team import END_S, FAILED_END_S, VISIBLE, ProgramError, Team
from containers.harness.errors import StageError
from containers.harness.gpu_shares import ROLLOUT_GPUS_VARIABLE

Made = TypeVar("Made")
Item = TypeVar("Item")
Value = TypeVar("Value")


class Spread(Generic[Made]):
    """Programs that hold what `make` makes, one for each further GPU; they end with this process.

    Args:
        make: a function at the top of a module; called in each program with `arguments` and its `device`.
        arguments: can be pickled.
        gpus: for CUDA_VISIBLE_DEVICES of each program; an empty text is the CPU.
        team: programs that make it together, in a process group of their own. With more than one, this process holds
            nothing itself, and programs that are left over are not started.
        limit_s: for one collective of a team.
        advice: the setting to change if its members do not reach each other.
        meanwhile: done here while the programs start.

    Raises:
        StageError: a program cannot make it; says why.
    """

    def __init__(
        self,
        make: Callable[..., Made],
        arguments: Mapping[str, Any],
        *,
        gpus: Sequence[str],
        team: int = 1,
        limit_s: int = 600,
        advice: str = "",
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self.is_all = team > 1
        starts = range(0, len(gpus) - team + 1, team)
        self._teams = [Team(gpus[start : start + team], limit_s=limit_s, advice=advice) for start in starts]
        try:
            for one in self._teams:
                one.make(make, arguments)
            meanwhile()
            for one in self._teams:
                one.answer()
        except BaseException:
            self.close()
            raise

    def map(
        self,
        own: Made,
        work: Callable[[Made, list[Item]], list[Value]],
        items: Sequence[Item],
        *,
        sizes: Sequence[int],
        on_done: Callable[[int], None] = lambda count: None,
    ) -> list[Value]:
        """Return the value of each item, in order; `own` works here while the programs work on their shares.

        Args:
            own: what `make` makes, on this process's GPU; not used where teams hold it.
            work: a function at the top of a module: one value for each of the items.
            sizes: how much work each item is; the largest are dealt out first.
            on_done: called with the number of items that are done so far.

        Raises:
            ProgramError: `work` failed in a program; the programs can be used again.
            StageError: a program died.
        """
        found: dict[int, Value] = {}

        def note(places: Sequence[int], values: Sequence[Value]) -> None:
            found.update(zip(places, values, strict=True))
            on_done(len(found))

        if self.is_all:
            self._one_by_one(work, items, sizes, note)
        else:
            self._in_shares(own, work, items, sizes, note)
        return [found[place] for place in range(len(items))]

    def everywhere(self, own: Made, work: Callable[[Made, list[Item]], list[Value]], item: Item) -> None:
        """Have `work` done on the item once wherever it is held; the programs' values are not returned."""
        for team in self._teams:
            team.send((work, [item]))
        with self._drained(self._teams):
            if not self.is_all:
                work(own, [item])

    def close(self) -> None:
        """End the programs, and give their GPUs' memory back."""
        for team in self._teams:  # of all of them first, so that they end at the same time
            team.hang_up()
        ends_by = time.monotonic() + (FAILED_END_S if any(team.is_broken for team in self._teams) else END_S)
        for team in self._teams:
            team.end(ends_by)
        self._teams = []

    def _in_shares(
        self,
        own: Made,
        work: Callable[[Made, list[Item]], list[Value]],
        items: Sequence[Item],
        sizes: Sequence[int],
        note: Callable[[Sequence[int], Sequence[Value]], None],
    ) -> None:
        shares = _shares(sizes, len(self._teams) + 1)
        asked = [(team, share) for team, share in zip(self._teams, shares[1:], strict=True) if share]
        for team, share in asked:
            team.send((work, [items[place] for place in share]))
        waiting = {team.leader: (team, share) for team, share in asked}
        with self._drained([team for team, _ in asked]):
            for place in shares[0]:
                note([place], work(own, [items[place]]))
            while waiting:
                for connection in wait(list(waiting)):
                    team, share = waiting.pop(connection)  # type: ignore[call-overload]
                    note(share, team.answer())

    def _one_by_one(
        self,
        work: Callable[[Made, list[Item]], list[Value]],
        items: Sequence[Item],
        sizes: Sequence[int],
        note: Callable[[Sequence[int], Sequence[Value]], None],
    ) -> None:
        """Give each team the next item when it has done one: the largest first."""
        left = sorted(range(len(items)), key=lambda place: sizes[place])
        at: dict[Team, int] = {}

        def give(team: Team) -> None:
            if left:
                at[team] = left.pop()
                team.send((work, [items[at[team]]]))

        with self._drained(self._teams):
            for team in self._teams:
                give(team)
            while at:
                ready = set(wait([connection for team in at for connection in team.connections]))
                # A member that failed answers while the leader still waits for it.
                for team in [team for team in at if ready.intersection(team.connections)]:
                    place = at.pop(team)
                    note([place], team.answer())
                    give(team)

    @contextmanager
    def _drained(self, teams: Sequence[Team]) -> Iterator[None]:
        """Take the answers that are still due when this ends, so that the next answer belongs to the next question."""
        try:
            yield
        except BaseException as error:
            # Only a failure of the computation itself is one that `containers.models.trial` catches, to use the
            # programs again; else they are not waited for: a share may take hours.
            is_ended = not isinstance(error, Exception) or isinstance(error, StageError | torch.OutOfMemoryError)
            for team in teams:
                team.leave() if is_ended and not isinstance(error, ProgramError) else team.forget()
            raise
        for team in teams:
            if team.is_asked:
                team.answer()


def further_gpus() -> list[str]:
    """GPUs of the stage beside this process's own; empty with one GPU, or none."""
    return [name for name in os.environ.get(ROLLOUT_GPUS_VARIABLE, "").split(",") if name]


def spread_over_gpus(
    make: Callable[..., Made],
    arguments: Mapping[str, Any],
    *,
    profile: GpuProfile,
    meanwhile: Callable[[], None] = lambda: None,
) -> Spread[Made] | None:
    """Start a program on each further GPU of the stage, or teams on all of them if the profile says so.

    Args:
        meanwhile: done here in any case, while programs start.

    Returns:
        None: the stage has one GPU, or none, and holds the model itself.
    """
    team = profile.tensor_parallel
    if team > 1:
        gpus = [gpu for members in teams_of_gpus(profile) for gpu in members.split(",")]
        limit_s, advice = profile.collective_timeout_s, setting_to_change(profile, ())
        return Spread(make, arguments, gpus=gpus, team=team, limit_s=limit_s, advice=advice, meanwhile=meanwhile)
    if gpus := further_gpus():
        return Spread(make, arguments, gpus=gpus, meanwhile=meanwhile)
    meanwhile()
    return None


def teams_of_gpus(profile: GpuProfile) -> list[str]:
    """GPUs of the stage for each model that they hold, as CUDA_VISIBLE_DEVICES; first those with this process's own.

    On a CPU there is one team.
    """
    team = profile.tensor_parallel
    own = [name for name in os.environ.get(VISIBLE, "").split(",") if name] or ["0"]
    gpus = own[:1] + further_gpus() if profile.num_gpus else [""] * team
    return [",".join(gpus[start : start + team]) for start in range(0, len(gpus) - team + 1, team)]


def _shares(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Deal the places out: the largest first, each to the share with the least so far."""
    shares: list[list[int]] = [[] for _ in range(count)]
    totals = [0] * count
    for place in sorted(range(len(sizes)), key=lambda place: sizes[place], reverse=True):
        least = totals.index(min(totals))
        shares[least].append(place)
        totals[least] += sizes[place]
    return shares
