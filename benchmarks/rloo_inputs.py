"""Inputs of the benchmarks of on-policy steps: models, prompts, given completions, and a trainer of each way."""

import copy
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    Qwen3ForCausalLM,
    TrainingArguments,
)
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from benchmarks.rloo_ways import (
    ANSWER_TOKENS,
    COMPLETIONS,
    OURS,
    PPO,
    PROMPT_TOKENS,
    STEP_PROMPTS,
    Lengths,
    drawn_lengths,
    every_way,
)
from benchmarks.speed_inputs import pairs_of, save_reward_model
from benchmarks.speed_place import CPU, Place
from containers.algorithms.policy_rollouts import PolicyRollouts
from containers.algorithms.policy_step import PolicyStep
from containers.algorithms.policy_trainer import PolicyTrainer, StepNumbers
from containers.contracts.configs.parts.training import LoraSettings
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.critics.critic import Critic
from containers.models.loading import apply_lora, peft_config
from containers.models.shared_base import sharing_classifier
from containers.models.token_batches import prompt_token_ids
from containers.packing.logps import add_logps, causal_of, completion_packs
from containers.rewards.base import Answered, Reward, StartedTerm, Value
from containers.rewards.policy_reward import PolicyReward
from containers.rewards.reward_model import ModelReward, policy_scorer
from containers.rollouts.generate import Completion
from containers.rollouts.prompts import PolicyPrompt
from containers.rollouts.shared_prompts import sharing
from containers.scoring.scorer import classifier_of, score_head_weight

ADAPTERS = LoraSettings(r=16, alpha=32)
Task = tuple[str, list[str]]
# Pairs whose texts are cut into prompts and completions: of letters, and of rows, which are short.
_TEXT_PAIRS = {True: 50, False: 1500}


def prepare(
    folder: Path,
    *,
    data: Path | None,
    count: int,
    seeds: Sequence[int],
    completions: int = COMPLETIONS,
    place: Place = CPU,
) -> dict[int, Lengths]:
    """Write models, and for each seed prompts and completions; return the tokens of each prompt and completion."""
    save_reward_model(folder / "reward", data=data, place=place)
    tokenizer = AutoTokenizer.from_pretrained(folder / "reward")
    torch.manual_seed(1)
    Qwen3ForCausalLM(AutoConfig.from_pretrained(folder / "reward")).save_pretrained(folder / "policy")
    tokenizer.save_pretrained(folder / "policy")
    found: dict[int, Lengths] = {}
    for seed in seeds:
        pairs = pairs_of(data, _TEXT_PAIRS[data is None], seed=seed)
        text = "\n".join(message["content"] for pair in pairs for side in pair for message in side)
        tasks = _tasks(tokenizer, text, drawn_lengths(count, seed=seed, completions=completions))
        draw_folder(folder, seed).mkdir()
        (draw_folder(folder, seed) / "tasks.json").write_text(json.dumps(tasks))
        found[seed] = [
            (_length(tokenizer, prompt), [_length(tokenizer, answer) for answer in answers])
            for prompt, answers in tasks
        ]
    return found


def draw_folder(folder: Path, draw: int) -> Path:
    """Return where the prompts of that batch are, beside the models that all draws share."""
    return folder / f"draw-{draw}"


