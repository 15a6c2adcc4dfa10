"""The product's main configuration, as shipped, from a hub to the report: no hub and no GPU may hide a mistake in it.

Everything is real but three things: the hub is one on this machine; its Qwen3-8B has the files of the published one
around two small layers, its HelpSteer3 four hundred pairs; and the GPU profile is `cpu`. What else differs from the
file stands in `OVERRIDES`, each with its reason.
"""

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from fakes.helpsteer3_repository import (
    EXPECTED_DROPS,
    NUM_TRAIN_PAIRS,
    NUM_VALIDATION_PAIRS,
    TRAIN_PATH,
    VALIDATION_PATH,
    helpsteer3_repository,
)
from fakes.hub_server import FakeHub
from fakes.qwen3_repository import qwen3_repository
from safetensors import safe_open

from containers.contracts.names import StageName
from containers.models.loading import load_tokenizer
from containers.models.token_batches import prompt_token_ids
from containers.scoring.scorer import conversation_tokens
from tasks.config.loading import load_run_config
from tasks.config.sources import DatasetSource
from tasks.sources.errors import HubUnreachableError, SourceAccessError
from tasks.sources.hub import hub_cache
from tasks.sources.resolve import resolve_dataset

pytestmark = [pytest.mark.slow, pytest.mark.stages]

CONFIG = "configs/runs/helpsteer3-qwen3-8b.yaml"
MODEL, DATASET = "Qwen/Qwen3-8B", "nvidia/HelpSteer3"
NOT_IN_IT = (
    StageName.FILTER_PROMPTS,
    StageName.FILTER_DEMONSTRATIONS,
    StageName.BUILD_BASE_MODEL,
    StageName.TRAIN_SFT,
    StageName.COMPUTE_REFERENCE,
    StageName.TRAIN_DPO,
    StageName.COMPARE_POLICIES,
    StageName.ANSWER_SETS,
    StageName.EVALUATE_SETS,
)
STAGES = [stage for stage in StageName if stage not in NOT_IN_IT]
# `--set KEY=VALUE`, and why the production value cannot stand here.
OVERRIDES = {
    "train_reward_model.optimizer.learning_rate=1.0e-3": "made for 180 steps on weights that know English; here are a "
    "dozen steps on random ones, and the gate of 0.65 stays in force",
    "train_policy.schedule.max_steps=2": "a hundred steps take an hour on seven GPUs",
    "train_policy.schedule.save_steps=2": "a run of two steps would never save every twenty",
    "train_policy.rollout_engine=shared_prompts": "vLLM is in the stage image, and these stages are processes",
    "train_policy.vllm_memory_fraction=null": "the same",
    "train_policy.max_completion_length=16": "random weights never end a turn, so all completions have full length",
    "evaluate_policy.max_completion_length=16": "the same",
    "gates.reward_model.maximum_length_effect=null": "random weights that learnt forty pairs have every bias",
    "gates.policy.waive={by: the test, reason: two steps on random weights prove nothing about a policy}": "its gate "
    "asks for a gain beyond chance",
    "tracking.prefect_port=0": "another run of this machine may hold the usual port",
    "tracking.mlflow_port=0": "the same",
}
# Of the seven linear layers of a block in the fake repository's model.
INPUTS_AND_OUTPUTS = ((64, 128), (64, 64), (64, 64), (128, 64), (64, 192), (64, 192), (192, 64))
LINEAR_LAYERS = {f"self_attn.{name}_proj" for name in "qkvo"} | {f"mlp.{name}_proj" for name in ("gate", "up", "down")}
NUM_BLOCKS, HIDDEN_SIZE = 2, 64


