"""The rewards that a configuration can give a completion: `train_policy.rewards`.

A reward answers a value, or that it cannot tell. An *outcome* says right or wrong. Everything else is *shaping*, which
makes no difference among completions none of which is right.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Field, JsonValue, model_validator

from containers.contracts.base import BatchSize, Difference, Frozen, Name, Positive, Tokens
from containers.contracts.configs.filter_dataset import ReferenceRewardModel

RewardKind: TypeAlias = Literal["outcome", "shaping"]
CpuSeconds = Annotated[int, Field(ge=1, le=600)]
_CPU_S = "Processor time for one completion; one that takes longer has no value"
_KIND = "outcome: 1 is right and 0 wrong; shaping: it says neither"


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"`{value}` is no regular expression: {error}.") from error
    return value


Pattern = Annotated[str, Field(min_length=1, max_length=10_000), AfterValidator(_pattern)]
Tag = Annotated[str, Field(pattern=r"^[A-Za-z_][\w-]*$")]
FromZero = Annotated[Tokens, Field(ge=0)]
Words = tuple[Annotated[str, Field(min_length=1, max_length=1000)], ...]


class NamedByType(Frozen):
    """What every reward and every judge has; without a name of its own it has that of its type."""

    name: Name = Field("", description="Names its figures, and an outcome in `only_if`; left out: its type")

    @model_validator(mode="before")
    @classmethod
    def _named_by_its_type(cls, tree: Any) -> Any:
        if isinstance(tree, dict) and not tree.get("name"):
            return {**tree, "name": tree.get("type", cls.model_fields["type"].default)}
        return tree

    @property
    def needs_answer(self) -> bool:
        """Whether each prompt must have a reference answer."""
        return False


class Term(NamedByType):
    """What every reward has."""

    weight: Difference = Field(1.0, description="Its value is multiplied by this; below 0, only of shaping: a penalty")
    clip: Positive | None = Field(None, description="Values beyond ± this count as this; null: all count as they are")
    only_if: Name | None = Field(None, description="Name of an outcome; this term is 0 where that one is not right")
    normalise: Literal["off", "running"] = Field(
        "off", description="running: less the mean of all values so far, divided by their standard deviation"
    )

    @property
    def is_outcome(self) -> bool:
        """Whether it says right or wrong."""
        return getattr(self, "kind", "shaping") == "outcome"

    @property
    def answer_form(self) -> str:
        """A right completion, with `{answer}` in the place of the reference answer; for the trial before training."""
        return "{answer}"


class _Verdict(Term):
    """A term that compares with the reference answer."""

    @property
    def is_outcome(self) -> bool:
        """It says right or wrong."""
        return True

    @property
    def needs_answer(self) -> bool:
        """Each prompt must have a reference answer."""
        return True


class FurtherRewardModel(ReferenceRewardModel):
    """A reward model beside the run's own, with its certificate."""

    certificate: str = Field(
        min_length=1,
        description="The file certificate.json of that model, or the folder that has it: of evaluate_reward_model, or "
        "of `rlhf certify`",
    )


class RewardModelTerm(Term):
    """The score of the run's reward model, which must have a certificate; or of several, each with its own."""

    type: Literal["reward_model"] = "reward_model"
    others: tuple[FurtherRewardModel, ...] = Field(
        (), description="Further reward models beside the run's own; their scores are normalised, so that they compare"
    )
    combine: Literal["mean", "worst", "mean_less_spread", "own"] = Field(
        "mean",
        description="Of the scores of several: their mean, the lowest, the mean less spread_weight × spread, or the "
        "run's own alone: the others then only show, as a curve and a meter, where reward models disagree",
    )
    spread_weight: Positive = Field(
        1.0, description="For mean_less_spread: weight of the standard deviation of the scores of several models"
    )
    normalise: Literal["off", "running", "validation"] = Field(  # type: ignore[assignment]
        "off",
        description="validation: less the mean of the scores of its own validation pairs, divided by their standard "
        "deviation, so that beta means the same with every reward model; running: those of all values so far",
    )

    @property
    def members(self) -> tuple["RewardModelTerm", ...]:
        """A term for each of several reward models, named `reward_model.1` and so on; none where there is one."""
        if not self.others:
            return ()
        # What the first is combined by says nothing any more; of the others, that they only measure.
        hows = (type(self).model_fields["combine"].default, *(self.combine for _ in self.others))
        return tuple(
            self.model_copy(update={"name": f"{self.name}.{number}", "others": (), "combine": how})
            for number, how in enumerate(hows, start=1)
        )

    @property
    def only_measures(self) -> bool:
        """Whether it is one of several that gives no reward, and only shows where reward models disagree."""
        return self.combine == "own" and not self.others


