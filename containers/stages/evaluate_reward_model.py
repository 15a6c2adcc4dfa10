"""evaluate_reward_model: certify the saved reward model by suites, edits of length, and score parity."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from containers.certificate.checkpoint_choice import choice_on_test_pairs
from containers.certificate.edited_answers import score_edited_pairs
from containers.certificate.parity import measure_parity, measure_parity_of_stranger
from containers.certificate.suites import read_suites, score_suite, without_refused, without_strange_tokens
from containers.contracts.certificate import (
    TEST_SUITE,
    Certificate,
    CertifiedModel,
    ScoreParity,
    SuiteEvaluation,
)
from containers.contracts.configs.evaluate_reward_model import EvaluateRewardModelConfig
from containers.contracts.names import CERTIFICATE_FILE, CERTIFICATE_PAGE_FILE, TRAINING_INFO_FILE
from containers.contracts.outcome import Metric
from containers.contracts.records import SamplePrediction, TrainingInfo
from containers.distributed.devices import compute_dtype
from containers.distributed.ranks import join_ranks, leave_ranks
from containers.document.html import page_html
from containers.evals.item_scores import write_item_scores
from containers.evals.length_bias import length_bias
from containers.evals.length_effects import together
from containers.evals.plots import write_reward_model_plots
from containers.evals.sample_predictions import NUM_RELOAD_PAIRS
from containers.evals.scored_suite import ScoredPair, ScoredSuite
from containers.evals.suite_evaluation import evaluate_suite, score_moments
from containers.evals.suites.base import Intervals
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, BadDataError, MissingPrerequisiteError
from containers.models.loading import (
    load_tokenizer,
    max_positions,
    parameter_counts,
    require_own_tokenizer,
    reward_model_folder,
)
from containers.models.over_gpus import reward_model_over_gpus
from containers.report.certificate_page import certificate_page
from containers.scoring.scorer import Conversation, RewardScorer, score_head_sha256


def run(context: StageContext) -> tuple[Metric, ...]:
    """Score the test pairs and each suite; write certificate, page, scores and plots; return the main figures.

    Raises:
        BadDataError: a suite cannot be read, or no test pair fits in max_length.
        MissingPrerequisiteError: the model has no score head, or its adapter has none.
        StageError: the model's scores differ from those that training logged, or between code paths.
    """
    config = _config(context)
    join_ranks(context)
    suites = read_suites(context, config)
    given = context.input_path("reward_model")
    folder = reward_model_folder(given)
    model, spread = reward_model_over_gpus(folder, context.spec.profile)
    tokenizer = load_tokenizer(folder)
    require_own_tokenizer(model, tokenizer, folder=folder)
    scorer = RewardScorer(
        model,
        tokenizer,
        max_length=config.max_length,
        batch_size=config.batch_size,
        batch_tokens=config.batch_tokens,
        spread=spread,
    )
    _keep_to_positions(context, scorer)
    suites = [without_refused(context, scorer, suite) for suite in suites]
    suites = [without_strange_tokens(context, scorer, suite) for suite in suites]
    info = None if folder == given else _training_info(given)
    parity = _parity(context, scorer, info, suites[0])

    scored = [score_suite(context, scorer, suite) for suite in suites]
    if not scored[0].pairs:
        raise BadDataError(f"Not one test pair fits in max_length {config.max_length} tokens.")
    limit, seed = config.num_edited_pairs, context.spec.seed
    edited = [score_edited_pairs(scorer, suite.pairs, limit=limit, seed=seed) for suite in scored]
    intervals = Intervals(confidence=config.confidence, num_bootstrap=config.num_bootstrap, seed=seed)
    evaluations = tuple(
        evaluate_suite(suite, intervals, edited=found) for suite, found in zip(scored, edited, strict=True)
    )
    pairs = list(chain.from_iterable(map(_by_prompts, scored)))
    score_mean, score_std = score_moments(pairs)
    certificate = Certificate(
        model=_certified(context, scorer, info, folder=folder),
        suites=evaluations,
        length=length_bias(pairs, intervals, score_std=score_std, edited=together(edited)),
        parity=parity,
        choice=choice_on_test_pairs(context, scored[0]) if info is not None else None,
        samples=_samples(scored[0].pairs, config.num_samples),
        score_mean=score_mean,
        score_std=score_std,
        confidence=config.confidence,
    )
    scorer.close()
    if leave_ranks():
        _write(context.output, certificate, scored)
    return _metrics(certificate)


def _config(context: StageContext) -> EvaluateRewardModelConfig:
    config = context.spec.config
    if not isinstance(config, EvaluateRewardModelConfig):
        raise BadConfigError(f"evaluate_reward_model was given the config of {config.stage}.")
    names = [TEST_SUITE, *(suite.name for suite in config.suites)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadConfigError(f"evaluate_reward_model.suites: the name {twice[0]!r} is taken; choose another one.")
    return config


def _keep_to_positions(context: StageContext, scorer: RewardScorer) -> None:
    """Lower `max_length` to the model's positions, so that longer items are left out and counted."""
    positions = max_positions(scorer.model)
    if positions is not None and positions < scorer.max_length:
        context.recorder.note(
            f"The reward model has {positions:,} positions, fewer than evaluate_reward_model.max_length "
            f"({scorer.max_length:,}): longer items are left out, and counted."
        )
        scorer.max_length = positions


