"""With every option of training, all code paths give one score; one that forgets its token is named."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from containers.certificate import parity as certificate_parity
from containers.certificate.parity import measure_parity
from containers.contracts.certificate import ScoreStatistics
from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.parts.training import TrainingSchedule
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.names import StageName
from containers.harness.errors import MissingPrerequisiteError, StageError
from containers.models.score_token import SCORE_TOKEN
from containers.rewards.reward_model import ModelReward, load_scorer, policy_scorer
from containers.scoring.scorer import RewardScorer, conversation_tokens
from containers.stages import train_reward_model
from tests.unit.factories.prompt_factory import answered, rewarded
from tests.unit.factories.reward_model_factory import logged_scores, reward_model_context
from tests.unit.factories.spec_factory import make_context

pytestmark = pytest.mark.stages

Conversation = list[dict[str, str]]
PATHS = {
    "merged model, reloaded by training",
    "training collator",
    "evaluator, as configured",
    "evaluator, batches of 1",
    "evaluator, batches of 2",
    "evaluator, batches of 8",
    "evaluator, mixed lengths",
    "scorer of the policy stage",
}
ADAPTER = "adapter, reloaded by training"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Trains a reward model with these options, once; the context of its training."""
    made: dict[str, Any] = {}

    def with_options(**options: Any) -> Any:
        name = "-".join(f"{key}={value}" for key, value in options.items())
        if name not in made:
            folder = tmp_path_factory.mktemp("trained")
            context = reward_model_context(folder, schedule=TrainingSchedule(max_steps=2, eval_steps=2), **options)
            train_reward_model.run(context)
            made[name] = context
        return made[name]

    return with_options


def _scorer(artifact: Path, *, batch_tokens: int | None = None) -> RewardScorer:
    return RewardScorer.load(
        artifact / "merged",
        device="cpu",
        dtype=torch.float32,
        max_length=256,
        batch_size=16,
        batch_tokens=batch_tokens,
    )


OPTIONS = [
    {"use_cls": use_cls, "trainable": trainable, **({} if trainable == "lora" else {"lora": None})}
    for use_cls in (False, True)
    for trainable in ("lora", "full", "head")
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: f"{options['trainable']}-cls-{options['use_cls']}")
def test_every_path_gives_the_logged_scores_with_every_option(
    trained: Callable[..., Any], options: dict[str, Any]
) -> None:
    artifact = trained(**options).output
    parity = measure_parity(artifact, _scorer(artifact, batch_tokens=300), trained_in=torch.float32)
    assert {path.name for path in parity.paths} == PATHS | ({ADAPTER} if (artifact / "adapter").is_dir() else set())
    assert (artifact / "adapter").is_dir() == (options["trainable"] != "full")
    assert parity.max_difference <= parity.bound == 1e-4


@pytest.mark.parametrize("stage", [StageName.TRAIN_POLICY, StageName.EVALUATE_POLICY])
@pytest.mark.parametrize("normalise", [False, True])
def test_the_policy_stages_get_the_logged_score_at_the_score_token_and_the_reward_follows_from_it(
    tmp_path: Path, trained: Callable[..., Any], stage: StageName, normalise: bool
) -> None:
    training = trained(use_cls=True, trainable="lora")
    configs = {
        StageName.TRAIN_POLICY: TrainPolicyConfig(score_batch_tokens=123),
        StageName.EVALUATE_POLICY: EvaluatePolicyConfig(score_batch_tokens=123),
    }
    context = make_context(tmp_path, stage, configs[stage], {"reward_model": training.output})
    scorer = load_scorer(context, batch_size=3)
    assert scorer.batch_tokens == 123
    path = training.output / "merged" / "score_statistics.json"
    by = ScoreStatistics.model_validate_json(path.read_bytes()) if normalise else None
    conversations, logged = logged_scores(training)
    rows = [answered(conversation[-1]["content"], prompt=conversation[:-1]) for conversation in conversations]
    _scores, rewards = rewarded(ModelReward(scorer, normalisation=by), rows)
    wanted = [(score - by.mean) / by.standard_deviation for score in logged] if by else logged
    spread = by.standard_deviation if by else 1.0
    assert rewards == pytest.approx(wanted, abs=1e-4 / spread)


@pytest.fixture
def artifact(tmp_path: Path, trained: Callable[..., Any]) -> Path:
    """A copy of a model with a score token, to be damaged."""
    return Path(shutil.copytree(trained(use_cls=True, trainable="lora").output, tmp_path / "artifact"))


def _forget_token(copy: Path) -> None:
    path = copy / "chat_template.jinja"
    template = path.read_text(encoding="utf-8")
    ending = "{% if not add_generation_prompt %}" + SCORE_TOKEN + "{% endif %}"
    assert template.endswith(ending)
    path.write_text(template.removesuffix(ending), encoding="utf-8")


def _paths_apart(refused: pytest.ExceptionInfo[StageError]) -> set[str]:
    listed = str(refused.value).partition("The code paths that differ are ")[2]
    return {name for name in PATHS | {ADAPTER} if name in listed}


def test_a_merged_model_whose_template_forgets_the_token_is_another_model(artifact: Path) -> None:
    _forget_token(artifact / "merged")
    _forget_token(artifact / "adapter")
    with pytest.raises(StageError) as refused:
        measure_parity(artifact, _scorer(artifact), trained_in=torch.float32)
    # What training reloaded was right then.
    assert _paths_apart(refused) == PATHS - {"merged model, reloaded by training"}


def test_an_adapter_whose_template_forgets_the_token_is_refused(artifact: Path) -> None:
    _forget_token(artifact / "adapter")
    with pytest.raises(MissingPrerequisiteError, match=r"tokenizer in .*adapter makes other tokens .* 48 of 48"):
        measure_parity(artifact, _scorer(artifact), trained_in=torch.float32)


def test_a_training_path_that_forgets_the_token_is_named_alone(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(artifact / "adapter")
    monkeypatch.setattr(
        certificate_parity,
        "conversation_tokens",
        lambda tokenizer, conversation: conversation_tokens(tokenizer, conversation)[:-1],
    )
    with pytest.raises(StageError) as refused:
        measure_parity(artifact, _scorer(artifact), trained_in=torch.float32)
    assert _paths_apart(refused) == {"training collator"}


def test_a_policy_path_that_forgets_the_token_is_named_alone(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = _scorer(artifact)
    _forget_token(artifact / "merged")
    forgetful = _scorer(artifact).tokenizer
    monkeypatch.setattr(
        certificate_parity,
        "policy_scorer",
        lambda model, tokenizer, **bounds: policy_scorer(model, forgetful, **bounds),
    )
    with pytest.raises(StageError) as refused:
        measure_parity(artifact, scorer, trained_in=torch.float32)
    assert _paths_apart(refused) == {"scorer of the policy stage"}


def test_an_evaluator_that_forgets_the_token_is_named_with_each_of_its_batches(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        RewardScorer,
        "tokenize_all",
        lambda self, conversations: [self.tokenize(conversation)[:-1] for conversation in conversations],
    )
    with pytest.raises(StageError) as refused:
        measure_parity(artifact, _scorer(artifact), trained_in=torch.float32)
    assert _paths_apart(refused) == {name for name in PATHS if name.startswith(("evaluator", "scorer"))}
