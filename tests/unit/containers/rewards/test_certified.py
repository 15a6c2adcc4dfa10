"""The policy stage optimises the very model that was judged, or none."""

from pathlib import Path

import pytest

from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.names import CERTIFICATE_FILE, StageName
from containers.harness.context import StageContext
from containers.harness.errors import MissingPrerequisiteError
from containers.rewards.certified import require_certificate
from containers.scoring.scorer import score_head_sha256
from tests.unit.factories.report.certificate_factory import write_certificate
from tests.unit.factories.spec_factory import make_context
from tests.unit.factories.tiny_policy import save_reward_model

pytestmark = pytest.mark.stages


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reward_model")
    save_reward_model(folder / "merged")
    return folder


def _context(tmp_path: Path, model: Path, certificate: Path | None) -> StageContext:
    inputs = {"reward_model": model} | ({"certificate": certificate} if certificate else {})
    return make_context(tmp_path, StageName.TRAIN_POLICY, TrainPolicyConfig(), inputs)


def test_the_certificate_of_the_model_is_taken(tmp_path: Path, model: Path) -> None:
    head = score_head_sha256(model / "merged")
    found = require_certificate(_context(tmp_path, model, write_certificate(tmp_path / "c", score_head_sha256=head)))
    assert found.model.score_head_sha256 == head


def test_without_a_certificate_nothing_is_trained(tmp_path: Path, model: Path) -> None:
    with pytest.raises(MissingPrerequisiteError, match="needs an input `certificate`"):
        require_certificate(_context(tmp_path, model, None))


def test_a_model_whose_head_was_exchanged_after_it_was_judged_is_refused(tmp_path: Path, model: Path) -> None:
    certificate = write_certificate(tmp_path / "c", score_head_sha256="ab" * 32)
    with pytest.raises(MissingPrerequisiteError, match="was changed after it was judged"):
        require_certificate(_context(tmp_path, model, certificate))


def test_the_certificate_of_another_model_is_refused(tmp_path: Path, model: Path) -> None:
    head = score_head_sha256(model / "merged")
    certificate = write_certificate(tmp_path / "c", score_head_sha256=head, digest="sha256:other")
    with pytest.raises(MissingPrerequisiteError, match=r"that of another reward model \(sha256:other\)"):
        require_certificate(_context(tmp_path, model, certificate))


def test_a_damaged_certificate_is_refused(tmp_path: Path, model: Path) -> None:
    certificate = write_certificate(tmp_path / "c", score_head_sha256="ab" * 32)
    (certificate / CERTIFICATE_FILE).write_text("{")
    with pytest.raises(MissingPrerequisiteError, match=r"certificate\.json, cannot be read"):
        require_certificate(_context(tmp_path, model, certificate))
