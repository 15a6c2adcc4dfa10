"""Two ranks look together: each writes and judges its share, all decide the same, and none waits for another."""

from pathlib import Path

import pytest

from containers.contracts.configs.parts.evidence import EvidenceSettings
from containers.contracts.configs.parts.rewards import LengthTerm
from containers.contracts.configs.stages import StageConfig
from containers.contracts.evidence import Evidence
from containers.contracts.names import EVIDENCE_FILE, StageName
from containers.contracts.records import TrainingInfo
from tests.unit.containers.distributed.test_ranks_agree import Trainings
from tests.unit.factories.prompt_factory import write_prompts

pytestmark = [pytest.mark.stages, pytest.mark.slow]


class LookedAt(Trainings):
    """Forty prompts, a look every three steps on 9 and 18 pairs, and a roll-back where no gain is shown."""

    def _config(self, stage: StageName) -> StageConfig:
        judge = LengthTerm(name="brevity", target=(0, 4))
        evidence = EvidenceSettings(
            steps=3, num_pairs=9, patience=1, on_no_gain="roll_back", max_roll_backs=1, judges=(judge,)
        )
        return super()._config(stage).model_copy(update={"evidence": evidence, "beta": 0.1})

    def _inputs(self, stage: StageName) -> dict[str, Path]:
        texts = [f"What is {number}?" for number in range(40)]
        return {**super()._inputs(stage), "prompts": write_prompts(self.folder / "many", train=texts)}


def test_two_ranks_look_roll_back_and_publish_one_policy(tmp_path: Path) -> None:
    output = LookedAt(tmp_path).output(StageName.TRAIN_POLICY, ranks=2, per_device=4)
    found = Evidence.model_validate_json((output / EVIDENCE_FILE).read_bytes())
    assert [look.step for look in found.looks][:2] == [3, 6]
    assert all(look.num_pairs in (9, 18) for look in found.looks)
    assert found.num_prompts == 10
    consequences = [look.consequence for look in found.looks]
    assert "rolls back" in consequences or consequences.count("trusted") == len(consequences)
    info = TrainingInfo.model_validate_json((output / "training_info.json").read_bytes())
    assert info.published_step == found.published_step
    assert (output / "model" / "model.safetensors").is_file()
