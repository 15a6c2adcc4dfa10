"""The retraining flow: train, certify and compare a challenger, which becomes champion only if it is better."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.states import Cancelled, Completed

from containers.contracts.names import StageName
from containers.contracts.pipeline import STAGE_FACTS
from containers.contracts.spec import ArtifactRef, StageInput
from flows.rlhf import Maker, run_stages, train_and_judge
from tasks.champions.changes import nothing_new_text, why_new_reward_model, why_retrain
from tasks.champions.registry import Registry
from tasks.champions.retraining import Retraining, load_retraining
from tasks.config.gates import GateClosedError
from tasks.config.run import RunConfig
from tasks.decide_champion import decide_on_policy, decide_on_reward_model
from tasks.display import current_display
from tasks.pipeline.inputs import BEFORE_MODEL, named_model_input
from tasks.pipeline.open_run import mlflow_uri
from tasks.pipeline.stages import OF_THE_POLICY, STAGES, walk
from tasks.prefect_sync.cancellation import watch_for_cancel
from tasks.run.state import PipelineRun
from tasks.store.lock import WaitCancelledError, sole_worker


def _flow_run_name() -> str:
    context = FlowRunContext.get()
    start_from = str((context.parameters or {}).get("start_from", "")) if context else ""
    return f"retrain {Path(start_from).stem}"


@flow(name="rlhf-retrain", flow_run_name=_flow_run_name)
def rlhf_retrain(start_from: str, more_settings: list[str] | None = None) -> State[Any]:
    """Train a challenger on the newest data, and make it champion only if it is better beyond chance.

    If nothing changed since the last decision, the flow ends within seconds and starts nothing.

    Args:
        start_from: The run to retrain: the name of a file in configs/runs, or a path.
        more_settings: Keys to change, as `section.key=value`; for example `retrain.regression_budget=0.02`.

    Returns:
        The flow run's last state; its message is the decision with its reason.

    Raises:
        ConfigError: there is no such run, or it has mistakes; nothing was started.
        SourceError: the dataset cannot be read or fetched; nothing was started.
        ChampionError: no challenger can be compared with the champion, which stays.
    """
    retraining = load_retraining(start_from, more_settings or ())
    say = current_display().say
    try:
        with _alone(retraining, say):
            # Checked under the lock: its last holder may just have decided about the same data.
            why = why_retrain(retraining)
            if not why:
                text = nothing_new_text(retraining)
                say(text)
                _tell_registry(retraining)
            else:
                say(f"Retraining, since {why}")
                text = _retrain(retraining)
    except WaitCancelledError as cancelled:
        return Cancelled(message=f"{cancelled} Nothing was started.")
    return Completed(message=text, data=text)


@contextmanager
def _alone(retraining: Retraining, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the champions' lock; wait for another retraining of them, unless a user cancels this one.

    Raises:
        WaitCancelledError: a user cancelled this retraining while it waited.
    """
    cancelled, close = watch_for_cancel()
    try:
        with sole_worker(
            retraining.book("reward_model").folder / "retraining",
            holder=f"{retraining.config.run.name} (retraining)",
            say=lambda text: say(f"Retraining: {text}"),
            should_stop=cancelled,
        ):
            close()  # from here on the run itself watches
            yield
    finally:
        close()


def _retrain(retraining: Retraining) -> str:
    """Run every stage up to the decisions; return these with their reasons."""
    decisions = _Decisions(retraining)
    decisions.require_champions()
    run_stages(
        retraining.config,
        command=retraining.command,
        config_yaml=retraining.loaded.yaml_text,
        stages=decisions.made_in_order,
    )
    return "\n".join(decisions.texts)


def _tell_registry(retraining: Retraining) -> None:
    """Register earlier decisions: MLflow may have been away then."""
    registry = _registry(retraining.config)
    for kind in retraining.kinds:
        book = retraining.book(kind)
        if problem := registry.reconcile(book, book.read()):
            current_display().say(problem)


def _registry(config: RunConfig) -> Registry:
    return Registry(mlflow_uri(config), experiment=config.tracking.experiment)


