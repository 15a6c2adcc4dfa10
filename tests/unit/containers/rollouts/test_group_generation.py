"""A prompt that is computed once for all of its completions gives the completions that whole rows give."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from trl import RLOOConfig, RLOOTrainer

from containers.contracts.configs.parts.training import OptimizerSettings, TrainingSchedule
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.hardware import BatchPlan
from containers.contracts.names import StageName
from containers.packing.logps import causal_of
from containers.rollouts import shared_prompt_attention
from containers.rollouts.engines import start_rollouts
from containers.rollouts.generate import sampled_completions
from containers.rollouts.shared_prompts import sharing, why_each_row
from containers.scoring.scorer import score_head_sha256
from tests.unit.containers.algorithms.test_packing import PACKED
from tests.unit.containers.algorithms.test_policy_packing import DIFFERENT, model, prompts
from tests.unit.containers.distributed.test_ranks_agree import TOLERANCE, curve_of, largest_difference, weights_of
from tests.unit.factories.prompt_factory import write_prompts
from tests.unit.factories.report.certificate_factory import write_certificate
from tests.unit.factories.spec_factory import CPU, make_context, make_spec, run_stage
from tests.unit.factories.tiny_policy import save_causal_model, save_reward_model, tiny_causal_model, tiny_tokenizer

pytestmark = pytest.mark.stages

PAD = 0
NEW_TOKENS = 12
LENGTHS = (1, 7, 40, 130)


def adapters() -> LoraConfig:
    """New each time: PEFT writes the names of the model's layers into it."""
    return LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")


LOGGED = "Completions are generated with each prompt computed "


def policy(*, lora: bool = False, dtype: torch.dtype = torch.float32) -> Any:
    """A tiny Qwen3 whose adapters are at work."""
    found = tiny_causal_model(tiny_tokenizer(), seed=2).to(dtype)
    if not lora:
        return found
    found = get_peft_model(found, adapters())
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in found.parameters():
            if weight.requires_grad:
                weight += 0.1 * torch.randn_like(weight)
    return found


def rows(counts: list[tuple[int, int]]) -> dict[str, Tensor]:
    """Left-padded rows as TRL makes them, of prompts with (tokens, completions)."""
    torch.manual_seed(0)
    asked = [ids for length, count in counts for ids in [torch.randint(3, 250, (length,))] * count]
    width = max(len(ids) for ids in asked)
    ids = torch.full((len(asked), width), PAD)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(asked):
        ids[row, width - len(prompt) :] = prompt
        mask[row, width - len(prompt) :] = 1
    return {"input_ids": ids, "attention_mask": mask}


def generated(found: Any, batch: dict[str, Tensor], **more: Any) -> Tensor:
    settings: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": PAD, **more}
    torch.manual_seed(5)
    tokens: Tensor = found.generate(**batch, generation_config=GenerationConfig(**settings))
    return tokens


def both(found: Any, batch: dict[str, Tensor], **more: Any) -> tuple[Tensor, Tensor]:
    """Tokens of whole rows, and of shared prompts."""
    whole = generated(found, batch, **more)
    with sharing(found):
        return whole, generated(found, batch, **more)


@pytest.mark.parametrize("lora", [False, True], ids=["whole model", "LoRA"])
@pytest.mark.parametrize("siblings", [1, 4, 8])
def test_greedy_completions_are_those_of_whole_rows(lora: bool, siblings: int) -> None:
    whole, shared = both(policy(lora=lora), rows([(length, siblings) for length in LENGTHS]))
    assert torch.equal(whole, shared)
    completions = {tuple(row) for row in shared[:, -NEW_TOKENS:].tolist()}
    assert len(completions) == len(LENGTHS)


@pytest.mark.parametrize(
    "counts",
    [[(1, 4), (1, 4)], [(9, 4), (9, 4)], [(500, 4), (20, 4)], [(30, 1), (12, 4), (50, 3)], [(17, 6), (5, 4)]],
    ids=["of one token", "of equal length", "as long as the model takes", "split over ranks", "with unlike siblings"],
)
def test_greedy_completions_of_such_prompts_are_those_of_whole_rows(counts: list[tuple[int, int]]) -> None:
    whole, shared = both(policy(), rows(counts))
    assert torch.equal(whole, shared)


