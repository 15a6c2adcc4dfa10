"""What a training publishes is what a judge saw to be better, also after a stop, a kill and a roll-back."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from containers.contracts.configs.parts.evidence import EvidenceSettings
from containers.contracts.configs.parts.judges import OtherRewardModel
from containers.contracts.configs.parts.rewards import LengthTerm, RewardModelTerm
from containers.contracts.configs.parts.training import LoraSettings, OptimizerSettings, TrainingSchedule
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.evidence import Evidence
from containers.contracts.names import EVIDENCE_FILE, StageName
from containers.contracts.records import TrainingInfo
from containers.evidence import callback, start
from containers.harness.context import StageContext
from containers.harness.errors import NoSignalError
from containers.judges.base import Pair, StartedJudge, Verdict
from containers.scoring.scorer import score_head_sha256
from containers.stages import train_policy
from tests.unit.factories.prompt_factory import write_prompts
from tests.unit.factories.report.certificate_factory import write_certificate
from tests.unit.factories.spec_factory import make_context
from tests.unit.factories.tiny_policy import save_causal_model, save_reward_model

pytestmark = pytest.mark.stages

JUDGE = LengthTerm(name="brevity", target=(0, 4))
CONFIG = TrainPolicyConfig(
    num_generations=4,
    max_prompt_length=64,
    max_completion_length=8,
    lora=LoraSettings(r=4, alpha=8),
    gradient_checkpointing=False,
    optimizer=OptimizerSettings(learning_rate=1e-3, scheduler="linear"),
    schedule=TrainingSchedule(max_steps=8, save_steps=8, save_total_limit=2),
    evidence=EvidenceSettings(steps=2, num_pairs=8, judges=(JUDGE,)),
)
VERDICTS = {"+": Verdict(1.0, values=(1.0, 0.0)), "-": Verdict(0.5, values=(0.0, 0.0)), "!": Verdict(0.0)}


class ScriptedJudge(StartedJudge):
    """Says at each look what the script says: + a gain, - a tie, ! a loss."""

    def __init__(self, script: str) -> None:
        self.script = iter(script)
        self.left = 0

    def verdicts(self, pairs: Sequence[Pair]) -> list[Verdict]:
        if all(pair.policy is pair.reference for pair in pairs):  # the agreement, before the first step
            return [Verdict(0.5, values=(float(len(pair.policy.text)),) * 2) for pair in pairs]
        if self.left == 0:  # a look without a verdict has a second half
            self.present = next(self.script)
            self.left = 1 if self.present == "-" else 0
        else:
            self.left = 0
        return [VERDICTS[self.present]] * len(pairs)

    def shown(self) -> str:
        return "a script"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("inputs")
    merged = save_reward_model(folder / "reward_model" / "merged")
    return {
        "certificate": write_certificate(folder / "certificate", score_head_sha256=score_head_sha256(merged)),
        "prompts": write_prompts(folder / "pairs", train=[f"What is {number}?" for number in range(40)]),
        "start_model": save_causal_model(folder / "start", seed=3),
        "reward_model": folder / "reward_model",
    }


def context_of(
    folder: Path, inputs: Mapping[str, Path], *, evidence: Mapping[str, Any] | None = None, **changes: Any
) -> StageContext:
    settings = CONFIG.evidence.model_copy(update=evidence or {}) if CONFIG.evidence else None
    config = CONFIG.model_copy(update={"evidence": settings, **changes})
    return make_context(folder, StageName.TRAIN_POLICY, config, inputs)


def scripted(patch: pytest.MonkeyPatch, script: str) -> None:
    patch.setattr(start, "start_judge", lambda context, config, judge: ScriptedJudge(script))


def evidence_of(context: StageContext) -> Evidence:
    return Evidence.model_validate_json((context.output / EVIDENCE_FILE).read_bytes())


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_file(folder / "model.safetensors"))


def info_of(context: StageContext) -> TrainingInfo:
    return TrainingInfo.model_validate_json((context.output / "training_info.json").read_bytes())


def test_two_looks_without_a_gain_end_it_and_the_trusted_step_is_published(
    tmp_path: Path, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, "+--")
    context = context_of(tmp_path, inputs)
    metrics = {metric.name: metric.value for metric in train_policy.run(context)}
    found = evidence_of(context)
    assert [(look.step, look.against, look.consequence) for look in found.looks] == [
        (2, 0, "trusted"), (4, 2, "goes on"), (6, 2, "ends"),
    ]  # fmt: skip
    assert (found.published_step, found.num_prompts, info_of(context).num_examples) == (2, 10, 30)
    assert found.ended_because == "brevity saw no gain twice in a row over step 2"
    assert (metrics["published_step"], metrics["num_looks"], metrics["num_steps"]) == (2, 3, 6)
    info = info_of(context)
    assert (info.num_steps, info.planned_steps, info.published_step) == (6, 8, 2)
    trusted = load_file(context.checkpoints / "checkpoint-2" / "adapter_model.safetensors")
    published = load_file(context.output / "adapter" / "adapter_model.safetensors")
    assert all(torch.equal(tensor, published[name]) for name, tensor in trusted.items())
    assert not any(torch.equal(tensor, published[name]) for name, tensor in _late(context).items())


def test_a_shown_loss_ends_it_at_once(tmp_path: Path, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, "+!")
    context = context_of(tmp_path, inputs)
    train_policy.run(context)
    found = evidence_of(context)
    assert (found.published_step, info_of(context).num_steps) == (2, 4)
    assert found.ended_because == "brevity saw that it is worse than step 2"


def _late(context: StageContext) -> dict[str, torch.Tensor]:
    found = load_file(context.checkpoints / "checkpoint-6" / "adapter_model.safetensors")
    return {name: value for name, value in found.items() if "lora_B" in name}


@pytest.mark.parametrize("lora", [LoraSettings(r=4, alpha=8), None])
def test_a_policy_that_never_was_better_is_the_start_model(
    tmp_path: Path, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch, lora: LoraSettings | None
) -> None:
    scripted(monkeypatch, "--")
    context = context_of(tmp_path, inputs, lora=lora)
    train_policy.run(context)
    assert (evidence_of(context).published_step, info_of(context).num_steps) == (0, 4)
    before, after = weights(inputs["start_model"]), weights(context.output / "model")
    assert all(torch.allclose(tensor, before[name], atol=1e-6) for name, tensor in after.items())


def test_a_killed_training_looks_and_decides_as_if_it_had_not_been_killed(
    tmp_path: Path, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = CONFIG.schedule.model_copy(update={"save_steps": 3})
    contexts = [context_of(tmp_path / name, inputs, schedule=schedule) for name in ("whole", "killed")]
    for context in contexts:
        train_policy.run(context)  # the real judge
    whole, killed = contexts
    newest = sorted(int(path.name.partition("-")[2]) for path in killed.checkpoints.glob("checkpoint-*"))
    for step in newest[1:]:
        shutil.rmtree(killed.checkpoints / f"checkpoint-{step}")
    shutil.rmtree(killed.output)
    killed.output.mkdir()
    train_policy.run(killed)
    assert info_of(killed).resumed_from_step == newest[0]
    first, second = (
        [look.model_copy(update={"duration_s": 0.0}) for look in evidence_of(context).looks] for context in contexts
    )
    assert first == second and len(first) >= 2
    assert evidence_of(whole).published_step == evidence_of(killed).published_step
    after = weights(killed.output / "model")
    assert all(torch.equal(tensor, after[name]) for name, tensor in weights(whole.output / "model").items())


def test_looks_change_nothing_of_the_training_itself(
    tmp_path: Path, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The random numbers, and so the completions and rewards of every step, are those without looks."""
    scripted(monkeypatch, "++++")
    looked = context_of(tmp_path / "looked", inputs)
    train_policy.run(looked)
    monkeypatch.setattr(callback.EvidenceCallback, "on_step_end", lambda *_, **__: None)
    monkeypatch.setattr(callback.EvidenceCallback, "on_train_begin", lambda *_, **__: None)
    monkeypatch.setattr(callback.EvidenceCallback, "publish", lambda self: 8)
    unlooked = context_of(tmp_path / "unlooked", inputs)
    train_policy.run(unlooked)
    one, other = (weights(context.output / "model") for context in (looked, unlooked))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_a_stop_that_was_saved_is_not_trained_on_after_a_kill(
    tmp_path: Path, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, "+--")
    context = context_of(tmp_path, inputs)
    train_policy.run(context)
    before = weights(context.output / "model")
    shutil.rmtree(context.output)
    context.output.mkdir()
    scripted(monkeypatch, "")  # a further look would fail
    train_policy.run(context)
    assert (info_of(context).resumed_from_step, info_of(context).num_steps) == (6, 6)
    assert evidence_of(context).published_step == 2
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(context.output / "model").items())


