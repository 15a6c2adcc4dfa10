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
    BEFORE_MODEL,
    filter_dataset_inputs,
    filter_demonstrations_inputs,
    filter_prompts_inputs,
    made_input,
    suite_inputs,
    vocabulary_input,
)
from tasks.pipeline.judging_inputs import chat_judges_inputs, judging_inputs, training_inputs

# Role → what was made or named so far: an ArtifactRef, a StageInput or a GateVerdict.
Made: TypeAlias = Mapping[str, Any]


# Roles that a stage only waits for; its program does not read them.
ONLY_AWAITED = ("checked", "gate", "set_results")
_OF_THE_REWARD_MODEL = ("reward_model", "gate")
_OF_SEVERAL_SOURCES = (StageName.FILTER_DEMONSTRATIONS, StageName.BUILD_BASE_MODEL, StageName.TRAIN_SFT)


@dataclass(frozen=True)
class Stage:
    """One row of the table.

    Attributes:
        role: the name of the result for later stages.
        reads: the roles that its task gets; Prefect draws the graph from them.
        others: gives the inputs that no stage makes, from the run and what was made; `ask_hub` as in
            `filter_dataset_inputs`.
        named: gives the model that a run names in place of the result; None: it names none.
    """

    name: StageName
    role: str
    reads: tuple[str, ...]
    others: Callable[[RunConfig, Made, bool], tuple[StageInput, ...]] = lambda run, made, ask_hub: ()
    named: Callable[[RunConfig], ModelSource | None] = lambda run: None

    def read_in(self, run: RunConfig) -> tuple[str, ...]:
        """The roles that its task gets in this run: nothing that no stage of it makes."""
        absent: tuple[str, ...] = () if run.has_reward_model else _OF_THE_REWARD_MODEL
        if self.name is StageName.TRAIN_DPO and not run.takes_part(StageName.COMPUTE_REFERENCE):
            absent = ("reference",)
        if self.name in _OF_SEVERAL_SOURCES:
            absent = _unread_sources(run, self.name)
        if not run.takes_part(StageName.EVALUATE_SETS):
            absent = (*absent, "set_results")
        if self.name is StageName.ANSWER_SETS:
            absent = (*absent, *(() if run.has_policy else ("policy",)))
            absent = (*absent, *(() if run.takes_part(StageName.TRAIN_SFT) else (BEFORE_MODEL,)))
        return tuple(role for role in self.reads if role not in absent)

    def inputs(self, run: RunConfig, made: Made, ask_hub: bool) -> tuple[StageInput, ...]:
        """The program's inputs, from what was made and from the run; `ask_hub` as in `filter_dataset_inputs`."""
        read = (made_input(role, made[role]) for role in self.read_in(run) if role not in ONLY_AWAITED)
        return *read, *self.others(run, made, ask_hub)


def _unread_sources(run: RunConfig, stage: StageName) -> tuple[str, ...]:
    """The rows that a stage does not read in this run, by role; it could read several kinds."""
    sources = {"pairs": run.dataset, "prompts": run.prompts, "demonstrations": run.demonstrations}
    absent = {role for role, source in sources.items() if source is None}
    if stage is StageName.BUILD_BASE_MODEL and run.dataset is not None:
        absent.add("prompts")
    if stage is StageName.TRAIN_SFT and run.demonstrations is not None:
        absent.add("pairs")
    return tuple(absent)


def _data(run: RunConfig, made: Made, ask_hub: bool) -> tuple[StageInput, ...]:
    if run.dataset is None:
        return ()
    return filter_dataset_inputs(run.filter_dataset, run.dataset, run.base_model, run.held_out, ask_hub=ask_hub)


def _prompts(run: RunConfig, made: Made, ask_hub: bool) -> tuple[StageInput, ...]:
    if run.prompts is None:
        return ()
    return filter_prompts_inputs(run.filter_prompts, run.prompts, run.held_out, ask_hub=ask_hub)


def _demonstrations(run: RunConfig, made: Made, ask_hub: bool) -> tuple[StageInput, ...]:
    if run.demonstrations is None:
        return ()
    return filter_demonstrations_inputs(run.filter_demonstrations, run.demonstrations, run.held_out, ask_hub=ask_hub)


STAGES = (
    Stage(StageName.FILTER_DATASET, "pairs", ("checked",), _data),
    Stage(StageName.FILTER_PROMPTS, "prompts", ("checked",), _prompts),
    # It reads which prompts judge the models of the run.
    Stage(StageName.FILTER_DEMONSTRATIONS, "demonstrations", ("checked", "pairs", "prompts"), _demonstrations),
    Stage(
        StageName.BUILD_BASE_MODEL,
        "start_model",
        ("pairs", "prompts", "demonstrations"),
        lambda run, made, ask_hub: vocabulary_input(run.tokenizer_file),
        named=lambda run: run.base_model if run.needs_start_model else None,
    ),
    Stage(StageName.TRAIN_SFT, "start_model", ("pairs", "demonstrations", "start_model")),
    Stage(StageName.TRAIN_REWARD_MODEL, "reward_model", ("pairs", "start_model"), named=lambda run: run.reward_model),
    Stage(
        StageName.EVALUATE_REWARD_MODEL,
        "gate",
        ("pairs", "reward_model"),
        lambda run, made, ask_hub: suite_inputs(run.evaluate_reward_model.suites, ask_hub=ask_hub),
    ),
    Stage(StageName.COMPUTE_REFERENCE, "reference", ("pairs", "start_model")),
    Stage(StageName.TRAIN_DPO, "policy", ("pairs", "start_model", "reference")),
    Stage(
        StageName.TRAIN_POLICY,
        "policy",
        ("prompts", "start_model", "reward_model", "gate"),
        training_inputs,
    ),
    Stage(
        StageName.ANSWER_SETS,
        "answers",
        (BEFORE_MODEL, "start_model", "policy"),
        lambda run, made, ask_hub: suite_inputs(run.sets, ask_hub=ask_hub),
    ),
    Stage(
        StageName.EVALUATE_SETS,
        "set_results",
        ("answers", "start_model", "reward_model"),
        lambda run, made, ask_hub: (*suite_inputs(run.sets, ask_hub=ask_hub), *chat_judges_inputs(run, made, ask_hub)),
    ),
    Stage(StageName.SAMPLE_COMPLETIONS, "completions", ("prompts", "start_model", "policy")),
    Stage(
        StageName.EVALUATE_POLICY,
        "verdict",
        ("completions", "start_model", "reward_model", "set_results"),
        judging_inputs,
    ),
)
BY_NAME: Mapping[StageName, Stage] = {stage.name: stage for stage in STAGES}
# The stages of a policy only.
OF_THE_POLICY = tuple(STAGES[STAGES.index(BY_NAME[StageName.COMPUTE_REFERENCE]) :])


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
            if stage.name is StageName.TRAIN_SFT:
                made[BEFORE_MODEL] = made["start_model"]
            made[stage.role] = resolver.made(stage, made)
            if stage.name is StageName.FILTER_DATASET and run.prompts is None:
                made["prompts"] = made[stage.role]  # it sets some aside for the policy
            yield stage, made[stage.role]
        elif source is not None:
            made[stage.role] = resolver.named(stage, source)
