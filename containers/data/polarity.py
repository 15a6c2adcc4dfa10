"""Does the label point to the better response? Read the other way round, it trains the opposite, and the loss falls."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from containers.contracts.records import PolarityCheck
from containers.data.formats.columns import ARENA, COMPARISONS, HELPSTEER3, TRL, ULTRAFEEDBACK
from containers.data.formats.schemas import known_schemas
from containers.data.rows import PreferenceRow
from containers.harness.errors import BadDataError

# Fewer judged rows than this can disagree by chance.
MIN_JUDGED_ROWS = 10
MIN_AGREEMENT = 0.5

_PROMPT, _BETTER, _WORSE = "What is two plus two?", "Four.", "Five."
_USER = {"role": "user", "content": _PROMPT}


def _conversation(answer: str) -> list[dict[str, str]]:
    return [_USER, {"role": "assistant", "content": answer}]


def _helpsteer3(first: str, second: str, preference: int) -> dict[str, Any]:
    return {"context": [_USER], "response1": first, "response2": second, "overall_preference": preference}


def _arena(first: str, second: str, winner: str) -> dict[str, Any]:
    return {"prompt": _PROMPT, "response_a": first, "response_b": second, "winner": winner}


def _rated(answer: str, score: float) -> dict[str, Any]:
    return {"response": answer, "overall_score": score}


# Rows whose better answer is known, in every schema, on either side.
_KNOWN_ROWS: dict[str, tuple[Mapping[str, Any], ...]] = {
    HELPSTEER3.name: (_helpsteer3(_BETTER, _WORSE, -3), _helpsteer3(_WORSE, _BETTER, 1)),
    TRL.name: (
        {"prompt": _PROMPT, "chosen": _BETTER, "rejected": _WORSE},
        {"chosen": _conversation(_BETTER), "rejected": _conversation(_WORSE)},
        {"chosen": f"\n\nHuman: {_PROMPT}\n\nAssistant: {_BETTER}",
         "rejected": f"\n\nHuman: {_PROMPT}\n\nAssistant: {_WORSE}"},
        {"prompt": _PROMPT, "chosen": _BETTER, "rejected": _WORSE, "score_chosen": 9.0, "score_rejected": 2.0},
    ),
    ARENA.name: (_arena(_BETTER, _WORSE, "a"), _arena(_WORSE, _BETTER, "model_b")),
    ULTRAFEEDBACK.name: (
        {"instruction": _PROMPT, "completions": [_rated(_WORSE, 2), _rated("4, I think.", 6), _rated(_BETTER, 9.5)]},
    ),
    COMPARISONS.name: (
        {"text": [f"User: {_PROMPT}\n\nAssistant: {_BETTER}", f"User: {_PROMPT}\n\nAssistant: {_WORSE}"]},
    ),
}  # fmt: skip


def check_readers(readers: Mapping[str, Callable[[Mapping[str, Any]], PreferenceRow]] | None = None) -> None:
    """Read rows whose better answer is known, in every schema, and see that it comes out as chosen.

    Args:
        readers: the reader of each schema; None: those of `formats.schemas`.

    Raises:
        RuntimeError: it does not; a fault of this program, not of the data.
    """
    for name, read in (known_schemas() if readers is None else readers).items():
        for known in _KNOWN_ROWS[name]:
            pair = read(known).pair
            if (pair.chosen, pair.rejected) != (_BETTER, _WORSE):
                raise RuntimeError(
                    f"The reader of {name} takes the worse answer of a known row for the better one: chosen "
                    f"{pair.chosen!r}, rejected {pair.rejected!r}. This is a fault of filter_dataset, please report it."
                )


def check_polarity(source: str, rows: Iterable[PreferenceRow]) -> PolarityCheck | None:
    """How often the label agrees with the mean of the scores beside it; None where no row has both.

    Raises:
        BadDataError: it agrees on less than half of at least ten rows.
    """
    votes = [row.agrees_with_scores for row in rows if row.agrees_with_scores is not None]
    if not votes:
        return None
    found = PolarityCheck(source=source, num_judged=len(votes), num_agreeing=sum(votes))
    if found.num_judged >= MIN_JUDGED_ROWS and found.num_agreeing < MIN_AGREEMENT * found.num_judged:
        raise BadDataError(
            f"{source}: the label agrees with the scores beside it on {found.num_agreeing:,} of {found.num_judged:,} "
            f"rows ({found.num_agreeing / found.num_judged:.1%}). Below {MIN_AGREEMENT:.0%} the label most likely "
            f"points to the worse response, and a model would learn the opposite. Look at some rows: in HelpSteer3's "
            f"schema a negative overall_preference says that response 1 is better. Correct the sign in the file."
        )
    return found
