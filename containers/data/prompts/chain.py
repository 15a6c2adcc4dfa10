"""The filters that only prompt sets have: answers, difficulty, and the same prompt again."""

from collections import defaultdict

from containers.contracts.configs.filter_prompts import FilterPromptsConfig
from containers.data.filters.text_chain import TextChain
from containers.data.funnel import FunnelCounter
from containers.data.prompts.reading import PlacedPrompt
from containers.data.prompts.rows import PromptRow

Prompts = list[PlacedPrompt]


class PromptChain(TextChain[PlacedPrompt]):
    """The filters of filter_prompts."""

    def __init__(self, config: FilterPromptsConfig, *, counter: FunnelCounter, seed: int) -> None:
        super().__init__(config, counter=counter, seed=seed)
        self._settings = config

    def by_answer(self, rows: Prompts) -> Prompts:
        """Drop rows without a reference answer, if one is needed, and rows of another difficulty."""
        if self._settings.require_answer:
            without = [item for item in rows if not item.row.answer]
            rows = self.drop(rows, "without_answer", {id(item): "no reference answer" for item in without})
        if self._settings.min_difficulty is not None or self._settings.max_difficulty is not None:
            rows = self.drop(
                rows, "difficulty", {id(item): seen for item in rows if (seen := self._wrong_difficulty(item.row))}
            )
        return rows

    def _wrong_difficulty(self, row: PromptRow) -> str:
        if row.difficulty is None:
            return "no difficulty"
        low, high = self._settings.min_difficulty, self._settings.max_difficulty
        is_right = (low is None or low <= row.difficulty) and (high is None or row.difficulty <= high)
        return "" if is_right else f"difficulty {row.difficulty:g}"

    def by_repetition(self, rows: Prompts) -> Prompts:
        """Drop repeated rows, all rows whose prompt has different answers, and training rows with a held-out prompt."""
        rows = self.by_duplicates(rows)
        answers: dict[tuple[str, str], set[frozenset[str | None]]] = defaultdict(set)
        for item in rows:
            answers[item.split, item.row.prompt_id].add(frozenset((item.row.answer, *item.row.other_answers)))
        several = [item for item in rows if len(answers[item.split, item.row.prompt_id]) > 1]
        rows = self.drop(
            rows, "contradictory_answers", {id(item): f"another row has another answer than {item.row.answer!r:.60}"
                                            for item in several}
        )  # fmt: skip
        return self.by_validation_prompts(rows)
