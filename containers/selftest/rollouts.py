"""Probe `rollouts`: the run's rollout engine on a policy of its shape with random weights, whose adapters change.

The engine starts as in the stage, which tries it on the start weights. Then the policy is moved away from them and
back; each time the engine must say what the policy says. At last it writes completions of the run's rows, timed.
"""

import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.distributed.ranks import is_first_rank, of_all_ranks
from containers.harness.errors import StageError
from containers.models.trial import evaluating
from containers.packing.logps import causal_of
from containers.rollouts.engines import Rollouts, start_rollouts
from containers.rollouts.generate import padded_rows, sampled_completions, whole_distribution
from containers.rollouts.vllm_trial import SHARE_OF_MOVE, moved_weights
from containers.selftest.cards import settle
from containers.selftest.policy_step import ShapeTraining
from containers.selftest.probe import Bench, Findings, NotHereError
from containers.selftest.shape import drawn, with_files_of

_NEW_TOKENS, _GREEDY_TOKENS, _PAD = 64, 16, 0
# Standard deviation of the logits, in nats.
_SPREAD = 2.0
# The tokens must take so much of a run's time for their own time to be known.
_LEAST_SHARE = 0.2


class EngineTraining(ShapeTraining):
    """The stage's training up to its first rollout, with the engine of the run.

    Attributes:
        start_s: seconds until the engine had started and was tried.
        written_s: seconds in which the model's files were written for it.
    """

    start_s = written_s = 0.0

    def start_engine(self, prompts: Sequence[Sequence[int]]) -> Rollouts:
        """Write the model for an engine that reads it from files, and start the engine."""
        began = time.monotonic()
        if self.config.rollout_engine == "vllm":
            # All weights reach it through files, too.
            copies = 1 if self.config.lora is not None else 2
            self.context = with_files_of(self.model if is_first_rank() else None, self.context, copies=copies)
        self.written_s, began = time.monotonic() - began, time.monotonic()
        started = start_rollouts(self.context, self.config, self.model, prompts)
        self.start_s = time.monotonic() - began
        return started

    def untrained_model(self) -> PreTrainedModel:
        """Make the model; for vLLM with a head whose words differ, so that other weights move what it says by a nat.

        What an engine of this program says is seen by its likeliest tokens alone, which such a head would not change.
        """
        model = super().untrained_model()
        if self.config.rollout_engine != "vllm":
            return model
        head = model.get_output_embeddings().weight
        with torch.no_grad():
            head.mul_(_SPREAD / max(float(head.float().std()) * head.shape[1] ** 0.5, 1e-6))
        return model

    def made_reference(self) -> PreTrainedModel | None:
        """Return none: no KL is computed."""
        return None


def probe(bench: Bench, found: Findings) -> None:
    """Start the engine, change the policy's weights twice, and time completions of all ranks."""
    config = bench.context.spec.config
    engine = config.rollout_engine if isinstance(config, TrainPolicyConfig) else ""
    if engine == "vllm" and not bench.on_gpu and find_spec("vllm") is None:
        raise NotHereError("vLLM is not installed here, and the profile has no GPUs")
    training = EngineTraining.of(bench)
    try:
        training.prepare()
        found.add("start", training.start_s, "s", of=engine)
        if engine == "vllm":
            found.add("files", training.written_s, "s", of="the model, for vLLM")
        trainer = training.build_trainer(None)
        policy = trainer.accelerator.unwrap_model(trainer.model)
        _change_weights(training, policy, found)
        _time_completions(training, policy, rows=trainer.rollouts.rows_per_rank, found=found)
    finally:
        training.close()
    found.notes += [bench.request.model_note] if bench.request.model_note else []


