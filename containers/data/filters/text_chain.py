"""The filters that prompts and demonstrations share: flaws of a text, repeated rows, prompts that judge the run."""

from collections.abc import Collection, Sequence

from containers.contracts.configs.parts.row_filters import TextFilters
from containers.data.filters.chain import FilterChain
from containers.data.filters.contamination import SuiteIndex, SuitePrompt
from containers.data.filters.flaws import control_token_in
from containers.data.funnel import FunnelCounter
from containers.data.rows import Row
from containers.data.sources import PlacedT


class TextChain(FilterChain[PlacedT]):
    """The filters of rows that are no pairs."""

    def __init__(self, config: TextFilters, *, counter: FunnelCounter, seed: int) -> None:
        super().__init__(config, counter=counter, seed=seed)
        self._texts = config

    def by_flaws(self, rows: list[PlacedT]) -> list[PlacedT]:
        """Drop rows with control tokens, and over-long ones."""
        forged = {id(item): token for item in rows if (token := control_token_in(_texts(item.row)))}
        rows = self.drop(rows, "control_tokens", forged)
        lengths = {id(item): sum(map(len, _texts(item.row))) for item in rows}
        over_long = {
            key: f"{length:,} characters" for key, length in lengths.items() if length > self._texts.max_characters
        }
        return self.drop(rows, "over_long_characters", over_long)

    def by_duplicates(self, rows: list[PlacedT]) -> list[PlacedT]:
        """Drop rows that an earlier row of their split repeats."""
        first: dict[tuple[str, str], int] = {}
        again = [item for item in rows if first.setdefault((item.split, item.row.row_id), id(item)) != id(item)]
        return self.drop(rows, "duplicate", {id(item): "same as an earlier row" for item in again})

    def by_held_out(self, rows: list[PlacedT], ids: Collection[str], prompts: Sequence[SuitePrompt]) -> list[PlacedT]:
        """Drop rows whose prompt judges a model of the run, or repeats such a prompt.

        Args:
            ids: identities of these prompts.
            prompts: the prompts themselves.
        """
        found = SuiteIndex(prompts).find(self._prompts_of(rows), overlap=self._texts.contamination_overlap)
        seen = {}
        for item in rows:
            repeated = found.get(item.row.prompt_id)
            if repeated:
                one = repeated[0].items[0]
                seen[id(item)] = f"like prompt {one.line:,} of {one.suite}"
            elif item.row.prompt_id in ids:
                seen[id(item)] = "a prompt that is held out"
        return self.drop(rows, "held_out_prompt", seen)


def _texts(row: Row) -> list[str]:
    return [*(turn["content"] for turn in row.prompt), *row.completions]
