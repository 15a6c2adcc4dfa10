"""Run the self-test of a machine: every probe where the stages run, then one record of all of them."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from containers.contracts.configs.selftest import Measured, MeasuredSpeed, ProbeResult, Selftest
from containers.contracts.configs.stages import StageConfig
from containers.contracts.hardware import GpuProfile
from containers.contracts.identity import config_profile, stage_batch
from containers.contracts.names import StageName
from containers.contracts.programs import library_versions
from containers.contracts.records import CheckFinding
from containers.contracts.registries import capabilities
from containers.harness.measure import cpu_model
from containers.launch.base import LaunchError
from containers.launch.gpus.cards import GpuReport
from containers.launch.gpus.inventory import read_gpus
from containers.launch.gpus.kernel_log import told_xids
from tasks.checks.selftest.cards import Watch, card_rows
from tasks.checks.selftest.judging import RULES, judged
from tasks.checks.selftest.launching import ENGINE_LIMIT_S, LIMIT_S, Launch, Machine, measured
from tasks.checks.selftest.planned import Subject, beside_plan, subject_of
from tasks.checks.selftest.problems import Facts
from tasks.checks.selftest.stages import SmallPipeline
from tasks.config.run import RunConfig
from tasks.pipeline.gpu_turn import gpu_turn
from tasks.plan.inputs.gpu_speed import card_named, with_card_here
from tasks.run.runtime import CodeIdentity
from tasks.store.selftests import keep_selftest, working_folder

_HOLDER = "selftest"
_PACKAGES = ("torch", "transformers", "trl", "peft", "triton", "vllm")
_NO_GPUS, _NO_RANKS = "the profile has no GPUs", "the profile has one rank"
_NO_CARDS = "the cards of the profile cannot be had"
_ON_CARDS = ("container", "memory", "kernels", "numbers")


@dataclass
class Selftesting:
    """A self-test while it runs.

    Attributes:
        data: folder with the rows of `rlhf demo-data`.
        say: gets a line when a row is known.
        rows: those that are known.
        check_rows: of the system check about cards and driver.
    """

    run: RunConfig
    code: CodeIdentity
    data: Path
    say: Callable[[str], None]
    rows: dict[str, ProbeResult] = field(default_factory=dict)
    check_rows: tuple[CheckFinding, ...] = ()
    subject: Subject = field(init=False)
    report: GpuReport = field(init=False)

    def __post_init__(self) -> None:
        self.subject = subject_of(self.run)
        self.xids_before = told_xids()
        self.report = read_gpus() if self.run.gpu_profile.num_gpus else GpuReport()
        self.profile: GpuProfile = with_card_here(self.run.gpu_profile, self.report)

    def look_at_cards(self) -> bool:
        """Add the row of cards and driver; return whether there are cards to go on with, or none are needed."""
        run = self.run
        self.check_rows = card_rows(run.gpu_profile, self.code.runtime, image=run.image, store_dir=run.store_dir)
        notes = tuple(f"{row.name}: {row.found}" for row in self.check_rows)
        refused = "" if run.gpu_profile.num_gpus else _NO_GPUS
        self._add(Measured(probe="cards", notes=notes, refused=refused))
        if self.report.problem:
            self._refuse_the_rest(_NO_CARDS)
        return not self.report.problem

    def results(self) -> None:
        """Run every probe but that of the cards; one that fails does not stop the others."""
        run = self.run
        with ExitStack() as stack:
            folder = stack.enter_context(working_folder(run.store_dir))
            try:
                turn = gpu_turn(self.profile, holder=_HOLDER, say=self.say, should_stop=lambda: False)
                gpu_ids = stack.enter_context(turn)
            except LaunchError as error:
                self.say(str(error))
                self._refuse_the_rest(_NO_CARDS)
                return
            machine = Machine(
                profile=self.profile,
                code=self.code,
                image=run.image,
                gpu_ids=gpu_ids,
                folder=folder,
                model=self.subject.shape.shape.model_dump() if self.subject.shape else {},
                model_note=self.subject.note,
            )
            for found in self._measured(machine):
                self._add(found)

    def _measured(self, machine: Machine) -> Iterator[Measured]:
        yield from self._of(machine, Launch(_ON_CARDS, machine.all_cards, LIMIT_S))
        yield from self._steps(machine)
        yield from self._stages(machine)
        yield from self._load(machine)

    def _of(self, machine: Machine, launch: Launch, *, watch: Watch | None = None) -> list[Measured]:
        self._begin(*launch.probes)
        return measured(machine, launch, on_tick=(lambda: None) if watch is None else watch.sample)

    def _steps(self, machine: Machine) -> Iterator[Measured]:
        """The connections of all ranks, and the two steps in the shape of the run's model."""
        probes: tuple[str, ...] = ("connections", "reward_step")
        if machine.profile.num_processes == 1:
            yield Measured(probe="connections", refused=_NO_RANKS)
            probes = ("reward_step",)
        yield from self._of_stage(machine, probes, self.subject.reward)
        for probe, config in (("policy_step", self.subject.policy), ("rollouts", self.subject.rollouts)):
            if config is None:
                yield Measured(probe=probe, refused="the run trains no policy on rewards")
            else:
                by_vllm = config.rollout_engine == "vllm"
                yield from self._of_stage(machine, (probe,), config, limit_s=ENGINE_LIMIT_S if by_vllm else LIMIT_S)

    def _of_stage(
        self, machine: Machine, probes: tuple[str, ...], config: StageConfig, *, limit_s: float = LIMIT_S
    ) -> Iterator[Measured]:
        """Probes with the ranks and the batch of a stage."""
        profile, batch = config_profile(machine.profile, config), stage_batch(config, machine.profile)
        for found in self._of(machine, Launch(probes, profile, limit_s, config=config, batch=batch)):
            yield beside_plan(found, self.subject, machine.profile)

    def _stages(self, machine: Machine) -> Iterator[Measured]:
        """The rows that real stages give."""
        names = ("reload", "one_rank", "signals", "resume", "policy_training")
        self._begin(*names)
        quantization = self.run.train_reward_model.quantization
        pipeline = SmallPipeline(machine, self.data, policy=self.run.policy_on_rewards, quantization=quantization)
        if problem := pipeline.prepare():
            yield from (Measured(probe=name, error=problem) for name in names)
            return
        whole = pipeline.attempt(StageName.TRAIN_REWARD_MODEL, "whole")
        yield pipeline.reload(whole)
        yield pipeline.one_rank(whole)
        yield from pipeline.interrupted(whole)
        yield pipeline.policy_training()

    def _load(self, machine: Machine) -> Iterator[Measured]:
        if not machine.profile.num_gpus:
            yield Measured(probe="load", refused=_NO_GPUS)
            return
        watch = Watch(machine.gpu_ids, {gpu.uuid: gpu.bus for gpu in self.report.gpus}, before=self.xids_before)
        for found in self._of(machine, Launch(("load",), machine.all_cards, LIMIT_S), watch=watch):
            values, notes = (*found.values, *watch.measured()), (*found.notes, *watch.notes())
            yield found.model_copy(update={"values": values, "notes": notes})

    def _begin(self, *probes: str) -> None:
        self.say(f"{'…':<8} {', '.join(RULES[probe].name for probe in probes)}")

    def _add(self, found: Measured) -> None:
        row = judged(found, self._facts)
        self.rows[found.probe] = row
        self.say(f"{row.verdict:<8} {row.name}{f': {row.why}' if row.why else ''}")

    def _refuse_the_rest(self, why: str) -> None:
        """Give every probe that was not run a row that says why."""
        for probe in RULES:
            self.rows.setdefault(probe, judged(Measured(probe=probe, refused=why), self._facts))

    @property
    def _facts(self) -> Facts:
        card = card_named(self.profile.card) if self.profile.card else None
        links = [gpu.num_links for gpu in self.report.gpus]
        has_nvlink = None if not links or None in links else all(links)
        return Facts(self.profile, card, has_nvlink, self.check_rows)

    def record(self, *, duration_s: float) -> Selftest:
        """The record of all rows."""
        profile = self.profile
        return Selftest(
            made_at=datetime.now(UTC).isoformat(timespec="seconds"),
            host=socket.gethostname(),
            profile=profile.name,
            num_gpus=profile.num_gpus,
            precision=profile.precision,
            card=(profile.card or "unknown") if profile.num_gpus else cpu_model(),
            driver=self.report.driver,
            runtime=self.code.runtime,
            image_digest=self.code.image_digest,
            sources=self.code.stages_digest,
            packages=() if capabilities(self.code.runtime).runs_image else tuple(library_versions(_PACKAGES).items()),
            model=self.subject.words,
            results=tuple(self.rows[probe] for probe in RULES),
            speed=speed_of(self.rows, profile),
            duration_s=duration_s,
        )


