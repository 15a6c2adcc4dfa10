"""Decide at the end of a retraining whether the challenger replaces the champion."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
from prefect import task
from prefect.cache_policies import NO_CACHE

from containers.contracts.champions import Comparison, DecisionKind
from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.evaluate_reward_model import EvaluateRewardModelConfig, SuiteFile
from containers.contracts.configs.parts.row_filters import RowFilters
from containers.contracts.digests import read_manifest
from containers.contracts.names import (
    FROZEN_PAIRS_FILE,
    POLICY_FROZEN_PROMPTS_FILE,
    TEST_PAIRS_FILE,
    TRAIN_DEMONSTRATIONS_FILE,
    TRAIN_PAIRS_FILE,
    TUNE_PAIRS_FILE,
    StageName,
)
from containers.contracts.pipeline import JUDGED_BY
from containers.contracts.records import GateVerdict, StageRecord
from containers.contracts.spec import ArtifactRef
from containers.data.pairs import same_pairs
from containers.document.markdown import markdown
from containers.report.champions import contest_text, counted, decision_section
from tasks.champions.book import ChampionBook, ChampionMovedError, now
from tasks.champions.comparison import compare_policies, compare_reward_models
from tasks.champions.record import (
    ChampionRecord,
    Decision,
    FrozenSet,
    ModelVersion,
    RequestedStage,
    StoredArtifact,
)
from tasks.champions.registry import Registry
from tasks.champions.run_decisions import keep_decision, run_decision
from tasks.champions.seen import count_prompts, seen_prompts, suite_prompts
from tasks.champions.text import decision_line
from tasks.config.retrain import RetrainRules, judgement, leads, wins
from tasks.display import current_display
from tasks.prefect_sync.artifacts import show_blocks
from tasks.run.state import PipelineRun

Compare = Callable[[ChampionRecord, ModelVersion], Comparison]

_FROZEN_FILES = {"reward_model": FROZEN_PAIRS_FILE, "policy": POLICY_FROZEN_PROMPTS_FILE}


@task(name="compare_reward_models", task_run_name="compare_reward_models", cache_policy=NO_CACHE, persist_result=False)
def decide_on_reward_model(
    run: PipelineRun,
    book: ChampionBook,
    rules: RetrainRules,
    config: EvaluateRewardModelConfig,
    *,
    registry: Registry,
    rules_text: str,
) -> Decision:
    """Decide whether the run's reward model becomes champion; write the decision to the book, and show it in MLflow."""
    compare = partial(compare_reward_models, run, book, config=config, rules=rules)
    return _decided(run, book, compare, registry=registry, rules_text=rules_text, suites=config.suites)


@task(name="compare_policies", task_run_name="compare_policies", cache_policy=NO_CACHE, persist_result=False)
def decide_on_policy(
    run: PipelineRun,
    book: ChampionBook,
    rules: RetrainRules,
    config: EvaluatePolicyConfig,
    *,
    reward_model: ArtifactRef,
    reward_model_name: str,
    registry: Registry,
    rules_text: str,
) -> Decision:
    """Decide whether the run's policy becomes champion, by the scores of the champion reward model."""
    compare = partial(compare_policies, run, book, reward_model=reward_model, config=config, rules=rules)
    return _decided(run, book, compare, registry=registry, rules_text=rules_text, reward_model=reward_model_name)


def _decided(
    run: PipelineRun,
    book: ChampionBook,
    compare: Compare,
    *,
    registry: Registry,
    rules_text: str,
    reward_model: str = "",
    suites: Sequence[SuiteFile] = (),
) -> Decision:
    record = book.read()
    verdict = next(gate for gate in reversed(run.gates) if gate.name == book.kind)
    base = {
        "champion_before": record.champion.number if record.champion else None,
        "champion_after": record.champion.number if record.champion else None,
        "asked": _asked(run, book),
        "rules": rules_text,
        "run_id": run.run_id,
        "mlflow_run_id": run.mlflow_run_id,
        "flow_run": run.prefect_url,
    }
    changes: dict[str, object] = {}
    if not (verdict.passed and verdict.opens):
        kind, text, comparison = _uncertified(record, verdict)
    else:
        challenger = _challenger(run, book, record, verdict, reward_model=reward_model)
        changes, (kind, text, comparison) = _judged(run, book, record, challenger, compare, suites=suites)
        base |= {"version": challenger.number}
        if kind in ("first", "won"):
            base |= {"champion_after": challenger.number}
    decision = Decision.model_validate({**base, "at": now(), "kind": kind, "text": text, "comparison": comparison})
    record = book.update(lambda found: _with_decision(found, record, decision, changes))
    _show(run, book, record, decision, registry=registry)
    return decision


