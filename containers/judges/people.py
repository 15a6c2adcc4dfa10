"""People as judges: what each chose of the pairs that `rlhf judge` showed, without saying whose answers they are."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from containers.contracts.configs.parts.judges import PeopleJudge
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.names import JUDGE_INPUT, VERDICTS_FILE
from containers.contracts.records import PeopleFigures
from containers.harness.context import StageContext
from containers.harness.errors import MissingPrerequisiteError
from containers.judges.base import Pair, Places, StartedJudge, Verdict
from containers.judges.elsewhere import AskedElsewhere
from containers.judges.orders import Chosen, verdict_in_one_order
from containers.judges.rater_agreement import krippendorff_alpha
from containers.rewards.base import Rewarding

_NOT_SHOWN = Verdict(None, "it was not shown", was_asked=False)


class People(StartedJudge):
    """Reads what people chose; the better answer of a pair is the one that more of them chose.

    Args:
        rows: `place`, `policy_first`, `choice` and `by` of each choice.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = rows

    def verdicts(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Return a verdict for each pair that was shown; the others were not asked about."""
        points: dict[int, list[float]] = defaultdict(list)
        for row in self._rows:
            points[row["place"]].append(_points(row))
        return [_together(points[place]) if place in points else _NOT_SHOWN for place in range(len(pairs))]

    def shown(self) -> str:
        """Return who judges."""
        count = len({row["by"] for row in self._rows})
        if not count:
            return "people, who had no pair to judge: both wrote the same"
        return "1 person, who saw each pair blind" if count == 1 else f"{count} people, who saw each pair blind"

    def places(self) -> Places:
        """Return how much the order decided; each pair was shown in one order, drawn for each person."""
        choices = [row["choice"] for row in self._rows if row["choice"] != "tie"]
        share = sum(choice == "first" for choice in choices) / len(choices) if choices else 0.5
        return Places(num_choices=len(choices), first_share=share, agreement=None)

    def people(self) -> PeopleFigures:
        """Return how many each person judged, and how far they agree."""
        counts: dict[str, int] = defaultdict(int)
        by_pair: dict[int, list[float]] = defaultdict(list)
        for row in self._rows:
            counts[row["by"]] += 1
            by_pair[row["place"]].append(_points(row))
        shared = [values for values in by_pair.values() if len(values) > 1]
        return PeopleFigures(
            judged=tuple(sorted(counts.items())),
            num_shared=len(shared),
            agreement=fmean(_same_share(values) for values in shared) if shared else None,
            alpha=krippendorff_alpha(shared),
        )


def _points(row: Mapping[str, Any]) -> float:
    found = verdict_in_one_order(Chosen(row["choice"]), policy_first=bool(row["policy_first"])).points
    return 0.5 if found is None else found


def _together(points: Sequence[float]) -> Verdict:
    mean = fmean(points)
    return Verdict(0.5 if mean == 0.5 else float(mean > 0.5))


def _same_share(values: Sequence[float]) -> float:
    """Return the share of pairs of people that said the same."""
    pairs = [(one, other) for place, one in enumerate(values) for other in values[place + 1 :]]
    return fmean(one == other for one, other in pairs)


def start(context: StageContext, config: Rewarding, judge: PeopleJudge) -> StartedJudge:
    """Read what people chose; while a policy trains, leave pairs and read the choices later.

    Raises:
        MissingPrerequisiteError: it is not there, or damaged.
    """
    if isinstance(config, TrainPolicyConfig):
        text = "1 person" if judge.num_people == 1 else f"{judge.num_people} people"
        text = f"{text}, who saw each pair blind"
        return AskedElsewhere(context, name=judge.name, text=text, read=partial(_chosen, judge))
    return _chosen(judge, context.input_path(f"{JUDGE_INPUT}_{judge.name}") / VERDICTS_FILE)


def _chosen(judge: PeopleJudge, path: Path) -> People:
    try:
        rows = [_row(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MissingPrerequisiteError(
            f"What people chose for {judge.name}, {path}, cannot be read: {error}."
        ) from error
    return People(rows)


def _row(line: Mapping[str, Any]) -> dict[str, Any]:
    choices: Iterable[str] = ("first", "second", "tie")
    if line["choice"] not in choices:
        raise ValueError(f"`{line['choice']}` is no choice")
    return {
        "place": int(line["place"]),
        "policy_first": bool(line["policy_first"]),
        "choice": line["choice"],
        "by": str(line["by"]),
    }