class MathTerm(_Verdict):
    """1 if the answer equals the prompt's reference answer as a number or an expression (math-verify), else 0."""

    type: Literal["math"] = "math"
    cpu_s: CpuSeconds = Field(2, description=_CPU_S)

    @property
    def answer_form(self) -> str:
        """A box, as mathematical texts have it."""
        return "\\boxed{{answer}}"


class ExactTerm(_Verdict):
    """1 if the answer is the prompt's reference answer, letter for letter but for white space, else 0."""

    type: Literal["exact"] = "exact"
    ignore_case: bool = Field(True, description="Whether A and a are the same")


class RegexTerm(Term):
    """1 if the completion has a match of the pattern, else 0."""

    type: Literal["regex"] = "regex"
    kind: RewardKind = Field("shaping", description=_KIND)
    pattern: Pattern = Field(description="A regular expression of Python; `.` also matches line breaks")
    whole: bool = Field(False, description="The whole completion must match")
    cpu_s: CpuSeconds = Field(2, description=_CPU_S)


class FormatTerm(Term):
    """1 if the completion is a thought and an answer in their tags, once each and in this order, else 0."""

    type: Literal["format"] = "format"
    thought: Tag = Field("think", description="Tag of the thought")
    answer: Tag = Field("answer", description="Tag of the answer")


class JsonSchemaTerm(Term):
    """1 if the completion, or its last fenced block, is JSON of that schema, else 0."""

    type: Literal["json_schema"] = "json_schema"
    kind: RewardKind = Field("shaping", description=_KIND)
    json_schema: dict[str, JsonValue] = Field(description="A JSON Schema")
    cpu_s: CpuSeconds = Field(2, description=_CPU_S)


class LengthTerm(Term):
    """0 within the target, falling to -1 where the length is `slope_tokens` beside it."""

    type: Literal["length"] = "length"
    target: tuple[FromZero, FromZero] = Field(description="Fewest and most tokens")
    slope_tokens: Annotated[Tokens, Field(ge=1)] = Field(100, description="So many tokens beside the target are -1")

    @model_validator(mode="after")
    def _in_order(self) -> "LengthTerm":
        if self.target[0] > self.target[1]:
            raise ValueError(f"target {list(self.target)}: wanted the fewest tokens, then the most.")
        return self


class KeywordsTerm(Term):
    """The share of the required texts that the completion has, less the share of the forbidden ones."""

    type: Literal["keywords"] = "keywords"
    required: Words = Field((), description="Texts that the completion should have, in capitals or not")
    forbidden: Words = Field((), description="Texts that it should not have")

    @model_validator(mode="after")
    def _some(self) -> "KeywordsTerm":
        if not self.required and not self.forbidden:
            raise ValueError("keywords: name required or forbidden texts.")
        return self


class RepetitionTerm(Term):
    """Minus the share of the completion's word sequences that came before in it."""

    type: Literal["repetition"] = "repetition"
    words: Annotated[BatchSize, Field(ge=1, le=100)] = Field(4, description="Words of a sequence")


class LanguageTerm(Term):
    """0 if the completion is in another language, else 1; code and texts too short to tell count as that language."""

    type: Literal["language"] = "language"
    language: str = Field("english", min_length=2, description="As in filter_dataset.languages")


