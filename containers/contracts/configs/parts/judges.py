"""Judges that a configuration can name: `evaluate_policy.judges`.

A judge compares what policy and reference wrote. Any reward but the run's own reward model can be one: of two
completions the one with the higher value is better.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from containers.contracts.base import BatchSize, Seconds, Tokens
from containers.contracts.configs.filter_dataset import ReferenceRewardModel
from containers.contracts.configs.parts.rewards import NamedByType, OwnTerm, RewardTerm, Term

Criteria = Annotated[str, Field(min_length=1, max_length=4000)]
_CRITERIA: str = Field(
    "Judge by correctness first, then by how well the answer does what the user wants, then by clarity.",
    description="What is better, in a sentence or some; part of the question that it gets",
)
# What a reward has for training alone.
_OF_TRAINING = ("weight", "clip", "only_if", "normalise")


class OtherRewardModel(NamedByType, ReferenceRewardModel):
    """A reward model that was trained elsewhere, on other data, by its scores."""

    type: Literal["other_reward_model"] = "other_reward_model"
    certificate: str | None = Field(
        None,
        min_length=1,
        description="The file certificate.json of that model, or the folder that has it; shown beside its figures. "
        "null: none, and the report says so",
    )


class LanguageModelJudge(NamedByType, ReferenceRewardModel):
    """A language model of this machine, on the hub or in a local folder, which sees each pair in both orders."""

    type: Literal["language_model"] = "language_model"
    criteria: Criteria = _CRITERIA
    engine: Literal["transformers", "vllm"] = Field(
        "transformers",
        description="What computes it: transformers, on one GPU; or vLLM, if the stage image has it. A judge that "
        "looks while the policy trains needs transformers",
    )
    vllm_gpus: int = Field(
        1, ge=1, le=64, description="GPUs over which vLLM divides the model; more than 1 only with that engine"
    )


class EndpointJudge(NamedByType):
    """A language model behind an OpenAI-compatible address of your own, which sees each pair in both orders.

    What policy and reference wrote is sent there.
    """

    type: Literal["endpoint"] = "endpoint"
    url: Annotated[str, Field(pattern=r"^https?://[^\s@?#]+$")] = Field(
        description="The address before `/chat/completions`, as `http://127.0.0.1:8000/v1`; without login"
    )
    model: str = Field(min_length=1, max_length=300, description="The model's name there")
    key: Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*_KEY$")] | None = Field(
        None,
        description="Name of the variable, or of the Secret block in Prefect (`JUDGE_KEY`: `judge-key`), that has the "
        "key; the key itself is in no configuration, log or page. null: none is needed",
    )
    criteria: Criteria = _CRITERIA
    max_tokens: Annotated[Tokens, Field(ge=1)] = Field(
        16, description="Of an answer; more for a model that thinks first"
    )
    timeout_s: Seconds = Field(60.0, description="Seconds for an answer; then it is tried again, three times")
    parallel: Annotated[BatchSize, Field(ge=1, le=256)] = Field(8, description="Questions at a time")


class PeopleJudge(NamedByType):
    """People, who see pairs blind with `rlhf judge`; the run waits for them."""

    type: Literal["people"] = "people"
    num_pairs: Annotated[BatchSize, Field(ge=8, le=10_000)] = Field(
        64, description="Pairs that each person judges, drawn by the seed; fewer where there are fewer"
    )
    num_people: Annotated[BatchSize, Field(ge=1, le=100)] = Field(
        1, description="The run goes on once so many have judged all of them"
    )


# Judges that are models from elsewhere.
JudgingModel: TypeAlias = OtherRewardModel | LanguageModelJudge

Judge: TypeAlias = Annotated[JudgingModel | EndpointJudge | PeopleJudge | OwnTerm, Field(discriminator="type")]


def same_judge(judge: Judge, reward: RewardTerm) -> bool:
    """Whether the judge looks at the very thing that the reward looks at."""
    left_out = {"name", "file", "right_completion", "needs_answers", "kind", "cpu_s", *_OF_TRAINING}
    return judge.type == reward.type and judge.model_dump(exclude=left_out) == reward.model_dump(exclude=left_out)


def judge_contradictions(judges: Sequence[Judge]) -> Iterator[tuple[str, str]]:
    """Yield for each mistake between judges: its key in evaluate_policy, and a sentence."""
    names = [judge.name for judge in judges]
    for place, judge in enumerate(judges):
        key = f"judges.{place}"
        if names.index(judge.name) != place:
            yield f"{key}.name", f"`{judge.name}` is the name of another judge already. Give it another one."
        if isinstance(judge, Term):
            for setting in _OF_TRAINING:
                if getattr(judge, setting) != type(judge).model_fields[setting].default:
                    yield f"{key}.{setting}", "is about training. A judge compares two completions; leave it out."
        if isinstance(judge, LanguageModelJudge) and judge.engine != "vllm" and judge.vllm_gpus > 1:
            yield f"{key}.vllm_gpus", f"{judge.vllm_gpus} GPUs are for vLLM. Set `engine: vllm`, or leave it out."
        if isinstance(judge, JudgingModel) and (judge.path is None) == (judge.hub_id is None):
            yield key, "needs either `path` or `hub_id`, and not both."
