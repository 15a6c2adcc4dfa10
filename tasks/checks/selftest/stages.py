"""Rows of the self-test that real stages give: a small pipeline by the stages' own programs, killed and resumed."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from containers.contracts.configs.parts.training import Quantization
from containers.contracts.configs.selftest import RESUMED_INPUT, UNINTERRUPTED_INPUT, Measured, Measurement
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.digests import file_sha256
from containers.contracts.hardware import GpuProfile
from containers.contracts.identity import config_profile
from containers.contracts.names import (
    ADAPTER_FOLDER,
    ADAPTER_WEIGHTS_FILE,
    CHECKPOINT_MANIFEST_FILE,
    CHECKPOINTS_FOLDER,
    CURVES_FILE,
    StageName,
)
from containers.contracts.outcome import FailureKind, StageFailure
from containers.contracts.spec import ArtifactRef
from containers.launch.base import ENTRY_MODULE, LaunchError
from containers.launch.collect import read_outcome
from containers.launch.gpus.inventory import read_states
from tasks.checks.bare_stages import BareStages, StageBrokeError
from tasks.checks.selftest.launching import ENGINE_LIMIT_S, LIMIT_S, Launch, Machine, measured
from tasks.config.loading import load_run_config
from tasks.config.run import RunConfig
from tasks.pipeline.stages import BY_NAME, walk

RUN_FILE = Path(__file__).with_name("run.yaml")
_KILLED_ENTRY = "containers.selftest.killed"
_PREPARED = (StageName.FILTER_DATASET, StageName.BUILD_BASE_MODEL)
# Of a GPU's model: heads of 64, which every kernel computes.
_ON_GPU = (
    "build_base_model={num_layers: 4, hidden_size: 1024, intermediate_size: 3072, num_attention_heads: 16, "
    "num_key_value_heads: 8, head_dim: 64, max_position_embeddings: 256, vocabulary_size: 480}",
)
_PAIRS_OF_A_RANK, _COMPLETIONS_OF_A_RANK = 4, 8
_FREE_WITHIN_S, _FREE_MIB, _LOOK_EVERY_S = 60.0, 1024, 1.0


@dataclass
class SmallPipeline:
    """The stages of the self-test.

    Attributes:
        machine: where they run.
        data: folder with the rows of `rlhf demo-data`.
        policy: how the run's policy learns; None: the run trains none on rewards.
        quantization: of the run's reward model.
        figures: what each attempt took, as it was reported.
    """

    machine: Machine
    data: Path
    policy: TrainPolicyConfig | None = None
    quantization: Quantization | None = None
    figures: list[dict[str, Any]] = field(default_factory=list)
    made: dict[str, Any] = field(default_factory=lambda: {"checked": None})

    @property
    def engine(self) -> str:
        """Of the run's rollouts; a profile without GPUs needs no vLLM."""
        if self.policy is None or (self.policy.rollout_engine == "vllm" and not self.machine.profile.num_gpus):
            return "shared_prompts"
        return self.policy.rollout_engine

    def run(self, profile: GpuProfile, *, last: StageName) -> RunConfig:
        """The small run on that profile, up to that stage; its policy learns from a rule, without a reward model."""
        ranks, policy = self.machine.profile.num_processes, self.policy
        own_ranks = ranks if policy is None else config_profile(self.machine.profile, policy).num_processes
        loaded = load_run_config(
            RUN_FILE,
            overrides=[
                f"dataset.train={self.data / 'train.jsonl'}",
                f"dataset.validation={self.data / 'validation.jsonl'}",
                f"train_reward_model.global_batch_size={_PAIRS_OF_A_RANK * ranks}",
                f"train_policy.global_batch_size={_COMPLETIONS_OF_A_RANK * own_ranks}",
                f"train_policy.rollout_engine={self.engine}",
                f"train_policy.vllm_gpus={policy.vllm_gpus if policy and self.engine == 'vllm' else 0}",
                f"train_policy.quantization={(policy and policy.quantization) or 'null'}",
                f"train_reward_model.quantization={self.quantization or 'null'}",
                f"run.until={last}",
                *(_ON_GPU if profile.num_gpus else ()),
            ],
        ).config
        return loaded.model_copy(update={"gpu_profile": profile})

    def stages(self, way: str, last: StageName, profile: GpuProfile | None = None) -> BareStages:
        """Stages in work folders of that name."""
        machine = self.machine
        return BareStages(
            self.run(profile or machine.profile.model_copy(update={"distribution": "ddp"}), last=last),
            machine.folder / "stages",
            way=way,
            limit_s=ENGINE_LIMIT_S if last is StageName.TRAIN_POLICY and self.engine == "vllm" else LIMIT_S,
            report=self.figures.append,
            code=machine.code,
            image=machine.image,
            gpu_ids=machine.gpu_ids,
        )

    def prepare(self) -> str:
        """Make rows and start model; return why that failed, empty: it did not."""
        try:
            first = tuple(BY_NAME[name] for name in _PREPARED)
            for _ in walk(
                (bare := self.stages("", StageName.TRAIN_REWARD_MODEL)).run, bare, made=self.made, stages=first
            ):
                pass
        except (StageBrokeError, LaunchError) as error:
            return f"{error} {self._last_failure()}".rstrip()
        return ""

    def attempt(
        self,
        stage: StageName,
        way: str,
        *,
        profile: GpuProfile | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        program: str = ENTRY_MODULE,
    ) -> ArtifactRef | None:
        """Run one training once; its artifact, None where it gave none."""
        bare = self.stages(way, stage, profile)
        try:
            return bare.attempt(BY_NAME[stage], self.made, should_stop=should_stop, program=program)
        except LaunchError as error:
            self.figures.append({"way": way, "ok": False, "seconds": 0.0, "notes": [], "failure": str(error)})
            return None

    def work(self, stage: StageName, way: str) -> Path:
        """The work folder of that training."""
        return self.machine.folder / "stages" / "work" / f"{stage}-{way}"

    def _last_failure(self) -> str:
        return str(self.figures[-1].get("failure", "")) if self.figures else ""

    def reload(self, whole: ArtifactRef | None) -> Measured:
        """What the stage itself compared: scores in memory beside those of what it saved, merged and as adapter."""
        if whole is None:
            return Measured(probe="reload", error=self._last_failure() or "the training gave no result")
        metrics = next(one["metrics"] for one in reversed(self.figures) if one.get("way") == "whole" and one["ok"])
        return Measured(
            probe="reload",
            values=(Measurement(name="apart", value=metrics["reload_max_difference"], unit="score"),),
        )

    def one_rank(self, whole: ArtifactRef | None) -> Measured:
        """The same training with one rank beside all ranks: losses of the steps."""
        if self.machine.profile.num_processes == 1:
            return Measured(probe="one_rank", refused="the profile has one rank")
        alone = self.attempt(StageName.TRAIN_REWARD_MODEL, "one-rank", profile=self.machine.one_card)
        if alone is None or whole is None:
            return Measured(probe="one_rank", error=self._last_failure() or "a training gave no result")
        one, all_ranks = (losses(Path(artifact.path) / CURVES_FILE) for artifact in (alone, whole))
        steps = sorted(one.keys() & all_ranks.keys())
        apart = [abs(one[step] - all_ranks[step]) / max(abs(one[step]), 1e-6) for step in steps]
        return Measured(
            probe="one_rank",
            values=(
                Measurement(name="first_loss", value=apart[0], unit="relative"),
                Measurement(name="largest", value=max(apart), unit="relative", of=f"{len(steps)} steps"),
            ),
        )

    def interrupted(self, whole: ArtifactRef | None) -> tuple[Measured, Measured]:
        """Kill the training by SIGKILL, resume it, stop it by SIGTERM, resume it: what signals left, and the result."""
        if whole is None:
            error = self._last_failure() or "the training that is not interrupted gave no result"
            return Measured(probe="signals", error=error), Measured(probe="resume", error=error)
        stage, way = StageName.TRAIN_REWARD_MODEL, "interrupted"
        values: list[Measurement] = []
        before = memory_used(self.machine.gpu_ids)
        killed = self.attempt(stage, way, program=_KILLED_ENTRY)
        if killed is not None:
            reason = "the training ended before it could be killed"
            return Measured(probe="signals", refused=reason), Measured(probe="resume", refused=reason)
        saved = self._saved(way)
        values.append(Measurement(name="checkpoints", value=len(saved), unit="whole", of="SIGKILL"))
        values += self._free(before, of="SIGKILL")
        stopped = self.attempt(stage, way, should_stop=lambda: bool(self._saved(way) - saved))
        told = self.figures[-1]
        again = stopped
        if stopped is None:
            values.append(Measurement(name="checkpoints", value=len(self._saved(way)), unit="whole", of="SIGTERM"))
            outcome = read_outcome(self.work(stage, way))
            said_so = isinstance(outcome, StageFailure) and outcome.kind is FailureKind.CANCELLED
            values.append(Measurement(name="ended_as_cancelled", value=float(said_so), unit="yes"))
            values += self._free(before, of="SIGTERM")
            again = self.attempt(stage, way)
        notes = () if stopped is None else ("The training ended before SIGTERM could stop it.",)
        signals = Measured(probe="signals", values=tuple(values), notes=notes, duration_s=told["seconds"])
        return signals, self._resumed(whole, again)

    def _resumed(self, whole: ArtifactRef, again: ArtifactRef | None) -> Measured:
        """The weights of the interrupted training beside those of the other."""
        if again is None:
            return Measured(probe="resume", error=self._last_failure() or "the resumed training gave no result")
        one, other = (Path(item.path) / ADAPTER_FOLDER / ADAPTER_WEIGHTS_FILE for item in (again, whole))
        resumed = self.figures[-1].get("resumed_from")
        from_step = Measurement(name="resumed_from_step", value=float(resumed or 0), unit="")
        if file_sha256(one) == file_sha256(other):
            return Measured(
                probe="resume",
                values=(from_step, Measurement(name="same_weights", value=1.0, unit="yes")),
                notes=(_EQUAL,),
            )
        found = measured(
            self.machine,
            Launch(
                ("resume",), self.machine.one_card, LIMIT_S, inputs={RESUMED_INPUT: one, UNINTERRUPTED_INPUT: other}
            ),
        )[0]
        return found.model_copy(update={"values": (from_step, *found.values)})

    def policy_training(self) -> Measured:
        """A policy's training with the run's rollout engine, which is tried by the stage itself before it is used."""
        started = time.monotonic()
        made = self.attempt(StageName.TRAIN_POLICY, "whole")
        if made is None:
            return Measured(probe="policy_training", error=self._last_failure() or "the training gave no result")
        told = self.figures[-1]
        values = [Measurement(name="training", value=time.monotonic() - started, unit="s", of=self.engine)]
        if "median_step_s" in told:
            values.append(Measurement(name="step", value=told["median_step_s"], unit="s", of=self.engine))
        notes = tuple(note for note in told["notes"] if "enerated" in note or "engine" in note)
        return Measured(probe="policy_training", values=tuple(values), notes=notes)

    def _saved(self, way: str) -> set[str]:
        folder = self.work(StageName.TRAIN_REWARD_MODEL, way) / CHECKPOINTS_FOLDER
        return {path.parent.name for path in folder.glob(f"*/{CHECKPOINT_MANIFEST_FILE}")}

    def _free(self, before: Mapping[str, float], *, of: str) -> list[Measurement]:
        """How long the cards' memory was held after the program had ended; nothing without GPUs."""
        if not before:
            return []
        started = time.monotonic()
        while (took := time.monotonic() - started) < _FREE_WITHIN_S:
            now = memory_used(self.machine.gpu_ids)
            if all(now.get(uuid, 0.0) <= held + _FREE_MIB for uuid, held in before.items()):
                break
            time.sleep(_LOOK_EVERY_S)
        return [Measurement(name="memory_held", value=took, unit="s", of=of)]


_EQUAL = "Killed, stopped and resumed, the training gave the same weights, bit for bit."


def memory_used(gpu_ids: tuple[str, ...]) -> dict[str, float]:
    """MiB in use on each of these cards."""
    if not gpu_ids:
        return {}
    return {state.uuid: state.memory_used_mib or 0.0 for state in read_states() if state.uuid in gpu_ids}


def losses(path: Path) -> dict[int, float]:
    """The loss of each step in a file of curves."""
    points = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {point["step"]: point["values"]["loss"] for point in points if "loss" in point["values"]}
