"""Fill a store as thousands of runs do, for `benchmarks.load`: artifacts, histories, questions and reports.

The project's own functions make each of them, as in a run.
"""

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

from containers.contracts.configs.stages import StageConfig
from containers.contracts.digests import file_entries
from containers.contracts.identity import SINGLE_BATCH, config_profile, identity_key, stage_identity
from containers.contracts.manifest import LineageEntry, Manifest
from containers.contracts.names import MANIFEST_FILE, REPORT_INPUT_FILE, StageName
from containers.contracts.outcome import Metric
from containers.contracts.records import GateDecision, GateRule, GateVerdict, PipelineRecord, StageRecord
from containers.contracts.spec import StageInput
from tasks.config.run import RunConfig
from tasks.run.runtime import CodeIdentity, code_identity
from tasks.store.decisions import Decisions, Question, decision_key
from tasks.store.history import RunHistory, StageHistory, StageMemory, stage_memory

FILES_OF_AN_ARTIFACT = 3
_FILE_BYTES = 2048
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def fill_store(config: RunConfig, *, num_runs: int, own_artifacts: int) -> None:
    """Write runs of the configuration, each with its own seed: none shares its last `own_artifacts` artifacts."""
    code = code_identity("process", image=config.image)
    store_dir = config.store_dir.resolve()
    configs = _stage_configs(config)
    shared, own = configs[:-own_artifacts], configs[-own_artifacts:]
    known = {StageName(item.stage): _make(store_dir, item, seed=0, code=code, config=config) for item in shared}
    for number in range(num_runs):
        made = {StageName(item.stage): _make(store_dir, item, seed=number, code=code, config=config) for item in own}
        name, output_dir = f"{config.run.name}-{number}", config.output_dir.resolve().parent / "runs" / str(number)
        if number == 0:
            name, output_dir = config.run.name, config.output_dir.resolve()
        output_dir.mkdir(parents=True, exist_ok=True)
        path = StageHistory(store_dir, run_name=name, output_dir=output_dir).path
        path.parent.mkdir(parents=True, exist_ok=True)
        history = RunHistory(run_name=name, output_dir=str(output_dir), stages=known | made)
        path.write_text(history.model_dump_json(indent=1), encoding="utf-8")
        evaluated = (known | made)[StageName.EVALUATE_REWARD_MODEL]
        _ask(store_dir, evaluated, run_name=name, output_dir=output_dir, number=number)


def fill_reports(config: RunConfig, *, num_reports: int) -> None:
    """Write the reports of that many runs of one folder; the last is `report.html`."""
    stages = tuple(
        StageRecord(stage=StageName(item.stage), status="reused", key="a" * 64, message="")
        for item in _stage_configs(config)
    )
    for number in range(num_reports):
        run_id = f"{_moment(number):%Y%m%d-%H%M%S}-{number:06x}"
        folder = config.output_dir / "reports" / run_id
        folder.mkdir(parents=True)
        record = PipelineRecord(
            run_name=config.run.name,
            run_id=run_id,
            started_at=_moment(number).isoformat(timespec="seconds"),
            command=f"rlhf run -c configs/runs/{config.run.name}.yaml",
            config_yaml="",
            stages=stages,
        )
        (folder / REPORT_INPUT_FILE).write_text(record.model_dump_json(), encoding="utf-8")
        (folder / "report.html").write_text(f"<p>{run_id}</p>", encoding="utf-8")
    (config.output_dir / "report.html").write_text(f"<p>{run_id}</p>", encoding="utf-8")


def _stage_configs(config: RunConfig) -> list[StageConfig]:
    """Return the configurations of the run's stages, in order."""
    found = (getattr(config, stage.value, None) for stage in config.stages)
    return [item for item in found if item is not None and hasattr(item, "stage")]


def _make(
    store_dir: Path, stage_config: StageConfig, *, seed: int, code: CodeIdentity, config: RunConfig
) -> StageMemory:
    """Publish an artifact of that stage; return the run's record of it."""
    stage = StageName(stage_config.stage)
    inputs = tuple(
        StageInput(
            name=name,
            path=f"/data/{name}",
            digest=f"sha256:{hashlib.sha256(f'{name}{seed}'.encode()).hexdigest()}",
            origin=f"{name} of seed {seed}",
        )
        for name in ("train_data", "start_model")
    )
    identity = stage_identity(
        stage_config,
        seed=seed,
        inputs=inputs,
        code_digest=code.program(stage_config).digest,
        profile=config_profile(config.gpu_profile, stage_config),
        batch=SINGLE_BATCH,
    )
    key = identity_key(identity)
    folder = store_dir / "artifacts" / stage / key
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(FILES_OF_AN_ARTIFACT):
        content = f"{stage} {seed} {number} ".encode()
        (folder / f"part-{number}.bin").write_bytes((content * _FILE_BYTES)[:_FILE_BYTES])
    manifest = Manifest(
        stage=stage,
        key=key,
        files=file_entries(folder),
        metrics=tuple(Metric(name=f"figure_{number}", value=number / 10, unit="score") for number in range(10)),
        lineage=tuple(LineageEntry(name=item.name, digest=item.digest, origin=item.origin) for item in inputs),
        created_at=_moment(seed).isoformat(timespec="seconds"),
    )
    (folder / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=1), encoding="utf-8")
    return stage_memory(identity, key=key, inputs=inputs, run_id=f"run-{seed}")


def _ask(store_dir: Path, evaluated: StageMemory, *, run_name: str, output_dir: Path, number: int) -> None:
    """Write the run's question at the gate of the reward model; every second question is decided."""
    rules = tuple(
        GateRule(name=f"rule {place}", wanted="at least 60.0 %", found="72.0 % on 384 pairs", passed=True)
        for place in range(5)
    )
    question = Question(
        key=decision_key("reward_model", evaluation_key=evaluated.key, evaluation_digest=f"sha256:{number}", rules={}),
        verdict=GateVerdict(name="reward_model", passed=True, rules=rules),
        rules={"minimum_accuracy": 0.6},
        run_name=run_name,
        run_id=f"run-{number}",
        output_dir=str(output_dir),
        asked_at=_moment(number).isoformat(timespec="seconds"),
        command=f"rlhf run -c configs/runs/{run_name}.yaml",
    )
    decisions = Decisions(store_dir)
    decisions.keep_question(question)
    if number % 2:
        decision = {"outcome": "approved", "by": "Ada", "at": question.asked_at, "origin": "rlhf approve"}
        decisions.decide(question, GateDecision.model_validate(decision))


def _moment(number: int) -> datetime:
    return _EPOCH + timedelta(hours=number)
