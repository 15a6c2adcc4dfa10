"""An engine that does not write what the policy would must be found out in two batches, whatever it says of itself.

The engine here has the interface of vLLM's: it gets the adapters, writes, and says with which probability. It is a copy
of the policy, with one fault. `make test-vllm` has vLLM itself.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig

from containers.algorithms import policy_training
from containers.contracts.configs.parts.training import LoraSettings, OptimizerSettings, TrainingSchedule
from containers.contracts.configs.train_policy import SamplingCorrection, TrainPolicyConfig
from containers.contracts.names import StageName
from containers.harness.context import StageContext
from containers.harness.errors import StageError
from containers.packing.logps import causal_of
from containers.rollouts.engines import Rollouts, generating_by
from containers.rollouts.prompts import equal_rows, prompts_of, with_completions
from containers.rollouts.sampling_check import SUMS, SamplingCheck
from containers.rollouts.vllm_trial import replays, try_given
from containers.scoring.scorer import score_head_sha256
from containers.stages import train_policy
from tests.unit.factories.prompt_factory import write_prompts
from tests.unit.factories.report.certificate_factory import write_certificate
from tests.unit.factories.spec_factory import make_context
from tests.unit.factories.tiny_policy import save_causal_model, save_reward_model

pytestmark = pytest.mark.stages

CONFIG = TrainPolicyConfig(
    algorithm="grpo",
    num_generations=4,
    max_prompt_length=64,
    max_completion_length=12,
    lora=LoraSettings(r=4, alpha=8),
    gradient_checkpointing=False,
    pack=False,
    temperature=0.9,
    optimizer=OptimizerSettings(learning_rate=2e-2, scheduler="constant", warmup_fraction=0),
    schedule=TrainingSchedule(max_steps=4, save_steps=4),
    evidence=None,
)


@dataclass
class Engine:
    """A copy of the policy that writes; `fault` says how it differs."""

    fault: str = ""
    copied: Any = None
    num_given: int = 0
    newest: list[list[float]] = field(default_factory=list)

    def give(self, policy: Any) -> None:
        self.num_given += 1
        if self.fault == "stale" and self.num_given > 3:  # the trial, and the first batch
            return
        self.copied = copy.deepcopy(policy)
        # What was put over the policy's own methods would call the policy.
        for name in ("forward", "generate"):
            vars(causal_of(self.copied)).pop(name, None)
        if self.fault == "left out":
            with torch.no_grad():
                for name, weight in self.copied.named_parameters():
                    if "lora_B" in name:
                        weight.zero_()

    @torch.no_grad()
    def written(
        self, prompts: Sequence[Sequence[int]], *, siblings: int, settings: GenerationConfig
    ) -> tuple[list[list[int]], list[list[float]]]:
        tokens, said = [], []
        ends = settings.eos_token_id
        end_ids = [ends] if isinstance(ends, int) else list(ends or ())
        for prompt in (list(prompt) for prompt in prompts for _ in range(siblings)):
            own, logprobs = self._one(prompt, settings, end_ids)
            tokens.append(own)
            said.append(logprobs)
        return tokens, said

    def _one(self, prompt: list[int], settings: GenerationConfig, end_ids: list[int]) -> tuple[list[int], list[float]]:
        row, logprobs = list(prompt), list[float]()
        for _ in range(int(settings.max_new_tokens or 1)):
            logits = causal_of(self.copied)(input_ids=torch.tensor([row])).logits[0, -1].float()
            if not settings.do_sample:
                token = int(logits.argmax())
                logprobs.append(float(logits.log_softmax(-1)[token]))
            else:
                scores = (logits / float(settings.temperature or 1)).log_softmax(-1)
                drawn = scores
                if self.fault.endswith("temperature"):
                    drawn = (logits / (0.5 * float(settings.temperature or 1))).log_softmax(-1)
                elif self.fault.endswith("cut"):
                    likeliest = scores.topk(20).indices
                    kept = torch.full_like(scores, -torch.inf)
                    kept[likeliest] = scores[likeliest]
                    drawn = kept.log_softmax(-1)
                token = int(torch.multinomial(drawn.exp(), 1))
                logprobs.append(float((scores if self.fault.startswith("hidden") else drawn)[token]))
            row.append(token)
            if token in end_ids:
                break
        return row[len(prompt) :], logprobs

    def writing(self, policy: Any) -> Any:
        causal = causal_of(policy)

        def generate(
            *, input_ids: Tensor, attention_mask: Tensor, generation_config: GenerationConfig, **_: Any
        ) -> Any:
            self.give(policy)
            runs = equal_rows(input_ids, attention_mask)
            prompts = prompts_of(runs, input_ids, attention_mask, siblings=1)
            tokens, self.newest = self.written(prompts, siblings=1, settings=generation_config)
            return with_completions(input_ids, tokens, pad_id=int(generation_config.pad_token_id))

        return generating_by(causal, generate)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("inputs")
    merged = save_reward_model(folder / "reward_model" / "merged")
    return {
        "certificate": write_certificate(folder / "certificate", score_head_sha256=score_head_sha256(merged)),
        "prompts": write_prompts(folder / "pairs", train=["Hi", "Which one?", "What is red?", "No"]),
        "start_model": save_causal_model(folder / "start", seed=3, scale=0.15),
        "reward_model": folder / "reward_model",
    }


@contextmanager
def engine_in_use(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> Iterator[None]:
    def start(
        context: StageContext, config: TrainPolicyConfig, model: Any, prompts: Sequence[Sequence[int]]
    ) -> Rollouts:
        trial = partial(try_given, engine, prompts=list(prompts), room=76)
        return Rollouts(engine.writing, sampling=lambda: engine.newest, trial=trial)

    monkeypatch.setattr(policy_training, "start_rollouts", start)
    yield


def trained(
    tmp_path: Path, inputs: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch, fault: str, **changes: Any
) -> StageContext:
    context = make_context(tmp_path, StageName.TRAIN_POLICY, CONFIG.model_copy(update=changes), inputs)
    with engine_in_use(monkeypatch, Engine(fault)):
        train_policy.run(context)
    return context


def test_an_engine_that_is_the_policy_passes_and_its_weights_are_one(
    tmp_path: Path, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = trained(tmp_path, inputs, monkeypatch, "")
    import json

    points = [json.loads(line)["values"] for line in (context.output / "curves.jsonl").read_text().splitlines()]
    points = [values for values in points if "sampling_kl" in values]
    assert len(points) == 4
    for values in points:
        assert values["sampling_kl"] == pytest.approx(0, abs=1e-6)
        assert values["effective_fraction"] == pytest.approx(1, abs=1e-4)
        assert abs(values["surprise"]) < 0.5
    assert "uses the policy's adapters as the policy does" in (context.work / "events.jsonl").read_text()


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("left out", "it does not use them as the policy does"),
        ("stale", r"Step [23]: the engine's log-probabilities .* \(KL\), more than"),
        ("temperature", r"Step [12]: the engine's log-probabilities .* \(KL\), more than"),
        ("cut", r"Step [12]: the engine's log-probabilities .* \(KL\), more than"),
        ("hidden temperature", r"Step [12]: the tokens of \d rollouts are .* nats likelier under the policy"),
        ("hidden cut", r"Step [12]: the tokens of \d rollouts are .* nats likelier under the policy"),
    ],
)
def test_a_faulty_engine_is_found_out_within_two_batches(
    tmp_path: Path, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch, fault: str, text: str
) -> None:
    """A hidden fault is one of which the engine says nothing: it gives the probabilities of the right distribution."""
    # Only what was drawn tells that fault, so it takes more than 8 completions.
    changes = {"rollout_batch_size": 64} if "hidden" in fault else {}
    with pytest.raises(StageError, match=text):
        trained(tmp_path, inputs, monkeypatch, fault, **changes)


def test_an_engine_that_gives_fewer_tokens_than_it_wrote_ends_the_stage(
    tmp_path: Path, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Engine.written

    def fewer(self: Engine, prompts: Any, **more: Any) -> Any:
        tokens, said = real(self, prompts, **more)
        return tokens, said[:-1] if self.num_given > 1 else said

    monkeypatch.setattr(Engine, "written", fewer)
    with pytest.raises(StageError, match="says the probabilities of 7 completions, and wrote 8"):
        trained(tmp_path, inputs, monkeypatch, "")


def test_weights_that_leave_few_tokens_end_the_training_and_say_which_bound() -> None:
    check = SamplingCheck(SamplingCorrection(minimum_effective_fraction=0.9), most_apart=1.0)
    total = dict.fromkeys(SUMS, 0.0) | {"tokens": 10.0, "weights": 10.0, "weight_squares": 20.0, "weighted": 10.0}
    with pytest.raises(StageError, match=r"leave 50.0 % of the tokens .*minimum_effective_fraction is 90.0 %"):
        check.take(total, is_new=False)


def test_a_sampler_that_draws_otherwise_each_time_is_known() -> None:
    class Other(Engine):
        def written(self, prompts: Any, **_: Any) -> Any:
            self.num_given += 1
            return [[self.num_given]], [[0.0]]

    class Same(Engine):
        def written(self, prompts: Any, **_: Any) -> Any:
            return [[int(torch.randint(0, 9, (1,)))]], [[0.0]]

    settings = GenerationConfig(max_new_tokens=1)
    assert not replays(Other(), [[1]], settings) and replays(Same(), [[1]], settings)
