"""A reward model that was saved as an adapter scores as its merged copy, or is refused: never with a random part."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3ForCausalLM

from containers.contracts.certificate import Certificate
from containers.contracts.configs.evaluate_reward_model import EvaluateRewardModelConfig
from containers.contracts.names import BASE_FOLDER, StageName
from containers.harness.errors import MissingPrerequisiteError
from containers.models.loading import load_reward_model, load_tokenizer, require_own_tokenizer
from containers.scoring.scorer import RewardScorer, score_head_sha256
from containers.stages import evaluate_reward_model
from tests.unit.factories.adapter_factory import MadeAdapter, make_adapter
from tests.unit.factories.spec_factory import colour_rows, make_context, write_pairs
from tests.unit.factories.tiny_policy import save_causal_model, save_reward_model, tiny_config, tiny_tokenizer

pytestmark = pytest.mark.stages

WEIGHTS = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> MadeAdapter:
    return make_adapter(tmp_path_factory.mktemp("adapter"))


def _scores(folder: Path) -> list[float]:
    scorer = RewardScorer.load(folder, device="cpu", dtype=torch.float32, max_length=256, batch_size=4)
    rows = colour_rows(6)
    return scorer.score([[*row["prompt"], *row[side]] for row in rows for side in ("chosen", "rejected")])


def _load(folder: Path) -> None:
    load_reward_model(folder, dtype=torch.float32, device="cpu")


@pytest.mark.parametrize("options", [{}, {"use_cls": True}, {"head_only": True}, {"use_cls": True, "head_only": True}])
def test_an_adapter_on_its_base_scores_as_the_merged_model(tmp_path: Path, options: dict[str, bool]) -> None:
    made = make_adapter(tmp_path, **options)
    found, wanted = _scores(made.with_base(tmp_path / "together")), _scores(made.merged)
    assert max(wanted) - min(wanted) > 0.01
    assert found == pytest.approx(wanted, abs=1e-4)


def test_it_gets_the_certificate_of_a_stranger_with_the_head_of_the_adapter(
    tmp_path: Path, adapter: MadeAdapter
) -> None:
    folder = adapter.with_base(tmp_path / "together")
    inputs = {"pairs": write_pairs(tmp_path / "pairs", colour_rows(1)), "reward_model": folder}
    config = EvaluateRewardModelConfig(max_length=256, num_bootstrap=200)
    context = make_context(tmp_path, StageName.EVALUATE_REWARD_MODEL, config, inputs)
    evaluate_reward_model.run(context)
    found = Certificate.model_validate_json((context.output / "certificate.json").read_bytes())
    assert found.parity.holds
    assert found.model.score_head_sha256 == score_head_sha256(adapter.merged) == score_head_sha256(folder)


def test_an_adapter_without_its_score_head_is_refused_for_that_reason(tmp_path: Path, adapter: MadeAdapter) -> None:
    folder = adapter.with_base(tmp_path / "headless")
    weights = load_file(folder / WEIGHTS)
    headless = {name: value for name, value in weights.items() if "score" not in name}
    assert len(headless) == len(weights) - 1
    save_file(headless, folder / WEIGHTS)
    with pytest.raises(MissingPrerequisiteError, match=r"holds no score\.weight: .* a random head"):
        _load(folder)


def test_an_adapter_that_lost_a_layer_is_refused(tmp_path: Path, adapter: MadeAdapter) -> None:
    folder = adapter.with_base(tmp_path / "holed")
    weights = load_file(folder / WEIGHTS)
    lost = next(name for name in sorted(weights) if "layers.1" in name)
    save_file({name: value for name, value in weights.items() if name != lost}, folder / WEIGHTS)
    with pytest.raises(MissingPrerequisiteError, match=rf"lacks weights for its base model: {lost}"):
        _load(folder)


@pytest.mark.parametrize("changes", [{"num_hidden_layers": 1}, {"num_hidden_layers": 3}, {"hidden_size": 64}])
def test_an_adapter_on_a_base_of_another_shape_is_refused(
    tmp_path: Path, adapter: MadeAdapter, changes: dict[str, int]
) -> None:
    folder = adapter.with_base(tmp_path / "other")
    settings = json.loads((folder / "adapter_config.json").read_text())
    # As adapters name them that were trained elsewhere; ours name every single one.
    settings["target_modules"] = sorted({name.rpartition(".")[2] for name in settings["target_modules"]})
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    _load(folder)
    Qwen3ForCausalLM(tiny_config(tiny_tokenizer(), **changes)).save_pretrained(folder / BASE_FOLDER)
    with pytest.raises(MissingPrerequisiteError, match=r"another base model|for its base model|to its base model"):
        _load(folder)


def test_an_adapter_alone_and_damaged_weights_are_told(tmp_path: Path, adapter: MadeAdapter) -> None:
    with pytest.raises(MissingPrerequisiteError, match="an adapter without its base model"):
        _load(adapter.folder)
    folder = adapter.with_base(tmp_path / "damaged")
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:100])
    with pytest.raises(MissingPrerequisiteError, match=r"adapter's weights .* cannot be read"):
        _load(folder)


def test_a_tokenizer_with_more_tokens_than_the_model_has_rows_is_that_of_another(tmp_path: Path) -> None:
    folder = save_reward_model(tmp_path / "model")
    tokenizer = load_tokenizer(folder)
    model = load_reward_model(folder, dtype=torch.float32, device="cpu")
    require_own_tokenizer(model, tokenizer, folder=folder)
    tokenizer.add_tokens(["<|more|>"])
    with pytest.raises(MissingPrerequisiteError, match=r"tokenizer in .* is that of another model: it has 260 tokens"):
        require_own_tokenizer(model, tokenizer, folder=folder)


def test_a_tokenizer_that_lacks_the_tokens_of_the_models_config_is_that_of_another(tmp_path: Path) -> None:
    folder = save_causal_model(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    assert config["eos_token_id"] == 258
    model = load_reward_model(save_reward_model(tmp_path / "rm"), dtype=torch.float32, device="cpu")
    model.config.eos_token_id = [258, 151645]
    with pytest.raises(MissingPrerequisiteError, match="eos_token_id is 151,645, and the tokenizer's highest id 258"):
        require_own_tokenizer(model, load_tokenizer(folder), folder=folder)
