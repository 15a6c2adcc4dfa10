"""A stage's log is read when something went wrong: what means nothing is not in it, and nothing else is lost."""

import logging
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from containers.contracts.configs.parts.training import OptimizerSettings, TrainingSchedule
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.names import StageName
from containers.harness.log_filters import silence_known_noise
from containers.launch.environment import stage_environment
from tests.unit.factories.spec_factory import CPU, colour_rows, make_spec, write_pairs
from tests.unit.factories.tiny_policy import save_causal_model

pytestmark = pytest.mark.stages

RENAMED = (
    "`is_gradient_checkpointing` is deprecated and will be removed in v6. Use `is_activation_checkpointing` instead."
)
MISSING = "There were missing keys in the checkpoint model loaded: {}."


def test_only_the_known_warnings_are_silenced() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        silence_known_noise()
        for text in (RENAMED, RENAMED.replace("v6", "v5.30"), "`use_cache` is deprecated and will be removed in v6."):
            warnings.warn(text, FutureWarning, stacklevel=1)
        warnings.warn(RENAMED, UserWarning, stacklevel=1)
    assert [(item.category, str(item.message)[:12]) for item in seen] == [
        (FutureWarning, "`is_gradient"),
        (FutureWarning, "`use_cache` "),
        (UserWarning, "`is_gradient"),
    ]


@pytest.mark.parametrize(
    ("keys", "is_seen"),
    [("['lm_head.weight']", False), ("['lm_head.weight', 'model.norm.weight']", True), ("['score.weight']", True)],
)
def test_only_the_head_that_has_no_weights_of_its_own_may_be_missing(
    caplog: pytest.LogCaptureFixture, keys: str, is_seen: bool
) -> None:
    silence_known_noise()
    logging.getLogger("transformers.trainer").propagate = True
    logging.getLogger("transformers").propagate = True
    with caplog.at_level(logging.WARNING, logger="transformers.trainer"):
        logging.getLogger("transformers.trainer").warning(MISSING.format(keys))
    assert bool(caplog.records) == is_seen


@pytest.mark.stages
def test_the_log_of_a_training_has_its_progress_and_nothing_else(tmp_path: Path) -> None:
    inputs = {
        "pairs": write_pairs(tmp_path / "pairs", colour_rows(16)),
        "start_model": save_causal_model(tmp_path / "start", scale=0.02),
    }
    config = TrainSftConfig(
        max_length=256,
        gradient_checkpointing=True,
        optimizer=OptimizerSettings(learning_rate=3e-3),
        schedule=TrainingSchedule(max_steps=2, eval_steps=1),
    )
    spec = tmp_path / "spec.json"
    spec.write_text(make_spec(tmp_path / "work", StageName.TRAIN_SFT, config, inputs).model_dump_json())
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    ran = subprocess.run(
        [sys.executable, "-m", "containers.stages.entry", str(spec)],
        env={**environment, **dict(stage_environment(CPU, seed=7))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    allowed = re.compile(
        r"step \d of 2( loss \d\.\d+)?|Completions are packed, .*|train_sft finished in [\d.]+ s\.|.*not enforced\."
        r"|Before the first step, a trial model, .* was saved, merged and loaded again; .* which are free again\."
        r"|The largest possible pack, \d+ tokens, was computed after the first step .* \d+ MiB at most so far\."
    )
    assert [line for line in ran.stdout.splitlines() if not allowed.fullmatch(line)] == []