class PythonTerm(Term):
    """A function of the user's: `score(prompt, completion, answer, columns)` returns a number, or None: no value.

    It runs in a process of its own, without the stage's variables, without files to write, and without network where
    the machine allows that.
    """

    type: Literal["python"] = "python"
    kind: RewardKind = Field("shaping", description=_KIND)
    file: str = Field(min_length=1, pattern=r"\.py$", description="A .py file, read when the run starts")
    function: str = Field("score", pattern=r"^[A-Za-z_]\w*$", description="Its name in the file")
    code: str = Field("", max_length=200_000, description="Leave it out: the run puts the text of the file here")
    needs_answers: bool = Field(False, description="Whether each prompt must have a reference answer")
    right_completion: str = Field(
        "{answer}", min_length=1, description="What a right completion looks like, for the trial before training"
    )
    cpu_s: CpuSeconds = Field(2, description=_CPU_S)

    @property
    def needs_answer(self) -> bool:
        """Whether each prompt must have a reference answer."""
        return self.needs_answers

    @property
    def answer_form(self) -> str:
        """As configured."""
        return self.right_completion


# Every reward that needs no reward model of the run.
OwnTerm: TypeAlias = (
    MathTerm
    | ExactTerm
    | RegexTerm
    | FormatTerm
    | JsonSchemaTerm
    | LengthTerm
    | KeywordsTerm
    | RepetitionTerm
    | LanguageTerm
    | PythonTerm
)
RewardTerm: TypeAlias = Annotated[RewardModelTerm | OwnTerm, Field(discriminator="type")]
REWARD_MODEL_ALONE: tuple[RewardTerm, ...] = (RewardModelTerm(),)


class RewardTrial(Frozen):
    """Before training: do outcomes tell right answers from wrong ones, on the run's own prompts?"""

    num_prompts: BatchSize = Field(64, ge=0, description="Prompts of the trial; 0: none")
    minimum: Annotated[float, Field(gt=0, le=1)] = Field(
        0.9,
        description="Share of reference answers that must count as right, and of wrong, empty and repeated prompts' "
        "that must not",
    )


def outcomes_of(terms: Sequence[RewardTerm]) -> frozenset[str]:
    """Return the names of the outcomes; where no term says right or wrong, the reward model counts as one."""
    found = frozenset(term.name for term in terms if term.is_outcome)
    return found or frozenset(term.name for term in terms if isinstance(term, RewardModelTerm))


def _of_several_models(term: RewardModelTerm, *, key: str) -> Iterator[tuple[str, str]]:
    if term.others and term.normalise != "validation":
        yield (
            f"{key}.normalise",
            f"{term.normalise}: the scores of several reward models differ in level and scale. Use validation.",
        )
    if not term.others and term.combine != "mean":
        yield f"{key}.combine", f"{term.combine} is about several reward models, and `others` names none."
    if term.combine != "mean_less_spread" and term.spread_weight != 1.0:
        yield f"{key}.spread_weight", "is only read by `combine: mean_less_spread`. Leave it out."


def reward_contradictions(terms: Sequence[RewardTerm]) -> Iterator[tuple[str, str]]:
    """Yield for each mistake between terms: its key in train_policy, and a sentence."""
    names, outcomes = [term.name for term in terms], [term.name for term in terms if term.is_outcome]
    for place, term in enumerate(terms):
        key = f"rewards.{place}"
        if names.index(term.name) != place:
            yield f"{key}.name", f"`{term.name}` is the name of another term already. Give it another one."
        if term.only_if is not None and term.only_if not in outcomes:
            yield (
                f"{key}.only_if",
                f"`{term.only_if}` is no outcome of these rewards; outcomes: {', '.join(outcomes) or 'none'}.",
            )
        if term.is_outcome and term.only_if is not None:
            yield f"{key}.only_if", "an outcome cannot depend on another one. Leave it out."
        if term.is_outcome and term.normalise != "off":
            yield f"{key}.normalise", "an outcome is 1 or 0, and stays so: divided, wrong would not be 0. Use off."
        if term.name in outcomes_of(terms) and term.weight <= 0:
            yield f"{key}.weight", f"{term.weight:g}: this term says what is right, so its weight must be above 0."
        if isinstance(term, RewardModelTerm):
            yield from _of_several_models(term, key=key)
    if sum(isinstance(term, RewardModelTerm) for term in terms) > 1:
        yield "rewards", "a run has one reward model; name it once, and further ones in its `others`."
    if not outcomes_of(terms):
        yield (
            "rewards",
            f"{', '.join(names) or 'an empty list'}: no term says which completions are right. Add math, exact or "
            "reward_model, or set `kind: outcome` for a term that does.",
        )