@pytest.mark.parametrize("trusted_first", [True, False])
def test_a_roll_back_goes_on_from_the_trusted_step_with_twice_the_beta_and_then_ends(
    tmp_path: Path, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch, trusted_first: bool
) -> None:
    scripted(monkeypatch, "+------" if trusted_first else "------")
    seen: list[float] = []
    real = callback.EvidenceCallback.on_step_end

    def on_step_end(self: callback.EvidenceCallback, *arguments: Any, **named: Any) -> None:
        seen.append(self.trainer.step.method.beta)
        real(self, *arguments, **named)

    monkeypatch.setattr(callback.EvidenceCallback, "on_step_end", on_step_end)
    schedule = TrainingSchedule(max_steps=14, save_steps=14)
    context = context_of(
        tmp_path, inputs, evidence={"on_no_gain": "roll_back", "max_roll_backs": 1}, beta=0.1, schedule=schedule
    )
    train_policy.run(context)
    found = evidence_of(context)
    assert [look.consequence for look in found.looks] == [
        *(["trusted"] if trusted_first else []), "goes on", "rolls back", "goes on", "ends",
    ]  # fmt: skip
    rolled_at = next(look.step for look in found.looks if look.consequence == "rolls back")
    assert (found.num_roll_backs, found.published_step) == (1, 2 if trusted_first else 0)
    assert seen[:rolled_at] == pytest.approx([0.1] * rolled_at)
    assert seen[rolled_at:] == pytest.approx([0.2] * (len(seen) - rolled_at))