def _training_info(artifact: Path) -> TrainingInfo:
    path = artifact / TRAINING_INFO_FILE
    try:
        return TrainingInfo.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise MissingPrerequisiteError(f"{path} cannot be read: {error}") from error


def _parity(context: StageContext, scorer: RewardScorer, info: TrainingInfo | None, test: ScoredSuite) -> ScoreParity:
    """Compare a model that was trained here with training's logged scores; another model, its code paths."""
    given, precision = context.input_path("reward_model"), compute_dtype(context.spec.profile)
    if info is not None:
        trained_in = torch.bfloat16 if info.precision == "bf16" else precision
        return measure_parity(given, scorer, trained_in=trained_in)
    conversations: list[Conversation] = []
    for item in test.rows.items:
        sides = [[*item.prompt, {"role": "assistant", "content": text}] for text in item.responses]
        if len(conversations) < 2 * NUM_RELOAD_PAIRS and len(sides) == 2 and all(map(scorer.fits, sides)):
            conversations += sides
    return measure_parity_of_stranger(given, scorer, conversations, precision=precision)


def _certified(
    context: StageContext, scorer: RewardScorer, info: TrainingInfo | None, *, folder: Path
) -> CertifiedModel:
    item = context.input("reward_model")
    _, num_parameters = parameter_counts(scorer.model)
    return CertifiedModel(
        origin=item.origin,
        digest=item.digest,
        score_head_sha256=score_head_sha256(folder),
        architecture=type(scorer.model).__name__,
        num_parameters=num_parameters,
        max_length=scorer.max_length,
        precision=str(compute_dtype(context.spec.profile)).removeprefix("torch."),
        algorithm="" if info is None else info.algorithm,
        num_training_examples=0 if info is None else info.num_examples,
    )


def _by_prompts(suite: ScoredSuite) -> list[ScoredPair]:
    """The suite's pairs, with weights that add up to its number of prompts."""
    factor = len({pair.prompt_id for pair in suite.pairs}) / max(1, len(suite.pairs))
    return [replace(pair, weight=factor * pair.weight) for pair in suite.pairs]


def _samples(pairs: Sequence[ScoredPair], count: int) -> tuple[SamplePrediction, ...]:
    """Return `count` pairs, evenly spread from the lowest margin to the highest."""
    ranked = sorted(pairs, key=lambda pair: pair.margin)
    places = np.unique(np.linspace(0, len(ranked) - 1, num=min(count, len(ranked))).round().astype(int))
    return tuple(ranked[place].as_sample() for place in places)


def _write(folder: Path, certificate: Certificate, suites: Sequence[ScoredSuite]) -> None:
    (folder / CERTIFICATE_FILE).write_text(certificate.model_dump_json(indent=2), encoding="utf-8")
    (folder / CERTIFICATE_PAGE_FILE).write_text(page_html(certificate_page(certificate)), encoding="utf-8")
    for suite, figures in zip(suites, certificate.suites, strict=True):
        suite.write_pair_scores(folder / figures.scores_file)
        write_item_scores(suite.items, folder / figures.item_scores_file)
    write_reward_model_plots(certificate.suites, folder / "plots")


def _metrics(certificate: Certificate) -> tuple[Metric, ...]:
    """Return `score/<suite>`, `accuracy/<suite>`, `log_loss/<suite>` … and the figures over all suites."""
    figures = [
        metric.model_copy(update={"name": f"{name}/{suite.name}"})
        for suite in certificate.suites
        for name, metric in _suite_metrics(suite).items()
        if metric is not None
    ]
    length = certificate.length
    whole = [
        *(found.effect for found in length.interventions),
        length.padding.flips,
        length.padding.padded_accuracy,
        length.slope,
        length.standard_slope,
        length.controlled_accuracy,
    ]
    return (
        *figures,
        *(metric for metric in whole if metric is not None),
        *_parity_metrics(certificate.parity),
        Metric(name="score_mean", value=certificate.score_mean, unit="score"),
        Metric(name="score_std", value=certificate.score_std, unit="score"),
    )


def _suite_metrics(suite: SuiteEvaluation) -> dict[str, Metric | None]:
    return {
        "score": suite.score,
        "accuracy": suite.accuracy,
        "mean_margin": suite.mean_margin,
        "log_loss": suite.log_loss,
        "expected_calibration_error": suite.expected_calibration_error,
        **_calibration_by_chance(suite),
        "standard_length_slope": suite.length.standard_slope,
        "padding_flips": suite.length.padding.flips,
        **{f"{found.name.replace(' ', '_')}_effect": found.effect for found in suite.length.interventions},
    }


def _calibration_by_chance(suite: SuiteEvaluation) -> dict[str, Metric]:
    found = suite.calibration_by_chance
    figures = {} if found is None else found.model_dump()
    return {
        f"{name}_calibration_error": Metric(name=name, value=value, unit="fraction", count=suite.num_pairs)
        for name, value in figures.items()
    }


def _parity_metrics(parity: ScoreParity) -> tuple[Metric, ...]:
    found = [
        ("parity_max_difference", parity.max_difference, "score"),
        ("parity_margin_difference", parity.margin_difference, "fraction"),
        ("parity_orders_changed", parity.num_orders_changed, "pairs"),
    ]
    return tuple(Metric(name=name, value=value, unit=unit) for name, value, unit in found if value is not None)