def _uncertified(record: ChampionRecord, verdict: GateVerdict) -> tuple[DecisionKind, str, None]:
    missed = "; ".join(f"{rule.name} {rule.found}, wanted {rule.wanted}" for rule in verdict.rules if not rule.passed)
    why = f"it did not pass its gate ({missed})" if missed else f"its gate was {verdict.outcome_text}"
    stays = f"version {record.champion.number} stays champion" if record.champion else "there is still no champion"
    waived = " A waiver lets a run go on; it makes no champion." if verdict.opens else ""
    return "refused", f"{stays}: the challenger was not compared, since {why}.{waived}", None


def _judged(
    run: PipelineRun,
    book: ChampionBook,
    record: ChampionRecord,
    challenger: ModelVersion,
    compare: Compare,
    *,
    suites: Sequence[SuiteFile],
) -> tuple[dict[str, object], tuple[DecisionKind, str, Comparison | None]]:
    """The changes of the record beside the decision, and the decision."""
    changes: dict[str, object] = {}
    pairs, champion = Path(book.artifact(challenger.pairs).path), record.champion
    if champion is None:
        frozen = _frozen(book, pairs, from_version=challenger.number)
        changes["frozen"] = frozen
    if record.version(challenger.number) is None:
        judged_on = book.require_frozen(record) if champion else frozen
        _write_seen_prompts(run, book, challenger, judged_on, suites=suites)
        changes["versions"] = (*record.versions, challenger)
    if champion is None:
        return changes, ("first", _first_text(challenger, _frozen_text(book, frozen)), None)
    if champion.number == challenger.number:
        return changes, ("same", f"{champion.shown} stays champion: the challenger is the very same model.", None)
    comparison = compare(record, challenger)
    kind: DecisionKind = "won" if wins(comparison) else "held" if leads(comparison) else "lost"
    return changes, (kind, judgement(comparison), comparison)


def _first_text(challenger: ModelVersion, frozen: str) -> str:
    return (
        f"{challenger.shown} is champion now: it is the first that passed its gate. What is frozen of its data "
        f"({frozen}) judges every later challenger."
    )


def _frozen_text(book: ChampionBook, frozen: FrozenSet) -> str:
    """Number of frozen pairs and of their prompts; of a policy, the prompts."""
    if book.kind == "policy":
        return counted(frozen.count, "prompts")
    prompts = count_prompts(book.frozen_file(frozen))
    return f"{counted(frozen.count, 'pairs')} of {counted(prompts, 'prompts')}"


def _write_seen_prompts(
    run: PipelineRun, book: ChampionBook, challenger: ModelVersion, frozen: FrozenSet, *, suites: Sequence[SuiteFile]
) -> None:
    """Keep which prompts the challenger has seen: later its data may be gone."""
    is_set = book.kind == "policy" and run.config.prompts is not None
    filters: RowFilters = run.config.filter_prompts if is_set else run.config.filter_dataset
    seen = seen_prompts(
        Path(book.artifact(challenger.pairs).path),
        book.frozen_file(frozen),
        overlap=filters.similar_prompt_overlap,
        with_policy=book.kind == "policy",
        with_tune=book.kind == "reward_model" and not frozen.was_chosen_on,
        others=_fine_tuning_rows(run, book),
        suites=suite_prompts(suites),
    )
    book.write_training_prompts(challenger.number, seen)


def _fine_tuning_rows(run: PipelineRun, book: ChampionBook) -> tuple[Path, ...]:
    """The rows that the start model was fine-tuned on, where they are no training pairs of the model itself."""
    config = run.config
    if config.train_sft is None:
        return ()
    if config.demonstrations is not None:
        stage, file = StageName.FILTER_DEMONSTRATIONS, TRAIN_DEMONSTRATIONS_FILE
    else:
        stage, file = StageName.FILTER_DATASET, TRAIN_PAIRS_FILE
    return (Path(book.artifact(_stored(run, stage)).path) / file,)