class _Decisions:
    """The stages of a retraining in order, and the decisions between them."""

    def __init__(self, retraining: Retraining) -> None:
        self.texts: list[str] = []
        self._retraining = retraining
        self._registry = _registry(retraining.config)
        self._book = retraining.book("reward_model")
        # If only the policy is new, nothing decides again on the reward model: that could undo a rollback by hand.
        self._decides_on_reward_model = bool(why_new_reward_model(retraining))

    def require_champions(self) -> None:
        """Check, before anything is spent, that the champions can be compared with challengers.

        Raises:
            ChampionGoneError: its artifact or the frozen data are gone or damaged.
        """
        for kind in self._retraining.kinds:
            book = self._retraining.book(kind)
            record = book.read()
            if record.champion is not None:
                book.require_whole(record.champion, whole_up_to_bytes=self._retraining.config.verify_whole_up_to_bytes)
            if record.frozen is not None:
                book.frozen_file(record.frozen)

    def made_in_order(self, run: PipelineRun, config: RunConfig, checked: object) -> Iterator[object]:
        """Run stages like `flows.rlhf.train_and_judge`, and decide; a challenger's closed gate is no error."""
        try:
            for made in train_and_judge(run, config, checked):
                if run.record_of(StageName.EVALUATE_REWARD_MODEL) is not None:
                    break
                yield made
        except GateClosedError as closed:
            run.stopped_because = str(closed)
        if self._decides_on_reward_model:
            yield self._on_reward_model(run, config)
        if self._retraining.with_policy:
            yield from self._policy(run, config)

    def _on_reward_model(self, run: PipelineRun, config: RunConfig) -> object:
        decision = decide_on_reward_model(
            run,
            self._book,
            config.retrain,
            config.evaluate_reward_model,
            registry=self._registry,
            rules_text=self._retraining.rules_text("reward_model"),
        )
        self.texts.append(decision.text)
        return decision

    def _policy(self, run: PipelineRun, config: RunConfig) -> Iterator[object]:
        """Train, judge and compare a policy, each with the reward model that is champion now."""
        champion = self._book.read().champion
        if champion is None:
            return
        run.stopped_because = ""
        reward_model = self._book.artifact(champion.model)
        made = {
            "prompts": _artifact(run, config.prompt_stage),
            "start_model": _start_model(run, config),
            # What fine-tuning began from, of a run that has it; standard sets are answered by it too.
            BEFORE_MODEL: _start_model(run, config, before=StageName.TRAIN_SFT),
            "reward_model": reward_model,
            "gate": champion.gate,
        }
        try:
            for stage, result in walk(config, Maker(run), made=made, stages=OF_THE_POLICY):
                if STAGE_FACTS[stage.name].judges is None:  # a run may end after its last stage, before the decision
                    yield result
        except GateClosedError as closed:
            run.stopped_because = str(closed)
        decision = decide_on_policy(
            run,
            self._retraining.book("policy"),
            config.retrain,
            config.evaluate_policy,
            reward_model=reward_model,
            reward_model_name=f"{self._book.name} {champion.shown}",
            registry=self._registry,
            rules_text=self._retraining.rules_text("policy"),
        )
        self.texts.append(decision.text)
        yield decision


def _artifact(run: PipelineRun, stage: StageName) -> ArtifactRef:
    record = run.record_of(stage)
    if record is None:
        raise LookupError(f"{stage} has not run.")
    return ArtifactRef(stage=stage, key=record.key, path=record.path, digest=record.digest)


def _start_model(run: PipelineRun, config: RunConfig, *, before: StageName | None = None) -> ArtifactRef | StageInput:
    """The model that the reward model was trained from; with `before`, the one that this stage began from."""
    for stage in reversed([stage for stage in STAGES if stage.role == "start_model"]):
        if stage.name is not before and run.record_of(stage.name) is not None:
            return _artifact(run, stage.name)
    if config.base_model is None:
        raise LookupError("The run has no model to start from.")
    return named_model_input(config.base_model)