def load(folder: Path, place: Place = CPU) -> tuple[list[Task], PreTrainedTokenizerBase, Any, Any]:
    """Read what `prepare` wrote for a draw: prompts with completions, tokenizer, policy, and reward model."""
    tasks: list[Task] = json.loads((folder / "tasks.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(folder.parent / "policy")
    policy = AutoModelForCausalLM.from_pretrained(folder.parent / "policy", dtype=place.dtype).to(place.device)
    judge = AutoModelForSequenceClassification.from_pretrained(folder.parent / "reward", dtype=place.dtype).eval()
    judge.to(place.device)
    policy(input_ids=torch.tensor([[5] * 64], device=place.device))  # warm up threads and allocator
    return tasks, tokenizer, policy, judge


def _tasks(tokenizer: PreTrainedTokenizerBase, text: str, lengths: Lengths) -> list[Task]:
    """Cut prompts with completions of these lengths from a text, one after the other."""
    needed = sum(prompt + sum(answers) for prompt, answers in lengths)
    ids = iter(tokenizer(text[: 8 * needed], add_special_tokens=False).input_ids)

    def cut(length: int) -> str:
        return str(tokenizer.decode([next(ids) for _ in range(length)]))

    return [(cut(prompt), [cut(answer) for answer in answers]) for prompt, answers in lengths]


def _length(tokenizer: PreTrainedTokenizerBase, text: str) -> int:
    return len(tokenizer(text, add_special_tokens=False).input_ids)


class Dealt(PolicyRollouts):
    """Our rollouts with given completions instead of sampled ones."""

    known: Mapping[int, list[list[int]]]

    def written(self, policy: Any, places: Sequence[int]) -> list[Completion]:
        """Return the given completions of these prompts, in order."""
        found = []
        for row, place in enumerate(places):
            ids = self.known[place][row % len(self.known[place])]
            text = self.tokenizer.decode(ids, skip_special_tokens=True)
            ended = ids[-1] == self.tokenizer.eos_token_id
            found.append(Completion(self.prompts[place].token_ids, tuple(ids), text=text, ended=ended))
        return found


def deal(trainer: Any, tokenizer: PreTrainedTokenizerBase, tasks: list[Task]) -> None:
    """Give the trainer these completions instead of sampled ones; every second one ends, the others are cut off."""

    def ids_of(text: str, place: int) -> list[int]:
        return [*tokenizer(text, add_special_tokens=False).input_ids, *[tokenizer.eos_token_id] * (place % 2)]

    answers_of = [[ids_of(text, place) for place, text in enumerate(answers)] for _, answers in tasks]
    if isinstance(trainer, PolicyTrainer):
        trainer.rollouts = Dealt(**vars(trainer.rollouts))
        trainer.rollouts.known = dict(enumerate(answers_of))
        return
    prompts = trainer._tokenize_prompts([_conversation(prompt) for prompt, _ in tasks])[0]
    known = {tuple(prompt): answers for prompt, answers in zip(prompts, answers_of, strict=True)}

    def dealt(prompt_ids: list[list[int]], *_: Any) -> Any:
        found = [known[tuple(ids)][place % len(known[tuple(ids)])] for place, ids in enumerate(prompt_ids)]
        return (found, None) if isinstance(trainer, GRPOTrainer) else found  # with no log-probabilities of vLLM's

    trainer._generate_single_turn = dealt


class Letters(Reward):
    """The share of one letter in a completion: a reward that takes no time, for steps without a reward model."""

    def values(self, answered: Sequence[Answered]) -> list[Value]:
        """Return a share for each completion."""
        return [_share(one.text) for one in answered]


def _share(text: str) -> float:
    return text.count("e") / max(len(text), 1)


def _shares(completions: list[list[dict[str, str]]], **_: Any) -> list[float]:
    """As Letters, in the form that TRL calls."""
    return [_share(turns[-1]["content"]) for turns in completions]


def make_trainer(
    way: str,
    policy: Any,
    judge: Any,
    tokenizer: Any,
    tasks: list[Task],
    folder: Path,
    *,
    whole: bool,
    grpo: bool = False,
    place: Place = CPU,
    **changes: Any,
) -> Any:
    """Return the trainer of that way on the prompts of these tasks.

    Args:
        whole: train all weights instead of adapters.
        grpo: by GRPO without a KL term, with a reward that takes no time, instead of by RLOO with a reward model.
        **changes: settings of RLOOConfig or GRPOConfig.
    """
    shared: dict[str, Any] = {
        "output_dir": str(folder / "out"),
        "max_steps": len(tasks) // STEP_PROMPTS,
        "learning_rate": 1e-5,
        "seed": 7,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        **place.arguments,
    }
    longest, completions = changes.get("max_completion_length", ANSWER_TOKENS[1]), len(tasks[0][1])
    config = _config(longest, completions=completions, algorithm="ppo" if way == PPO else "grpo" if grpo else "rloo")
    if way in (OURS, PPO):
        # The largest prompt with its completions is one pack, as train_policy plans it on a CPU.
        pack_tokens = place.pack_tokens or PROMPT_TOKENS[1] + completions * ANSWER_TOKENS[1]
        return _ours(policy, judge, tokenizer, tasks, shared, config, whole=whole, pack_tokens=pack_tokens)
    given_settings: dict[str, Any] = {
        **shared,
        "num_generations": completions,
        "shuffle_dataset": False,
        "max_completion_length": longest,
        **every_way(completions)[way],
        **changes,
    }
    given: dict[str, Any] = {
        "model": policy,
        "train_dataset": Dataset.from_list([{"prompt": _conversation(prompt)} for prompt, _ in tasks]),
        "processing_class": tokenizer,
        "peft_config": None if whole else peft_config(ADAPTERS, task_type="CAUSAL_LM"),
    }
    torch.manual_seed(shared["seed"])
    if grpo:
        return GRPOTrainer(**given, reward_funcs=_shares, args=GRPOConfig(**given_settings, loss_type="grpo", beta=0.0))
    judged = {"reward_funcs": judge, "reward_processing_classes": tokenizer}
    return RLOOTrainer(**given, **judged, args=RLOOConfig(**given_settings, beta=config.method.beta))


def _config(longest: int, *, completions: int, algorithm: str) -> TrainPolicyConfig:
    method = {"beta": 0.0} if algorithm == "grpo" else {}
    given = {"num_generations": completions, "max_completion_length": longest, "algorithm": algorithm}
    # From the first step on, the policy learns beside its critic.
    return TrainPolicyConfig.model_validate(
        {**given, **method, "critic": {"warmup_steps": 0}} if algorithm == "ppo" else {**given, **method}
    )


def _ours(
    policy: Any,
    judge: Any,
    tokenizer: Any,
    tasks: list[Task],
    shared: dict[str, Any],
    config: TrainPolicyConfig,
    *,
    whole: bool,
    pack_tokens: int,
) -> PolicyTrainer:
    reward: Reward = Letters()
    step = config.num_generations * STEP_PROMPTS
    if config.algorithm != "grpo":
        scorer = policy_scorer(judge, tokenizer, batch_size=step)
        # A scorer scores its first conversations both ways, once in a training; here before the timing.
        scorer.score([[*_conversation("Hi"), {"role": "assistant", "content": "Hi"}]])
        reward = ModelReward(scorer)
    reference = copy.deepcopy(policy).requires_grad_(False) if whole and config.method.beta else None
    critic = _critic(policy, config) if config.has_critic else None
    torch.manual_seed(shared["seed"])  # adapters begin with random numbers
    trained = apply_lora(policy, None if whole else ADAPTERS, task_type="CAUSAL_LM")
    for model in (trained, reference):
        if model is not None:
            add_logps(causal_of(model), temperature=config.temperature)
    conversations = [_conversation(prompt) for prompt, _ in tasks]
    rollouts = PolicyRollouts(
        config=config,
        prompts=[
            PolicyPrompt(str(place), "", tuple(turns), tuple(ids))
            for place, (turns, ids) in enumerate(
                zip(conversations, prompt_token_ids(tokenizer, conversations), strict=True)
            )
        ],
        tokenizer=tokenizer,
        reward=PolicyReward([StartedTerm(config.rewards[0], reward)], config),
        writing=sharing,
        order=range(len(tasks)),
        rows_per_rank=step,
        rank=0,
        num_ranks=1,
    )
    return PolicyTrainer(
        rollouts=rollouts,
        make_step=lambda accelerator: PolicyStep(
            accelerator=accelerator,
            method=config.method,
            num_generations=config.num_generations,
            longest=config.max_completion_length,
            updates_per_rollout=1,
            cut=partial(completion_packs, max_tokens=pack_tokens),
            reference=reference,
            critic=critic,
        ),
        completion_log=None,
        num_logged_completions=0,
        model=trained,
        args=TrainingArguments(**shared, per_device_train_batch_size=1, remove_unused_columns=False),
        train_dataset=StepNumbers(shared["max_steps"], num_ranks=1),
        processing_class=tokenizer,
    )


def _critic(policy: Any, config: TrainPolicyConfig) -> Critic:
    """A critic of the policy's own weights, with adapters like the policy's."""
    model: Any = apply_lora(sharing_classifier(policy), ADAPTERS, task_type="SEQ_CLS")
    classifier, head = classifier_of(model), score_head_weight(model)
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    return Critic(classifier, classifier.model, head, trained, config.critic)  # type: ignore[arg-type]


def _conversation(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]