def _frozen(book: ChampionBook, pairs: Path, *, from_version: int) -> FrozenSet:
    source, of_pairs = pairs / _FROZEN_FILES[book.kind], book.kind == "reward_model"
    return book.freeze(
        source,
        count=pq.read_metadata(source).num_rows,
        from_version=from_version,
        was_chosen_on=of_pairs and same_pairs(pairs, TUNE_PAIRS_FILE, FROZEN_PAIRS_FILE) > 0,
        was_certified_on=of_pairs and same_pairs(pairs, TEST_PAIRS_FILE, FROZEN_PAIRS_FILE) > 0,
    )


def _with_decision(
    found: ChampionRecord, compared: ChampionRecord, decision: Decision, changes: dict[str, object]
) -> ChampionRecord:
    if found.champions != compared.champions:
        raise ChampionMovedError(
            f"The champion of {found.name} changed while the challenger was compared with the one before. "
            f"Nothing was changed; retrain again, every stage is reused."
        )
    return found.model_copy(update={**changes, "decisions": (*found.decisions, decision)})


def _challenger(
    run: PipelineRun, book: ChampionBook, record: ChampionRecord, verdict: GateVerdict, *, reward_model: str
) -> ModelVersion:
    """The run's model: a known version, or the next one."""
    trained_by = StageName.TRAIN_REWARD_MODEL if book.kind == "reward_model" else run.config.policy_stage
    model = _stored(run, trained_by)
    known = record.version_of(model)
    if known is not None:
        return known
    data_stage = StageName.FILTER_DATASET if book.kind == "reward_model" else run.config.prompt_stage
    certificate, pairs = _stored(run, JUDGED_BY[book.kind]), _stored(run, data_stage)
    lineage = read_manifest(Path(book.artifact(pairs).path)).lineage
    return ModelVersion(
        number=1 + max((version.number for version in record.versions), default=0),
        model=model,
        certificate=certificate,
        pairs=pairs,
        dataset=tuple(item for item in lineage if item.name.endswith("_data")),
        reward_model=reward_model,
        gate=verdict,
        figures=_record(run, JUDGED_BY[book.kind]).metrics[:8],
        run_name=run.config.run.name,
        run_id=run.run_id,
        mlflow_run_id=run.mlflow_run_id,
        flow_run=run.prefect_url,
        made_at=read_manifest(Path(book.artifact(model).path)).created_at,
    )


def _asked(run: PipelineRun, book: ChampionBook) -> dict[StageName, RequestedStage]:
    """The request and the result of each stage up to the judgement."""
    found = {}
    for stage in StageName:
        memory, record = run.history.last(stage), run.record_of(stage)
        if memory is not None and record is not None and record.key == memory.key:
            found[stage] = RequestedStage(memory=memory, digest=record.digest)
        if stage is JUDGED_BY[book.kind]:
            break
    return found


def _record(run: PipelineRun, stage: StageName) -> StageRecord:
    record = run.record_of(stage)
    if record is None:
        raise LookupError(f"{stage} has not run; there is nothing to decide on.")
    return record


def _stored(run: PipelineRun, stage: StageName) -> StoredArtifact:
    record = _record(run, stage)
    return StoredArtifact(stage=stage, key=record.key, digest=record.digest)


def _show(
    run: PipelineRun, book: ChampionBook, record: ChampionRecord, decision: Decision, *, registry: Registry
) -> None:
    """Show the decision on the terminal, in the registry, in Prefect, on the MLflow run and in the report."""
    say = current_display().say
    say(f"{record.name}: {decision_line(decision)}")
    if decision.comparison is not None:
        for item in decision.comparison.contests[1:]:
            say(f"  {contest_text(item)}")
    if problem := registry.reconcile(book, record):
        say(problem)
    told = run_decision(record, decision, registry_problem=problem)
    keep_decision(run, told)
    section = decision_section(told)
    show_blocks(f"{record.name}-decision", section, description=decision.text[:300])
    champion = f"version {decision.champion_after}" if decision.champion_after else "none"
    tags = {"kind": decision.kind, "reason": decision.text, "champion": champion}
    run.tracking.set_tags(run.mlflow_run_id, {f"rlhf.{book.kind}.{key}": value for key, value in tags.items()})
    run.tracking.log_text(run.mlflow_run_id, markdown(section), f"champion/{record.name}.md")
