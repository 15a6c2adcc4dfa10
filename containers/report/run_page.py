"""The report of a run: one page with every section, and a short one for Prefect."""

from dataclasses import replace

from containers.contracts.names import CERTIFICATE_PAGE_FILE, StageName
from containers.document.glossary import GLOSSARY
from containers.document.links import ui_command
from containers.document.model import Block, Definitions, Facts, Fold, Note, Page, Plots, Section, Text
from containers.formatting import moment, number, one_line, parity_text
from containers.report.champions import decision_section
from containers.report.curves import Curves
from containers.report.data import data_blocks
from containers.report.gates import GATE_STAGES, gate_section
from containers.report.inputs import ReportInputs
from containers.report.machines import changes_section, hardware_section, lineage_section, repeat_section
from containers.report.plots import reward_evaluation_plots, undrawn_groups
from containers.report.policy.comparison import policy_blocks
from containers.report.policy.expected import expected_plots
from containers.report.policy.samples import scored_samples
from containers.report.policy.sets import sets_section
from containers.report.stages import absence, is_part, nothing, stages_section, stages_table
from containers.report.suites import choice_note, suites_table
from containers.report.training import evidence_blocks, training_blocks
from containers.report.verdict import headline_cards, run_verdict
from containers.report.written import written_samples


def run_page(inputs: ReportInputs, *, title: str, num_samples: int) -> Page:
    """Return the whole report, in the order in which a person reads it; what only some look up is folded."""
    pipeline, command = inputs.pipeline, ui_command(inputs.pipeline)
    opens = f"The links to MLflow and Prefect on this page open while {command} runs, with the same ports."
    champions = (_champions(inputs),) if inputs.decisions else ()
    failed = any(record.status == "failed" for record in pipeline.stages)
    return Page(
        f"{one_line(title, 120)}: {one_line(pipeline.run_name, 120)}",
        facts=(
            ("Started", moment(pipeline.started_at)),
            ("Run", pipeline.run_id),
            ("Hardware profile", pipeline.profile_name),
            ("", Text("MLflow", link=pipeline.mlflow_url)),
            ("", Text("Prefect", link=pipeline.prefect_url)),
        ),
        lead=opens if command else "",
        banner=run_verdict(inputs),
        cards=headline_cards(inputs),
        sections=(
            *champions,
            *((stages_section(inputs),) if failed else ()),
            *_policy(inputs, num_samples),
            *_sets(inputs),
            *_reward_model(inputs, num_samples),
            *map(
                _folded,
                (
                    Section("Data", _data(inputs), anchor="data", short="Data"),
                    *_sft(inputs),
                    *_gates(inputs),
                    *(() if failed else (stages_section(inputs),)),
                    *changes_section(inputs.pipeline),
                    hardware_section(inputs),
                    lineage_section(inputs),
                    repeat_section(inputs),
                    Section("Glossary", (Definitions(tuple(GLOSSARY)),), anchor="glossary", short="Glossary"),
                ),
            ),
        ),
        footer=f"Written by rlhf-flows from the records of run {one_line(pipeline.run_id, 80)}. The page needs no "
        "network and runs no script.",
    )


def _folded(section: Section) -> Section:
    return replace(section, is_folded=True)


def short_page(inputs: ReportInputs, *, title: str) -> Page:
    """Return verdict, main figures, stages and gates, without plots or samples."""
    pipeline = inputs.pipeline
    facts = (
        ("Dataset", pipeline.dataset_origin),
        ("Base model", pipeline.base_model_origin),
        ("Command", one_line(pipeline.command, 280)),
        ("Git commit", pipeline.git_commit),
        ("Seed", str(inputs.seed)),
        ("Hardware profile", pipeline.profile_name),
    )
    how: tuple[Block, ...] = (Facts(facts), Note("The whole page with plots and samples is report.html."))
    return Page(
        f"{title}: {pipeline.run_name}",
        banner=run_verdict(inputs),
        cards=headline_cards(inputs),
        sections=(
            *(decision_section(decision) for decision in inputs.decisions),
            Section("Stages", (stages_table(inputs),)),
            *map(gate_section, pipeline.gates),
            Section("How to repeat", how),
        ),
    )


def _champions(inputs: ReportInputs) -> Section:
    lead = (
        "A retraining makes a challenger. It replaces the champion only if it is better beyond chance on data that "
        "neither was trained on."
    )
    decisions: tuple[Block, ...] = tuple(map(decision_section, inputs.decisions))
    blocks = (Note(lead, "lead", (("challenger", "champion"),)), *decisions)
    return Section("Champion", blocks, anchor="champions", short="Champion")


def _gates(inputs: ReportInputs) -> tuple[Section, ...]:
    judges = [stage for stage in GATE_STAGES if is_part(inputs, stage)]
    if not judges:
        return ()
    lead = "A closed gate stops the run before it spends more. A person's decision is shown here with name and reason."
    why = absence(inputs, judges[0])
    gates: tuple[Block, ...] = tuple(map(gate_section, inputs.pipeline.gates))
    blocks = gates or (Note(f"No gate was reached: {why}.", "quiet"),)
    return (Section("Gates", (Note(lead, "lead", ("gate",)), *blocks), anchor="gates", short="Gates"),)


