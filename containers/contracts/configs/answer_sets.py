"""Configuration of answer_sets, and of the standard sets on which the models of a run are measured side by side."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from containers.contracts.base import BatchSize, Fraction, Frozen, Rows, Tokens, Weight
from containers.contracts.configs.parts.data_file import DataFile
from containers.contracts.registries import SetKindName

LM_EVAL = "lm_eval"
CHATS = "chats"
# Kinds whose items have a reference answer each.
WITH_ANSWERS = ("math", "exact")


class StandardSet(DataFile):
    """A set of questions, and the rule that says which answers are right."""

    kind: SetKindName = Field(
        description="How rows are read and answers judged: docs/sets.md. math, exact: by the reference answer; ifeval: "
        "by IFEval's rules; refusals: whether it refuses what it should; chats: MT-Bench, AlpacaEval, by "
        "evaluate_policy.judges; lm_eval: a task of lm-evaluation-harness, whose YAML is in the folder `path`"
    )
    task: str = Field("", max_length=200, description="Of kind lm_eval: the name of the task; else empty")
    instruction: str = Field(
        "",
        max_length=4000,
        description="Text after each question, such as `Put the final answer into \\boxed{}.`; empty: none",
    )
    max_completion_length: Tokens | None = Field(
        None, ge=1, description="Tokens of an answer; null: as answer_sets.max_completion_length"
    )
    maximum_loss: Fraction | None = Field(
        None,
        description="The policy's gate closes if the policy loses more than this against the model that it started "
        "from, beyond chance; 0.01 is one point. null: only reported",
    )
    must_rule_out: bool = Field(
        False,
        description="The gate also closes if these items cannot rule out a larger loss than maximum_loss, at 95 % "
        "one-sided",
    )

    @property
    def benchmark(self) -> str:
        """How its rows are read, under the name that suites have for it."""
        return self.kind

    @property
    def has_rows(self) -> bool:
        """Whether its questions can be read from its files; the harness reads those of its tasks itself."""
        return self.kind != LM_EVAL

    @property
    def for_programs(self) -> "StandardSet":
        """The set without what changes no answer: its place, which is an input, and what the gate demands of it."""
        given = {"hub_id": None, "revision": None, "path": self.name, "maximum_loss": None, "must_rule_out": False}
        return self.model_copy(update=given)


class AnswerSetsConfig(Frozen):
    """The model before fine-tuning, the policy's start model and the policy answer the same standard sets."""

    stage: Literal["answer_sets"] = "answer_sets"
    sets: tuple[StandardSet, ...] = Field(min_length=1, description="The sets, each a file or a folder of your own")
    max_items: Rows | None = Field(None, ge=2, description="Items of each set, drawn by the seed; null: all")
    max_prompt_length: Tokens = Field(2048, ge=4, description="Tokens; longer questions are left out and counted")
    max_completion_length: Tokens = Field(1024, ge=1, description="Tokens of an answer")
    completions_per_item: BatchSize = Field(
        1, ge=1, description="Answers to each question, for pass@k; more than one needs a temperature"
    )
    temperature: Weight = Field(0.0, description="0 is greedy, as published figures mostly are")
    enable_thinking: bool = Field(False, description="Leave it out: the run puts train_policy.enable_thinking here")
    rollout_engine: Literal["transformers", "vllm"] = Field(
        "transformers", description="Leave it out: the run puts that of evaluate_policy here"
    )
    batch_size: BatchSize = Field(16, ge=1, description="Answers per forward, at most; vLLM takes as many as it can")

    @property
    def has_chats(self) -> bool:
        """Whether a set is judged by pairs."""
        return any(one.kind == CHATS for one in self.sets)

    def contradictions(self) -> Iterator[tuple[str, str]]:
        """Yield for each mistake between keys: its key in answer_sets, and a sentence."""
        names = [one.name for one in self.sets]
        for place, one in enumerate(self.sets):
            key = f"sets.{place}"
            if names.index(one.name) != place:
                yield f"{key}.name", f"`{one.name}` is the name of another set already. Give it another one."
            if one.kind == LM_EVAL and not one.task:
                yield f"{key}.task", "is empty. Name the task of lm-evaluation-harness, as its YAML file does."
            if one.kind == LM_EVAL and one.hub_id is not None:
                yield (
                    f"{key}.hub_id",
                    "is not for kind lm_eval: its task is a folder of this machine, with YAML and data.",
                )
            if one.kind == LM_EVAL and one.instruction:
                yield f"{key}.instruction", "has no effect on kind lm_eval; the task's YAML has the whole question."
            if one.kind != LM_EVAL and one.task:
                yield f"{key}.task", f"has no effect on kind {one.kind}. Leave it out."
            if one.kind == CHATS and one.maximum_loss is not None:
                yield f"{key}.maximum_loss", "of a set that is judged by pairs: its win rate is no loss. Leave it out."
            if one.must_rule_out and one.maximum_loss is None:
                yield f"{key}.must_rule_out", "says nothing without maximum_loss. Set both, or neither."
        if self.completions_per_item > 1 and not self.temperature:
            yield (
                "temperature",
                f"is 0, so all {self.completions_per_item} answers to a question are the same. Raise it, or leave out "
                "completions_per_item.",
            )
