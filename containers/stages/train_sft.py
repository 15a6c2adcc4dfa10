"""train_sft: fine-tune on the completions of the training pairs with TRL's SFTTrainer; loss on the completion only."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed
from trl import SFTConfig, SFTTrainer

from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.outcome import Metric
from containers.data.pairs import Row
from containers.distributed.devices import compute_device, compute_dtype
from containers.formatting import one_line
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, StageError
from containers.models.chat_template import ANSWER_AT_ONCE
from containers.models.loading import apply_lora, load_causal_model, require_own_tokenizer
from containers.models.template_losses import TemplateLosses
from containers.models.token_batches import prompt_token_ids, tokens_of_all
from containers.packing.kernel import try_kernels
from containers.training.arguments import common_arguments
from containers.training.examples import as_dataset
from containers.training.program import PairTraining, run_training, save_causal_model
from containers.training.records import Prepared, peak_memory_bytes
from containers.training.sharding import ready_to_divide

Turns = list[dict[str, str]]


def run(context: StageContext) -> tuple[Metric, ...]:
    """Train, verify, and save `model/` (merged) and, with LoRA, `adapter/`. Keeps the lowest eval_loss."""
    return run_training(context, SftTraining(context))


class SftTraining(PairTraining[TrainSftConfig]):
    """Supervised fine-tuning on the prompt with the chosen completion of each pair, or with both."""

    config_type = TrainSftConfig
    token_fields, unit = ("input_ids",), "completions"

    @property
    def algorithm(self) -> str:
        """Name of the algorithm in the report."""
        return f"supervised fine-tuning on {self.config.completions} completions, TRL SFTTrainer"

    def prepare(self) -> Prepared:
        """Tokenise the completions."""
        try_kernels(compute_device(self.context.spec.profile))
        return super().prepare()

    def tokenised(self, rows: Sequence[Row], *, losses: TemplateLosses) -> list[list[Row]]:
        """Return the tokens of each completion of the rows; see `tokenised_completions`."""
        sides = ("chosen", "rejected") if self.config.completions == "both" else ("chosen",)
        completions = [(row["prompt"], row[side]) for row in rows for side in sides]
        found = iter(tokenised_completions(self.tokenizer, completions, losses=losses))
        return [[next(found) for _ in sides] for _ in rows]

    def build_trainer(self, checkpoint: Path | None) -> SFTTrainer:
        """Build TRL's trainer on completions that are tokenised already.

        Raises:
            StageError: TRL dropped completions.
        """
        context, config, columns = self.context, self.config, ["input_ids", "completion_mask"]
        arguments = common_arguments(
            context, optimizer=config.optimizer, schedule=self.schedule, batch=context.spec.batch
        )
        kept = self.examples.train.kept
        trainer = SFTTrainer(
            model=self.untrained_model(),
            args=ready_to_divide(
                SFTConfig(
                    **arguments,
                    max_length=config.max_length,
                    completion_only_loss=True,
                    gradient_checkpointing=config.gradient_checkpointing,
                ),
                context.spec.profile,
            ),
            train_dataset=as_dataset(kept, columns),
            eval_dataset=as_dataset(self.examples.validation.kept, columns),
            processing_class=self.tokenizer,
            callbacks=self.callbacks(checkpoint),
        )
        if len(trainer.train_dataset) != len(kept):
            raise StageError(
                f"SFTTrainer dropped completions on its own: it kept {len(trainer.train_dataset)} of {len(kept)}."
            )
        return trainer

    def untrained_model(self) -> PreTrainedModel | PeftModel:
        """Load the start model, with adapters if configured."""
        context, config = self.context, self.config
        # Adapters begin with random weights, the same ones on each rank.
        set_seed(context.spec.seed)
        # Whole models train in float32 under autocast; with adapters, the frozen weights may be bfloat16.
        dtype = compute_dtype(context.spec.profile) if config.lora else torch.float32
        start, device = context.input_path("start_model"), compute_device(context.spec.profile)
        model = load_causal_model(start, dtype=dtype, device=device, note=context.recorder.note)
        require_own_tokenizer(model, self.tokenizer, folder=start)
        return apply_lora(model, config.lora, task_type="CAUSAL_LM")

    def save(self, trainer: SFTTrainer) -> None:
        """Save `model/` and, with adapters, `adapter/`."""
        save_causal_model(self.context, trainer.model, self.tokenizer)

    def metrics(self, trainer: SFTTrainer, parameters: tuple[int, int]) -> tuple[Metric, ...]:
        """Return the losses, and the numbers of completions left out."""
        count = len(self.examples.validation.kept)
        return (
            Metric(name="validation_loss", value=trainer.state.best_metric, unit="nats", count=count),
            *self.shared_metrics(trainer, parameters),
            Metric(name="peak_memory", value=peak_memory_bytes(), unit="bytes"),
        )


def tokenised_completions(
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[tuple[Turns, Turns]],
    *,
    losses: TemplateLosses | None = None,
) -> list[Row]:
    """Return `input_ids` and `completion_mask` of each prompt with its completion; mask 1: the policy writes the token.

    The tokens begin with those that rollouts and evaluate_policy generate from; for Qwen3 with the empty thought before
    the answer. The mask is 1 on all that follow: the completion and the end of its turn.

    If a token of the whole conversation spans the end of the prompt, prompt and completion are tokenised separately, as
    in generation. Example: the two line breaks of "assistant\\n" and "\\nYes." would be one token, with which no prompt
    ends. Otherwise the whole conversation is tokenised at once.

    Args:
        losses: counts what the chat template leaves out of prompt and completion.

    Raises:
        BadConfigError: the chat template refuses a conversation, or writes a prompt differently when its completion
            follows; says for how many.
    """
    starts = prompt_token_ids(tokenizer, [prompt for prompt, _ in pairs])
    wholes = tokens_of_all(
        tokenizer, [[*prompt, *completion] for prompt, completion in pairs], for_the_policy=True, losses=losses
    )
    rewritten = []
    for place, (start, whole) in enumerate(zip(starts, wholes, strict=True)):
        if whole[: len(start)] != start:
            rest = _rest(tokenizer, *pairs[place], start_ids=start)
            if rest is None:
                rewritten.append(place)
            else:
                wholes[place] = start + rest
    if rewritten:
        raise BadConfigError(_refusal([pairs[place] for place in rewritten], num_pairs=len(pairs)))
    return [
        {"input_ids": whole, "completion_mask": [0] * len(start) + [1] * (len(whole) - len(start))}
        for start, whole in zip(starts, wholes, strict=True)
    ]


def _rest(
    tokenizer: PreTrainedTokenizerBase, prompt: Turns, completion: Turns, *, start_ids: Sequence[int]
) -> list[int] | None:
    """Return the tokens of what the template writes after the prompt; None if it then writes another prompt.

    Also None if the tokens decode to another text: some tokenizers (Llama 2's) put a space before each text.
    """
    start = str(tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True, **ANSWER_AT_ONCE))
    whole = str(tokenizer.apply_chat_template([*prompt, *completion], tokenize=False, **ANSWER_AT_ONCE))
    if not whole.startswith(start):
        return None
    rest = whole.removeprefix(start)
    encoded: Mapping[str, list[int]] = tokenizer(rest, add_special_tokens=False)
    ids = list(encoded["input_ids"])
    return ids if _written(tokenizer, [*start_ids, *ids]) == _written(tokenizer, start_ids) + rest else None


def _written(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))


def _refusal(rewritten: Sequence[tuple[Turns, Turns]], *, num_pairs: int) -> str:
    prompt, completion = rewritten[0]
    roles = ", ".join(turn["role"] for turn in [*prompt, *completion])
    return (
        f"The chat template writes the prompt of {len(rewritten):,} of {num_pairs:,} completions differently when the "
        "completion follows, so the model would learn from prompts that generation never uses. The first has the "
        f"turns {roles} and answers `{one_line(completion[-1]['content'], 80)}`. The usual causes are a template that "
        "moves or drops a system prompt (Mistral), and answers that hold a thought (`</think>`). Set "
        "train_sft.chat_template to another one, by name (chatml, say) or as a .jinja file, or leave such rows out of "
        "the data."
    )