def test_without_a_judge_a_meter_ends_it_and_the_last_step_inside_is_published(
    tmp_path: Path, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = [0]

    def take(self: Any, figures: Mapping[str, float]) -> list[str]:
        taken[0] += 1
        assert figures["completion_length"] > 0
        return ["the answers have 8 tokens, above the limit of 5.00"] if taken[0] == 5 else []

    monkeypatch.setattr("containers.evidence.meters.Meters.take", take)
    schedule = TrainingSchedule(max_steps=8, save_steps=2)
    context = context_of(tmp_path, inputs, evidence={"judges": ()}, schedule=schedule)
    train_policy.run(context)
    found = evidence_of(context)
    assert (found.judge, found.published_step, info_of(context).num_steps) == ("", 4, 5)
    assert "no judge has judged it: the answers have 8 tokens" in found.ended_because
    assert info_of(context).num_examples == 40


def test_a_reward_that_disagrees_with_its_judge_is_not_trained_on_where_that_is_demanded(
    tmp_path: Path, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, "")
    context = context_of(tmp_path, inputs, evidence={"minimum_rank_agreement": 0.99}, rewards=(RewardModelTerm(),))
    with pytest.raises(NoSignalError, match=r"rank correlation of reward and judge brevity.*Nothing was trained"):
        train_policy.run(context)
    assert not list(context.checkpoints.glob("checkpoint-*"))


def test_the_events_tell_each_look_and_its_curve(
    tmp_path: Path, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, "++++")
    context = context_of(tmp_path, inputs)
    train_policy.run(context)
    events = [json.loads(line) for line in (context.work / "events.jsonl").read_text().splitlines()]
    notes = [event["text"] for event in events if event["type"] == "note"]
    assert any(
        note == "Look at step 2: by brevity, 8 pairs won, 0 tied, 0 lost against the start model (win rate 100 %); "
        "step 2 is trusted from here on."
        for note in notes
    )
    points = [(event["step"], event["values"]) for event in events if "evidence_reward" in event.get("values", {})]
    assert [step for step, _ in points] == [0, 2, 4, 6, 8]
    assert all({"evidence_win_rate", "evidence_kl"} <= set(values) for step, values in points if step)


def test_a_judge_that_is_the_reward_model_under_another_name_does_not_look(
    tmp_path: Path, inputs: dict[str, Path]
) -> None:
    context = context_of(
        tmp_path,
        {**inputs, "judge_other": inputs["reward_model"]},
        evidence={"judges": (OtherRewardModel(name="other", path="elsewhere"),)},
        schedule=TrainingSchedule(max_steps=2, save_steps=2),
    )
    train_policy.run(context)
    assert (evidence_of(context).judge, evidence_of(context).published_step) == ("", 2)
    assert "judge other does not look at the policy in training: it is the reward model that the policy was" in (
        (context.work / "events.jsonl").read_text()
    )


def test_another_reward_model_looks(tmp_path: Path, inputs: dict[str, Path]) -> None:
    save_reward_model(tmp_path / "other" / "merged", seed=9)
    context = context_of(
        tmp_path,
        {**inputs, "judge_other": tmp_path / "other"},
        evidence={"judges": (OtherRewardModel(name="other", path="elsewhere"),)},
        schedule=TrainingSchedule(max_steps=2, save_steps=2),
    )
    train_policy.run(context)
    found = evidence_of(context)
    assert found.judge == "other" and [look.step for look in found.looks] == [2]
    assert found.rank_agreement is not None