def test_the_same_seed_draws_the_same_completions() -> None:
    batch = rows([(length, 4) for length in LENGTHS])
    whole, shared = both(policy(), batch, do_sample=True, temperature=1.3, top_p=0.9)
    assert torch.equal(whole, shared)
    assert len({tuple(row) for row in shared[4:8, -NEW_TOKENS:].tolist()}) > 1


def test_a_completion_that_ended_is_filled_up_as_before() -> None:
    found = policy()
    batch = rows([(length, 2) for length in LENGTHS])
    ends = generated(found, batch)[:, -NEW_TOKENS + 3].unique().tolist()
    whole, shared = both(found, batch, eos_token_id=ends)
    assert torch.equal(whole, shared)
    assert (shared[:, -1] == PAD).any()


def test_more_tokens_than_there_was_room_for_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_prompt_attention, "FIRST_ROOM_TOKENS", 2)
    whole, shared = both(policy(), rows([(20, 4), (33, 4)]), max_new_tokens=40)
    assert torch.equal(whole, shared)


def test_each_prompt_is_computed_once_and_no_padding() -> None:
    found = policy(lora=True)
    computed: list[int] = []
    found.get_input_embeddings().register_forward_hook(lambda module, given, made: computed.append(given[0].numel()))
    batch = rows([(length, 4) for length in LENGTHS])
    with sharing(found):
        generated(found, batch)
    prefill, decode = computed[:-NEW_TOKENS], computed[-NEW_TOKENS:]
    assert sum(prefill) == sum(LENGTHS) - len(LENGTHS)
    assert decode == [16] * NEW_TOKENS


def test_the_model_is_left_as_it_was_even_where_generation_fails() -> None:
    found = policy()
    batch = rows([(20, 2)])
    before = generated(found, batch)
    with torch.no_grad():
        found.lm_head.weight[:] = float("nan")
    with pytest.raises(RuntimeError, match="probability tensor contains"), sharing(found):
        generated(found, batch, do_sample=True)
    assert "generate" not in vars(found)
    assert found.config._attn_implementation == "sdpa"
    assert torch.equal(before, generated(policy(), batch))


@pytest.mark.parametrize("family", PACKED)
def test_these_models_share_prompts(family: str) -> None:
    assert why_each_row(model(family, PACKED[family]), prompts(), max_length=100) == ""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_models_with_adapters_on_share_prompts_in_either_precision(dtype: torch.dtype) -> None:
    found = policy(lora=True, dtype=dtype)
    assert why_each_row(causal_of(found), [[5] * 9, list(range(5, 90))], max_length=100) == ""


@pytest.mark.parametrize("family", ["mistral", "gemma2"])
def test_models_that_attend_otherwise_compute_each_row_and_the_reason_is_named(family: str) -> None:
    settings, _ = DIFFERENT[family]
    reason = why_each_row(model(family, settings), prompts(), max_length=100)
    assert ("window of 16 tokens" if family == "mistral" else "caps its logits") in reason


def test_a_model_whose_logits_are_not_the_same_computes_each_row() -> None:
    """Its attention weighs a sink besides the tokens, which no mask shows."""
    sizes = {"num_local_experts": 4, "num_experts_per_tok": 2, "layer_types": ["full_attention"] * 2}
    assert why_each_row(model("gpt_oss", sizes), prompts(), max_length=100)


def test_a_model_without_the_attention_interface_computes_each_row() -> None:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "n_ctx": 256, "rotary_dim": 4}
    assert "attention of GPTJForCausalLM" in why_each_row(model("gptj", sizes), prompts(), max_length=100)


def test_a_generation_config_of_another_kind_is_not_asked() -> None:
    """Rollouts come from the trainer's settings alone (test_policies_of_the_hub.py)."""
    found = model("qwen3", {})
    for name, value in {"cache_implementation": "static", "num_beams": 2, "use_cache": False}.items():
        setattr(found.generation_config, name, value)
    assert why_each_row(found, prompts(), max_length=100) == ""
    assert found.generation_config.num_beams == 2