def _change_weights(training: EngineTraining, policy: Any, found: Findings) -> None:
    """Have the engine write greedily at the start weights, at others, and at the start weights again.

    Raises:
        StageError: it does not say what the policy says.
    """
    causal, prompts = causal_of(policy), [prompt.token_ids for prompt in training.prompts.prompts]
    with evaluating(causal), moved_weights(policy, causal, [prompts[0]]) as moved:
        apart = {"moved": _apart(training, policy)}
    apart["moved back"] = _apart(training, policy)
    found.add("moved", moved, "nats a token")
    for name, value in apart.items():
        found.add("apart", value, "nats a token", of=name)
    if wrong := [name for name, value in apart.items() if not value <= SHARE_OF_MOVE * moved]:
        raise StageError(
            f"{training.config.rollout_engine} is {apart[wrong[0]]:.2g} nats a token from the policy when its weights "
            f"are {wrong[0]}, which moves the policy by {moved:.2g}"
        )


def _apart(training: EngineTraining, policy: Any) -> float:
    """Return how far what the engine says of its greedy tokens is from the policy's own log-probabilities.

    An engine in this program says nothing; its tokens are then to be the policy's likeliest.
    """
    causal = causal_of(policy)
    rows = [prompt.token_ids for prompt in training.prompts.prompts[:2]]
    input_ids, mask = padded_rows(rows, _PAD, side="left", device=causal.device)
    new_tokens = min(_GREEDY_TOKENS, training.config.max_completion_length)
    settings = GenerationConfig(
        max_new_tokens=new_tokens, do_sample=False, pad_token_id=_PAD, eos_token_id=None, disable_compile=True
    )
    with evaluating(causal), whole_distribution(causal):
        with training.writing(policy):
            written = causal.generate(input_ids=input_ids, attention_mask=mask, generation_config=settings)
        tails = written[:, input_ids.shape[1] :].tolist()
        said = training.rollouts.sampling() if training.rollouts and training.rollouts.sampling else None
        gaps = []
        for place, (prompt, tail) in enumerate(zip(rows, tails, strict=True)):
            ids = torch.tensor([[*prompt, *tail]], device=causal.device)
            logits = causal(input_ids=ids, use_cache=False, logits_to_keep=len(tail) + 1).logits
            logps = logits[0, -len(tail) - 1 : -1].float().log_softmax(-1).cpu()
            own = logps.gather(-1, torch.tensor(tail)[:, None]).squeeze(-1)
            gaps.append((own - (logps.amax(-1) if said is None else torch.tensor(said[place]))).abs())
    return float(torch.cat(gaps).mean())


def _time_completions(training: EngineTraining, policy: Any, *, rows: int, found: Findings) -> None:
    """Write completions of a rollout's rows on every rank, and keep the rate of all and the time of a token."""
    config, device, siblings = training.config, training.bench.device, training.config.num_generations
    longest = max(2, min(_NEW_TOKENS, config.max_completion_length))
    counts, took = [], []
    with training.writing(policy):
        # The first wakes an engine that sleeps. Other prompts each time: vLLM keeps what it has computed of a prompt.
        for run, tokens in enumerate((1, 1, longest)):
            prompts = [
                drawn(config.max_prompt_length, seed=10_000 * (run + 1) + row // siblings, words=training.words)
                for row in range(rows)
            ]
            settle(device)
            began = time.monotonic()
            completions = sampled_completions(
                causal_of(policy),
                training.tokenizer,
                prompts,
                max_new_tokens=tokens,
                temperature=config.temperature,
            )
            settle(device)
            took.append(time.monotonic() - began)
            counts.append(sum(len(one.completion_ids) for one in completions))
    ranks, of_tokens = of_all_ranks((counts[-1], took[-1])), took[-1] - took[-2]
    found.add("rows", rows, "completions")
    found.add("rate", sum(count for count, _ in ranks) / max(seconds for _, seconds in ranks), "tokens/s")
    if of_tokens < _LEAST_SHARE * took[-1]:
        found.notes.append(f"the time of {longest} tokens is not to be told from that of one")
    else:
        found.add("engine_token", of_tokens / (longest - 1), "s")