@dataclass(frozen=True)
class Place:
    """A project folder, its hub, and the commits that the first run was given."""

    folder: Path
    hub: FakeHub
    model_commit: str
    dataset_commit: str

    @property
    def output(self) -> Path:
        return self.folder / "outputs" / "helpsteer3-qwen3-8b"

    def artifact(self, stage: StageName) -> Path:
        return self.output / "artifacts" / stage

    def rlhf(self, command: str, *overrides: str) -> subprocess.CompletedProcess[str]:
        changes = [word for change in (*OVERRIDES, *overrides) for word in ("--set", change)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING_"))}
        environment |= {"HF_ENDPOINT": self.hub.url, "HF_HOME": str(self.folder / "huggingface"), "COLUMNS": "400"}
        # `runtime: auto` finds no daemon and takes processes.
        environment |= {"DOCKER_HOST": "unix:///nonexistent.sock"}
        return subprocess.run(
            [sys.executable, "-m", "flows.cli.main", command, "-c", CONFIG, "--profile", "cpu", *changes],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )


@dataclass(frozen=True)
class Run:
    """A place after its first run."""

    place: Place
    stdout: str
    downloads: tuple[str, ...]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("production")
    shutil.copytree(project / "configs", folder / "configs")
    dataset = helpsteer3_repository()
    model = qwen3_repository(texts=_texts(dataset[TRAIN_PATH]))
    # Disk and memory are reckoned from the published model's sizes; this hub's model is smaller.
    shape = folder / "configs/model_shapes/qwen3-8b.yaml"
    shape.write_text(yaml.safe_dump({**json.loads(model["config.json"]), "hub_id": MODEL}))
    with FakeHub() as hub:
        place = Place(folder, hub, hub.commit("models", MODEL, model), hub.commit("datasets", DATASET, dataset))
        ended = place.rlhf("run")
        assert ended.returncode == 0, ended.stdout + ended.stderr
        yield Run(place, ended.stdout, tuple(hub.downloads()))


def _texts(packed: bytes) -> list[str]:
    rows = [json.loads(line) for line in gzip.decompress(packed).decode().splitlines()]
    return [row["context"][0]["content"] for row in rows] + [row["response1"] for row in rows]


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _leaves(tree: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict) or not tree:
        return {path: tree}
    return {key: leaf for name, value in tree.items() for key, leaf in _leaves(value, f"{path}.{name}").items()}


def test_what_ran_is_the_production_file_but_for_the_overrides(run: Run, project: Path) -> None:
    pipeline = next((run.place.output / "reports").glob("*/pipeline.json"))
    ran = _leaves(yaml.safe_load(_json(pipeline)["config_yaml"]))
    shipped = _leaves(yaml.safe_load(load_run_config(project / CONFIG, profile="cpu").yaml_text))
    differing = {key.lstrip(".") for key in ran | shipped if ran.get(key) != shipped.get(key)}
    named = {override.partition("=")[0] for override in OVERRIDES}
    assert {key.removesuffix(".by").removesuffix(".reason") for key in differing} == named


def test_every_stage_ran_once_and_the_reward_model_passed_the_production_gate(run: Run) -> None:
    for stage in STAGES:
        assert run.stdout.count(f"✔ {stage} ") == 1
        if stage is not StageName.CHECK_SYSTEM:
            assert (run.place.artifact(stage) / "MANIFEST.json").is_file()
    verdicts = {gate["name"]: gate for gate in _json(next(run.place.output.glob("reports/*/pipeline.json")))["gates"]}
    assert verdicts["reward_model"]["passed"]
    assert verdicts["policy"]["passed"] or verdicts["policy"]["waived_by"] == "the test"


def test_report_and_manifests_name_repository_and_resolved_commit(run: Run) -> None:
    place = run.place
    report = (place.output / "report.html").read_text(encoding="utf-8")
    assert f"{MODEL}@{place.model_commit}" in report
    for path in (TRAIN_PATH, VALIDATION_PATH):
        assert f"{DATASET}@{place.dataset_commit} {path}" in report
    digests = {
        "train_data": f"hub:{place.dataset_commit}:{TRAIN_PATH}",
        "validation_data": f"hub:{place.dataset_commit}:{VALIDATION_PATH}",
        "start_model": f"hub:{place.model_commit}",
    }
    found = {
        entry["name"]: entry["digest"]
        for stage in (StageName.FILTER_DATASET, StageName.TRAIN_REWARD_MODEL, StageName.TRAIN_POLICY)
        for entry in _json(place.artifact(stage) / "MANIFEST.json")["lineage"]
    }
    assert {name: found[name] for name in digests} == digests


def test_only_files_that_the_run_needs_were_fetched_and_each_once(run: Run) -> None:
    fetched = list(run.downloads)
    assert sorted(set(fetched)) == fetched
    assert {TRAIN_PATH, VALIDATION_PATH, "config.json", "tokenizer.json", "model-00002-of-00002.safetensors"} <= set(
        fetched
    )
    assert not {"README.md", "LICENSE", "feedback/train.jsonl.gz"} & set(fetched)


def test_the_funnel_counts_what_was_put_into_the_repository(run: Run) -> None:
    funnel = _json(run.place.artifact(StageName.FILTER_DATASET) / "funnel.json")
    drops = {step["reason"]: step["rows_in"] - step["rows_out"] for step in funnel["steps"]}
    assert {reason: count for reason, count in drops.items() if count} == EXPECTED_DROPS
    assert funnel["rows_read"] == NUM_TRAIN_PAIRS + NUM_VALIDATION_PAIRS + sum(EXPECTED_DROPS.values())
    assert funnel["train_pairs"] + funnel["pairs_set_aside_for_policy"] == NUM_TRAIN_PAIRS
    assert funnel["validation_pairs"] == NUM_VALIDATION_PAIRS
    # A tenth of the prompts, each with one pair here; drawn by hash, so about that many.
    assert funnel["policy_train_prompts"] + funnel["policy_eval_prompts"] == funnel["pairs_set_aside_for_policy"]
    assert 0.05 < funnel["pairs_set_aside_for_policy"] / NUM_TRAIN_PAIRS < 0.15


@pytest.mark.parametrize("stage", [StageName.TRAIN_REWARD_MODEL, StageName.TRAIN_POLICY])
def test_adapters_of_rank_64_lie_on_all_linear_layers(run: Run, stage: StageName) -> None:
    folder = run.place.artifact(stage)
    adapter = _json(folder / "adapter/adapter_config.json")
    assert (adapter["r"], adapter["lora_alpha"], adapter["lora_dropout"]) == (64, 128, 0.0)
    targets = {f"model.layers.{block}.{layer}" for block in range(NUM_BLOCKS) for layer in LINEAR_LAYERS}
    assert set(adapter["target_modules"]) == targets
    with safe_open(folder / "adapter/adapter_model.safetensors", framework="pt") as weights:
        shapes = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118 - no dict
    assert sum(".lora_A." in name for name in shapes) == len(targets)
    assert {shape[0] for name, shape in shapes.items() if ".lora_A." in name} == {64}
    is_reward_model = stage is StageName.TRAIN_REWARD_MODEL
    assert any(name.endswith("score.weight") for name in shapes) == is_reward_model
    trained = NUM_BLOCKS * sum(64 * (inputs + outputs) for inputs, outputs in INPUTS_AND_OUTPUTS)
    head = HIDDEN_SIZE if is_reward_model else 0
    assert _json(folder / "training_info.json")["trainable_parameters"] == trained + head


@pytest.mark.parametrize("stage", [StageName.TRAIN_REWARD_MODEL, StageName.TRAIN_POLICY])
def test_an_adapter_names_its_base_model_so_that_peft_finds_it_on_the_hub(run: Run, stage: StageName) -> None:
    adapter = _json(run.place.artifact(stage) / "adapter/adapter_config.json")
    assert (adapter["base_model_name_or_path"], adapter["revision"]) == (MODEL, run.place.model_commit)


def test_the_policy_begins_to_write_where_the_answers_of_the_reward_model_begin(run: Run) -> None:
    tokenizer = load_tokenizer(run.place.artifact(StageName.TRAIN_POLICY) / "model")
    prompt = [{"role": "user", "content": "How do I boil an egg?"}]
    written = prompt_token_ids(tokenizer, [prompt])[0]
    judged = conversation_tokens(tokenizer, [*prompt, {"role": "assistant", "content": "In hot water."}])
    assert judged[: len(written)] == written
    assert tokenizer.decode(judged[len(written) :]) == "In hot water.<|im_end|>\n"


def test_the_same_command_again_reuses_everything_and_fetches_nothing(run: Run) -> None:
    ended = run.place.rlhf("run")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    made = [stage for stage in STAGES if stage not in (StageName.CHECK_SYSTEM, StageName.WRITE_REPORT)]
    assert [stage for stage in STAGES if f"↺ {stage} " in ended.stdout] == made
    started = [line.split()[1] for line in ended.stdout.splitlines() if line.startswith("…")]
    assert started == []
    assert "Nothing to do" in ended.stdout
    assert tuple(run.place.hub.downloads()) == run.downloads


def test_a_plan_of_pinned_commits_says_what_is_reused_and_asks_no_hub(run: Run) -> None:
    asked = list(run.place.hub.requests)
    pinned = (f"base_model.revision={run.place.model_commit}", f"dataset.revision={run.place.dataset_commit}")
    planned = run.place.rlhf("plan", *pinned)
    made = [stage for stage in STAGES if stage not in (StageName.CHECK_SYSTEM, StageName.WRITE_REPORT)]
    assert [stage for stage in STAGES if f"{stage}   [reused, made " in planned.stdout] == made, planned.stdout
    unpinned = run.place.rlhf("plan", pinned[1])
    assert "filter_dataset   [reused, made " in unpinned.stdout
    unknown = f"[not known until the hub is queried: `main` of {MODEL} may have moved]"
    assert f"train_reward_model   {unknown}" in unpinned.stdout
    assert run.place.hub.requests == asked


def test_a_branch_that_moved_on_runs_the_filter_again_and_what_follows(run: Run) -> None:
    place = run.place
    commit = place.hub.commit("datasets", DATASET, helpsteer3_repository(further_rows=1))
    assert commit != place.dataset_commit
    # That training starts again is enough to see; a time-out changes no result, so it is in no stage's key.
    ended = place.rlhf("run", "runtime.timeout_s.train_reward_model=1")
    assert ended.returncode == 1
    assert "✔ filter_dataset" in ended.stdout
    assert "… train_reward_model" in ended.stdout
    assert "timed_out" in ended.stdout
    assert commit in (place.output / "report.html").read_text(encoding="utf-8")
    funnels = place.folder.glob("outputs/store/artifacts/filter_dataset/*/funnel.json")
    rows_read = {_json(path)["rows_read"] for path in funnels}
    assert len(rows_read) == 2
    assert max(rows_read) == min(rows_read) + 1


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with the dataset, for this process."""
    with FakeHub() as fake:
        fake.commit("datasets", DATASET, helpsteer3_repository())
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
        monkeypatch.delenv("HF_HUB_CACHE", raising=False)
        yield fake


def test_a_download_that_breaks_leaves_nothing_that_looks_whole(hub: FakeHub) -> None:
    source = DatasetSource(hub_id=DATASET, revision="main", train=TRAIN_PATH)
    content = helpsteer3_repository()[TRAIN_PATH]
    hub.cut_off_after = len(content) // 2
    with pytest.raises(HubUnreachableError, match="without sending complete message body"):
        resolve_dataset(source, token=None)
    assert not (hub_cache().parent / "rlhf-snapshots").exists()
    hub.cut_off_after = None
    (train,) = resolve_dataset(source, token=None)
    assert train.path.read_bytes() == content


def test_a_token_that_the_hub_refuses_does_not_pass_for_a_missing_repository(hub: FakeHub) -> None:
    hub.refuses_tokens = True
    source = DatasetSource(hub_id=DATASET, revision="main", train=TRAIN_PATH)
    with pytest.raises(SourceAccessError, match="token"):
        resolve_dataset(source, token="hf_expired")