def speed_of(rows: dict[str, ProbeResult], profile: GpuProfile) -> MeasuredSpeed | None:
    """The speeds of one card for plans; None without GPUs, or where they were not measured."""
    if not profile.num_gpus:
        return None

    def figures(probe: str) -> dict[str, float]:
        """Of a probe that passed; of several cards, the least."""
        row = rows.get(probe)
        found: dict[str, float] = {}
        for value in () if row is None or row.verdict != "passed" else row.values:
            found[value.name] = min(value.value, found.get(value.name, value.value))
        return found

    reward, memory, policy = figures("reward_step"), figures("memory"), figures("policy_step")
    if "work" not in reward or "copy" not in memory:
        return None
    token = None
    if "launches" in policy:
        token = policy["generated_token"] / policy["layers"] / policy["launches"]
    written = figures("rollouts")
    return MeasuredSpeed(
        flops=reward["work"] / reward["step"],
        memory_bytes_per_s=memory["copy"],
        block_token_s=token,
        graph_token_s=written["engine_token"] / written["layers"] if "layers" in written else None,
    )


def run_selftest(run: RunConfig, *, code: CodeIdentity, data: Path, say: Callable[[str], None]) -> Selftest:
    """Run the self-test and keep its record in the store; one that is interrupted leaves an older record there.

    Args:
        data: folder with the rows of `rlhf demo-data`.
        say: gets a line when a part begins, and when a row is known.
    """
    testing, started = Selftesting(run, code, data, say), time.monotonic()
    if testing.look_at_cards():
        testing.results()
    record = testing.record(duration_s=time.monotonic() - started)
    keep_selftest(run.store_dir, record)
    return record