def _data(inputs: ReportInputs) -> tuple[Block, ...]:
    has_prompts = inputs.stage(StageName.FILTER_PROMPTS) is not None
    pairs = (
        data_blocks(inputs.funnel, beside_prompts=has_prompts)
        if inputs.funnel
        else nothing(inputs, StageName.FILTER_DATASET)
    )
    has_pairs = is_part(inputs, StageName.FILTER_DATASET)
    others = {
        "Prompts of the policy": (StageName.FILTER_PROMPTS, inputs.prompts),
        "Demonstrations": (StageName.FILTER_DEMONSTRATIONS, inputs.demonstrations),
    }
    return (
        *(pairs if has_pairs else ()),
        *(
            Section(title, data_blocks(funnel) if funnel else nothing(inputs, stage))
            for title, (stage, funnel) in others.items()
            if inputs.stage(stage) is not None
        ),
    )


def _training(inputs: ReportInputs, stage: StageName) -> tuple[Block, ...]:
    info = inputs.training.get(stage)
    return training_blocks(stage, info, inputs.curves.get(stage, Curves())) if info else nothing(inputs, stage)


def _sft(inputs: ReportInputs) -> tuple[Section, ...]:
    if inputs.stage(StageName.TRAIN_SFT) is None:
        return ()
    lead = Note("The start model learns to answer before answers are compared.", "lead")
    return (Section("Supervised fine-tuning", (lead, *_training(inputs, StageName.TRAIN_SFT)), anchor="sft"),)


def _reward_model(inputs: ReportInputs, num_samples: int) -> tuple[Section, ...]:
    if not is_part(inputs, StageName.EVALUATE_REWARD_MODEL):
        return ()
    lead = "It gives every answer a score; the chosen answer of a pair should get the higher one."
    training = _training(inputs, StageName.TRAIN_REWARD_MODEL)
    blocks = (
        Note(lead, "lead", ("score", "pair")),
        *_evaluation(inputs, num_samples),
        Fold("Training: facts and curves", training),
    )
    return (Section("Reward model", blocks, anchor="reward-model", short="Reward model"),)


def _evaluation(inputs: ReportInputs, num_samples: int) -> tuple[Block, ...]:
    certificate = inputs.reward_model
    if certificate is None:
        return nothing(inputs, StageName.EVALUATE_REWARD_MODEL)
    parity, undrawn = certificate.parity, undrawn_groups(certificate)
    scores = (
        f"Scores over all suites: mean {number(certificate.score_mean)}, standard deviation "
        f"{number(certificate.score_std)}. {len(parity.paths)} code paths are equal within {parity_text(parity)}. "
        f"Score head: sha256:{certificate.model.score_head_sha256[:12]}"
    )
    log_loss = (
        "The log loss is that of the score difference alone. The held-out loss of training is higher if training also "
        "penalizes mean scores off zero or demands a margin."
    )
    one_group = f"Not drawn, since all test pairs fall into one group: accuracy by {undrawn}."
    samples = certificate.samples[:num_samples]
    return (
        suites_table(certificate.suites),
        *choice_note(certificate),
        Note(
            "The certificate: every suite by its parts, length bias, calibration, and score parity",
            link=CERTIFICATE_PAGE_FILE,
        ),
        Fold(
            "Accuracy by group, margins, calibration",
            (
                Plots(reward_evaluation_plots(certificate)),
                *((Note(one_group, "quiet"),) if undrawn else ()),
                Note(log_loss, "quiet", ("log loss",)),
                Note(scores, "quiet"),
            ),
        ),
        *((Fold("Sample predictions", (scored_samples(samples),)),) if samples else ()),
    )


def _policy(inputs: ReportInputs, num_samples: int) -> tuple[Section, ...]:
    if not is_part(inputs, StageName.EVALUATE_POLICY):
        return ()
    by_pairs = inputs.stage(StageName.TRAIN_DPO) is not None
    stage = StageName.TRAIN_DPO if by_pairs else StageName.TRAIN_POLICY
    aim = "write the chosen completions of pairs rather than the rejected ones" if by_pairs else "raise its reward"
    lead = f"It is trained to {aim} without moving far (KL) from its reference."
    judged = (
        policy_blocks(inputs.policy, num_samples=num_samples, by_pairs=by_pairs)
        if inputs.policy
        else nothing(inputs, StageName.EVALUATE_POLICY)
    )
    blocks = (
        Note(lead, "lead", ("KL", "reference") if by_pairs else ("reward", "KL", "reference")),
        *judged,
        *_evidence(inputs),
        Fold("Training: facts and curves", _training(inputs, stage)),
        *((Fold("What it wrote in training", (written_samples(inputs.written),)),) if inputs.written else ()),
        *((Fold("What its critic expected", (Plots(expected_plots(inputs.expected)),)),) if inputs.expected else ()),
    )
    return (Section("Policy", blocks, anchor="policy", short="Policy"),)


def _sets(inputs: ReportInputs) -> tuple[Section, ...]:
    if inputs.stage(StageName.EVALUATE_SETS) is None:
        return ()
    if inputs.sets is not None:
        return (sets_section(inputs.sets),)
    return (Section("Standard sets", nothing(inputs, StageName.EVALUATE_SETS), anchor="sets", short="Sets"),)


def _evidence(inputs: ReportInputs) -> tuple[Section, ...]:
    info = inputs.training.get(StageName.TRAIN_POLICY)
    if inputs.evidence is None or info is None:
        return ()
    return (Section("Evidence while it trained", evidence_blocks(inputs.evidence, info)),)
