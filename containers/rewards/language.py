"""Whether a completion is in a language."""

from collections.abc import Sequence

from containers.contracts.configs.parts.rewards import LanguageTerm
from containers.data.language import LanguageJudge
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError
from containers.rewards.base import Answered, Reward, Rewarding, Value


class LanguageReward(Reward):
    """0 for prose in another language, else 1, by the detector of filter_dataset."""

    def __init__(self, judge: LanguageJudge) -> None:
        self._judge = judge

    def values(self, answered: Sequence[Answered]) -> list[Value]:
        """Return 1 or 0 for each completion."""
        return [float(self._judge.judge_text(one.text).kind != "other") for one in answered]


def start(context: StageContext, config: Rewarding, term: LanguageTerm) -> Reward:
    """Start it.

    Raises:
        BadConfigError: the detector does not know the language.
    """
    try:
        return LanguageReward(LanguageJudge((term.language,)))
    except BadConfigError as error:
        message = str(error).replace("filter_dataset.languages", f"train_policy.rewards, `{term.name}`")
        raise BadConfigError(message.partition(" Or set ")[0]) from error
