"""Rows as the makers of preference sets publish them; the columns are those of their cards."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from containers.data.formats.columns import detect_schema
from containers.data.reader import RowRead
from containers.data.rows import MalformedRowError, PreferenceRow

PROMPT = "Name a colour."
SYSTEM = "You answer in one word."
SYSTEM_TURN = {"role": "system", "content": SYSTEM}
USER = {"role": "user", "content": PROMPT}
RED, BLUE = {"role": "assistant", "content": "Red."}, {"role": "assistant", "content": "Blue."}
GPT_RED, GPT_BLUE = {"from": "gpt", "value": "Red."}, {"from": "gpt", "value": "Blue."}

# Intel/orca_dpo_pairs; argilla/distilabel-intel-orca-dpo-pairs; the ShareGPT and Alpaca forms of LLaMA-Factory's
# README of data; argilla/dpo-mix-7k; argilla/ultrafeedback-binarized-preferences; PKU-Alignment/PKU-SafeRLHF;
# lmsys/chatbot_arena_conversations; berkeley-nest/Nectar; the output of distilabel's UltraFeedback task.
ORCA = {"system": SYSTEM, "question": PROMPT, "chosen": "Red.", "rejected": "Blue."}
DISTILABEL_ORCA = {
    "system": SYSTEM, "input": PROMPT, "chosen": "Red.", "rejected": "Blue.", "generations": ["Red.", "Blue."],
    "order": ["a", "b"], "rating": [9.0, 7.0], "status": "unchanged", "chosen_score": 9.0, "in_gsm8k_train": False,
}  # fmt: skip
SHAREGPT = {
    "conversations": [{"from": "system", "value": SYSTEM}, {"from": "human", "value": PROMPT}],
    "chosen": GPT_RED, "rejected": GPT_BLUE,
}  # fmt: skip
ALPACA = {"instruction": "Name", "input": "a colour.", "chosen": "Red.", "rejected": "Blue.", "system": SYSTEM}
DPO_MIX = {
    "dataset": "argilla/x", "chosen": [SYSTEM_TURN, USER, RED], "rejected": [SYSTEM_TURN, USER, BLUE],
    "chosen_rating": 5.0, "rejected_rating": 3.0,
}  # fmt: skip
BINARIZED = {
    "source": "sharegpt", "instruction": PROMPT, "chosen_response": "Red.", "rejected_response": "Blue.",
    "chosen_avg_rating": 5.0, "rejected_avg_rating": 4.25, "chosen_model": "m",
}  # fmt: skip
PKU = {
    "prompt": PROMPT, "response_0": "Blue.", "response_1": "Red.", "is_response_0_safe": True,
    "is_response_1_safe": False, "better_response_id": 1, "safer_response_id": 0,
}  # fmt: skip
BATTLE = {
    "question_id": "1", "model_a": "m", "model_b": "n", "winner": "model_b", "judge": "j", "turn": 1,
    "conversation_a": [USER, BLUE], "conversation_b": [USER, RED], "language": "English",
}  # fmt: skip
RANKING = {"prompt": PROMPT, "completions": ["Grey.", "Red.", "Blue."], "ranks": [2, 1, 3]}
NECTAR = {
    "prompt": f"\n\nHuman: {PROMPT}\n\nAssistant: ", "num_responses": 3, "turns": 1, "source": ["x"],
    "answers": [{"answer": "Blue.", "model": "m", "rank": 7.0}, {"answer": "Red.", "model": "n", "rank": 1.0},
                {"answer": "Grey.", "model": "o", "rank": 3.0}],
}  # fmt: skip
DISTILABEL = {"instruction": PROMPT, "generations": ["Blue.", "Red."], "ratings": [2, 4], "model_names": ["m", "n"]}
FORMS: dict[str, Mapping[str, Any]] = {
    "Orca DPO": ORCA,
    "Orca DPO of distilabel": DISTILABEL_ORCA,
    "ShareGPT DPO": SHAREGPT,
    "Alpaca ranking": ALPACA,
    "TRL preference": DPO_MIX,
    "Argilla": BINARIZED,
    "PKU-SafeRLHF": PKU,
    "arena conversations": BATTLE,
    "ranking": RANKING,
    "Nectar": NECTAR,
}


def parse(value: Mapping[str, Any]) -> PreferenceRow:
    return detect_schema([value], file="rows.jsonl").parse(value)


def reason_of(value: Mapping[str, Any]) -> str:
    with pytest.raises(MalformedRowError) as caught:
        parse(value)
    return caught.value.reason


def written(folder: Path, *rows: Mapping[str, Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def sides(reads: list[RowRead]) -> list[tuple[str, str]]:
    return [(read.row.pair.chosen, read.row.pair.rejected) for read in reads if read.row is not None]


# As trl-lib/kto-mix-14k: completions of one prompt stand on lines of their own, as text or as one turn.
def unpaired(prompt: str, completion: object, label: object) -> dict[str, Any]:
    return {"prompt": prompt, "completion": completion, "label": label}