def test_the_log_says_how_completions_are_generated(tmp_path: Path) -> None:
    inputs = {"start_model": save_causal_model(tmp_path / "start")}

    def logged(family: str, settings: dict[str, Any], **changes: Any) -> tuple[bool, str]:
        config = TrainPolicyConfig(max_prompt_length=90, max_completion_length=10, **changes)
        folder = tmp_path / f"{family} {changes}"
        folder.mkdir()
        context = make_context(folder, StageName.TRAIN_POLICY, config, inputs)
        shares = start_rollouts(context, config, model(family, settings), prompts()).writing is sharing
        events = folder.rglob("events.jsonl")
        return shares, "".join(path.read_text() for path in events)

    shares, text = logged("qwen3", {})
    assert shares and LOGGED + "once for all" in text
    shares, text = logged("mistral", {"sliding_window": 16})
    assert not shares and LOGGED + "for each of its completions: it attends over a window of 16 tokens" in text
    assert logged("qwen3", {}, rollout_engine="transformers") == (False, "")


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("lora", [False, True], ids=["whole model", "LoRA"])
def test_the_trainer_draws_the_completions_that_trl_draws(tmp_path: Path, lora: bool, checkpointing: bool) -> None:
    start = save_causal_model(tmp_path / "start", seed=3)
    texts = ["Hi", "Which colour is a frog, and which is a crow?", "Why?"]

    trl = RLOOTrainer(
        model=AutoModelForCausalLM.from_pretrained(start),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=RLOOConfig(
            output_dir=str(tmp_path),
            num_generations=4,
            per_device_train_batch_size=12,
            max_completion_length=10,
            gradient_checkpointing=checkpointing,
            report_to=[],
            use_cpu=True,
            bf16=False,
        ),
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": text}]} for text in texts]),
        processing_class=AutoTokenizer.from_pretrained(start),
        peft_config=adapters() if lora else None,
    )
    computed: list[int] = []
    trl.model.get_input_embeddings().register_forward_hook(lambda _, given, __: computed.append(given[0].numel()))
    asked = [[{"role": "user", "content": text}] for text in texts for _ in range(4)]
    prompts = trl._tokenize_prompts(asked)[0]

    def drawn(draw: Callable[[], Any]) -> tuple[Any, int]:
        trl.model.train()
        computed.clear()
        torch.manual_seed(7)
        return draw(), sum(computed)

    def ours_drawn() -> list[list[int]]:
        with sharing(trl.model):
            found = sampled_completions(
                causal_of(trl.model), trl.processing_class, prompts, max_new_tokens=10, temperature=1.0
            )
        assert trl.model.training
        return [list(completion.completion_ids) for completion in found]

    theirs, many = drawn(lambda: trl._generate_single_turn(prompts, None, {}))
    ours, few = drawn(ours_drawn)
    assert ours == theirs
    assert few < 0.6 * many


@pytest.mark.slow
def test_two_ranks_that_split_a_prompts_completions_train_what_trls_generation_trains(tmp_path: Path) -> None:
    inputs = {
        "prompts": write_prompts(
            tmp_path / "pairs", train=["Hi", "Which one?", "What is red?", "Name two of them", "No"]
        ),
        "start_model": save_causal_model(tmp_path / "start", seed=3),
        "reward_model": tmp_path / "reward_model",
    }
    merged = save_reward_model(tmp_path / "reward_model" / "merged")
    inputs["certificate"] = write_certificate(tmp_path / "certificate", score_head_sha256=score_head_sha256(merged))
    batch = BatchPlan(global_batch_size=12, per_device_batch_size=6, num_processes=2, gradient_accumulation_steps=1)
    profile = CPU.model_copy(update={"num_processes": 2})
    outputs = {}
    for engine in ("transformers", "shared_prompts"):
        config = TrainPolicyConfig(
            num_generations=4,
            max_prompt_length=64,
            max_completion_length=8,
            rollout_engine=engine,
            optimizer=OptimizerSettings(learning_rate=1e-3),
            schedule=TrainingSchedule(max_steps=3, save_steps=3),
        )
        work = tmp_path / engine
        work.mkdir()
        spec = make_spec(work, StageName.TRAIN_POLICY, config, inputs, batch=batch, profile=profile)
        log = tmp_path / f"{engine}.log"
        run_stage(spec, log)
        outputs[engine] = work / "output"
    names = ("loss", "grad_norm", "reward", "kl", "completion_length")
    curves = [curve_of(output, *names) for output in outputs.values()]
    assert largest_difference(*curves) < TOLERANCE
    assert largest_difference(*map(weights_of, outputs.values())) < TOLERANCE
