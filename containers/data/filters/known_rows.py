"""Rows whose better answer is known, in every schema: a reader with the wrong sign would train the opposite."""

from collections.abc import Iterable, Mapping
from typing import Any

from containers.data.formats.columns import (
    ALPACA_RANKING,
    ARENA,
    ARENA_CONVERSATIONS,
    ARGILLA,
    COMPARISONS,
    DISTILABEL_ORCA,
    HELPSTEER3,
    NECTAR,
    ORCA_DPO,
    PKU_SAFE_RLHF,
    RANKING,
    SCHEMAS,
    SHAREGPT_DPO,
    TRL,
    ULTRAFEEDBACK,
    UNPAIRED,
    PreferenceSchema,
)

_PROMPT, _BETTER, _WORSE, _MIDDLE = "What is two plus two?", "Four.", "Five.", "4, I think."
_USER = {"role": "user", "content": _PROMPT}
_DIALOGUES = {
    side: [_USER, {"role": "assistant", "content": text}] for side, text in (("good", _BETTER), ("bad", _WORSE))
}

# On either side, where a schema has sides.
_KNOWN_ROWS: dict[str, tuple[Mapping[str, Any], ...]] = {
    HELPSTEER3.name: (
        {"context": [_USER], "response1": _BETTER, "response2": _WORSE, "overall_preference": -3},
        {"context": [_USER], "response1": _WORSE, "response2": _BETTER, "overall_preference": 1},
    ),
    TRL.name: (
        {"prompt": _PROMPT, "chosen": _BETTER, "rejected": _WORSE},
        {"chosen": [_USER, {"role": "assistant", "content": _BETTER}],
         "rejected": [_USER, {"role": "assistant", "content": _WORSE}]},
        {"chosen": f"\n\nHuman: {_PROMPT}\n\nAssistant: {_BETTER}",
         "rejected": f"\n\nHuman: {_PROMPT}\n\nAssistant: {_WORSE}"},
        {"prompt": _PROMPT, "chosen": _BETTER, "rejected": _WORSE, "score_chosen": 9.0, "score_rejected": 2.0},
    ),
    ARENA.name: (
        {"prompt": _PROMPT, "response_a": _BETTER, "response_b": _WORSE, "winner": "a"},
        {"prompt": _PROMPT, "response_a": _WORSE, "response_b": _BETTER, "winner": "model_b"},
    ),
    ULTRAFEEDBACK.name: (
        {"instruction": _PROMPT, "completions": [{"response": _WORSE, "overall_score": 2},
                                                 {"response": _MIDDLE, "overall_score": 6},
                                                 {"response": _BETTER, "overall_score": 9.5}]},
    ),
    SHAREGPT_DPO.name: (
        {"conversations": [{"from": "human", "value": _PROMPT}], "chosen": {"from": "gpt", "value": _BETTER},
         "rejected": {"from": "gpt", "value": _WORSE}},
    ),
    ORCA_DPO.name: ({"system": "", "question": _PROMPT, "chosen": _BETTER, "rejected": _WORSE},),
    DISTILABEL_ORCA.name: ({"system": "", "input": _PROMPT, "chosen": _BETTER, "rejected": _WORSE},),
    ALPACA_RANKING.name: ({"instruction": _PROMPT, "input": "", "chosen": _BETTER, "rejected": _WORSE},),
    ARGILLA.name: (
        {"instruction": _PROMPT, "chosen_response": _BETTER, "rejected_response": _WORSE,
         "chosen_avg_rating": 4.5, "rejected_avg_rating": 2.0},
    ),
    PKU_SAFE_RLHF.name: (
        {"prompt": _PROMPT, "response_0": _BETTER, "response_1": _WORSE, "better_response_id": 0},
        {"prompt": _PROMPT, "response_0": _WORSE, "response_1": _BETTER, "better_response_id": 1},
    ),
    ARENA_CONVERSATIONS.name: (
        {"conversation_a": _DIALOGUES["good"], "conversation_b": _DIALOGUES["bad"], "winner": "model_a"},
        {"conversation_a": _DIALOGUES["bad"], "conversation_b": _DIALOGUES["good"], "winner": "model_b"},
    ),
    RANKING.name: (
        {"prompt": _PROMPT, "responses": [_WORSE, _BETTER, _MIDDLE], "ranks": [3, 1, 2]},
        {"prompt": _PROMPT, "completions": [_WORSE, _BETTER, _MIDDLE], "scores": [0.1, 0.9, 0.4]},
    ),
    NECTAR.name: (
        {"prompt": f"\n\nHuman: {_PROMPT}\n\nAssistant: ", "num_responses": 2,
         "answers": [{"answer": _WORSE, "rank": 7.0}, {"answer": _BETTER, "rank": 1.0}]},
    ),
    UNPAIRED.name: ({"prompt": _PROMPT, "completion": {"true": _BETTER, "false": _WORSE}, "label": True},),
    COMPARISONS.name: (
        {"text": [f"User: {_PROMPT}\n\nAssistant: {_BETTER}", f"User: {_PROMPT}\n\nAssistant: {_WORSE}"]},
    ),
}  # fmt: skip


def check_readers(schemas: Iterable[PreferenceSchema] = SCHEMAS) -> None:
    """Check in every schema that the better answer of a known row is read as chosen.

    Raises:
        RuntimeError: it is not; a fault of this program, not of the data.
    """
    for schema in schemas:
        for known in _KNOWN_ROWS[schema.name]:
            pair = schema.parse(known).pair
            if (pair.chosen, pair.rejected) != (_BETTER, _WORSE):
                raise RuntimeError(
                    f"The reader of {schema.name} takes the worse answer of a known row for the better one: chosen "
                    f"{pair.chosen!r}, rejected {pair.rejected!r}. This is a fault of filter_dataset, please report it."
                )
