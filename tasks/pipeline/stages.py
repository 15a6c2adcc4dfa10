"""The stages of the pipeline: what each reads, and the role under which later stages find its result.

Run, cache look-up, `rlhf plan` and retraining walk over this table (`walk`), each with its own resolver.
`containers.contracts.pipeline` says what a stage computes on, and which model it trains or judges. The container reads
that module as well.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from containers.contracts.configs.stages import StageConfig
from containers.contracts.names import StageName
from containers.contracts.spec import StageInput
from tasks.config.run import RunConfig
from tasks.config.sources import ModelSource
from tasks.pipeline.inputs import (
    build_base_model_inputs,
    evaluate_policy_inputs,
    evaluate_reward_model_inputs,
    filter_dataset_inputs,
    train_policy_inputs,
    training_inputs,
)

# Role → what was made or named so far: an ArtifactRef, a StageInput or a GateVerdict.
Made: TypeAlias = Mapping[str, Any]


def _nothing_named(run: RunConfig) -> ModelSource | None:
    return None


@dataclass(frozen=True)
class Stage:
    """One row of the table.

    Attributes:
        role: the name of the result for later stages.
        reads: the roles that its task gets; Prefect draws the graph from them.
        inputs: gives the program's inputs, from the run and what was made; `ask_hub` as in `filter_dataset_inputs`.
        named: gives the model that a run names in place of the result; None: it names none.
    """

    name: StageName
    role: str
    reads: tuple[str, ...]
    inputs: Callable[[RunConfig, Made, bool], tuple[StageInput, ...]]
    named: Callable[[RunConfig], ModelSource | None] = _nothing_named


def _data(run: RunConfig, made: Made, ask_hub: bool) -> tuple[StageInput, ...]:
    suites = run.evaluate_reward_model.suites
    return filter_dataset_inputs(run.filter_dataset, run.dataset, run.base_model, suites, ask_hub=ask_hub)


def _certificate(run: RunConfig, made: Made, ask_hub: bool) -> tuple[StageInput, ...]:
    return evaluate_reward_model_inputs(run.evaluate_reward_model, made["pairs"], made["reward_model"], ask_hub=ask_hub)


STAGES = (
    Stage(StageName.FILTER_DATASET, "pairs", ("checked",), _data),
    Stage(
        StageName.BUILD_BASE_MODEL,
        "start_model",
        ("pairs",),
        lambda run, made, ask_hub: build_base_model_inputs(made["pairs"], run.tokenizer_file),
        named=lambda run: run.base_model if run.needs_start_model else None,
    ),
    Stage(
        StageName.TRAIN_SFT,
        "start_model",
        ("pairs", "start_model"),
        lambda run, made, ask_hub: training_inputs(made["pairs"], made["start_model"]),
    ),
    Stage(
        StageName.TRAIN_REWARD_MODEL,
        "reward_model",
        ("pairs", "start_model"),
        lambda run, made, ask_hub: training_inputs(made["pairs"], made["start_model"]),
        named=lambda run: run.reward_model,
    ),
    Stage(StageName.EVALUATE_REWARD_MODEL, "gate", ("pairs", "reward_model"), _certificate),
    Stage(
        StageName.TRAIN_POLICY,
        "policy",
        ("pairs", "start_model", "reward_model", "gate"),
        lambda run, made, ask_hub: train_policy_inputs(made["pairs"], made["start_model"], made["reward_model"]),
    ),
    Stage(
        StageName.EVALUATE_POLICY,
        "verdict",
        ("pairs", "start_model", "policy", "reward_model"),
        lambda run, made, ask_hub: evaluate_policy_inputs(
            made["pairs"], made["start_model"], made["policy"], made["reward_model"]
        ),
    ),
)
BY_NAME: Mapping[StageName, Stage] = {stage.name: stage for stage in STAGES}
# The stages of a policy only.
OF_THE_POLICY = tuple(STAGES[STAGES.index(BY_NAME[StageName.TRAIN_POLICY]) :])


def required_config(run: RunConfig, stage: StageName) -> StageConfig:
    """Return the configuration of the stage's program.

    Raises:
        LookupError: the stage takes no part in this run.
    """
    config = run.stage_config(stage)
    if config is None:
        raise LookupError(f"{stage} takes no part in this run.")
    return config


class Resolver(Protocol):
    """Gives `walk` the result of a stage: makes it, looks it up, or compares its key with the last one."""

    def made(self, stage: Stage, made: Made) -> Any:
        """Return the result; later stages find it under the stage's role. Any exception ends the walk."""

    def named(self, stage: Stage, source: ModelSource) -> StageInput:
        """Return the model that the run names in place of the result."""


def walk(
    run: RunConfig, resolver: Resolver, *, made: dict[str, Any] | None = None, stages: tuple[Stage, ...] = STAGES
) -> Iterator[tuple[Stage, Any]]:
    """Yield every stage that takes part in the run, in order, with the resolver's result.

    Args:
        made: results known before the walk, by role; the walk adds its own.
    """
    made = {} if made is None else made
    for stage in stages:
        source = stage.named(run)
        if run.takes_part(stage.name):
            made[stage.role] = resolver.made(stage, made)
            yield stage, made[stage.role]
        elif source is not None:
            made[stage.role] = resolver.named(stage, source)
