"""How well the saved reward model orders pairs that it was not trained on: the figures behind the reward-model gate."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from containers.contracts.names import (
    MERGED_FOLDER,
    REWARD_MODEL_EVALUATION_FILE,
    TRAINING_INFO_FILE,
    VALIDATION_PAIRS_FILE,
)
from containers.contracts.outcome import Metric
from containers.contracts.records import RewardModelEvaluation, SamplePrediction, TrainingInfo
from containers.contracts.stage_configs import EvaluateRewardModelConfig
from containers.prompt_identity import prompt_identity
from containers.stages.context import StageContext
from containers.stages.errors import BadConfigError, BadDataError, MissingPrerequisiteError, StageError
from containers.stages.models import compute_device, compute_dtype
from containers.stages.pair_artifact import read_pair_rows
from containers.stages.pair_evaluation import ScoredFile, ScoredPair, evaluate_file
from containers.stages.plots import write_reward_model_plots
from containers.stages.preference_rows import Pair, read_pairs
from containers.stages.ranks import is_first_rank, join_ranks, spread_over_ranks, wait_for_all_ranks
from containers.stages.sample_predictions import both_conversations, read_sample_predictions
from containers.stages.scoring import RewardScorer, allowed_difference, score_head_sha256

VALIDATION = "validation"
# Pairs scored between two progress lines.
_CHUNK_PAIRS = 512


def run(context: StageContext) -> tuple[Metric, ...]:
    """Score the validation split and each pair file, write figures, scores and plots; returns the main figures."""
    config = _config(context)
    join_ranks(context)
    scorer = RewardScorer.load(
        context.input_path("reward_model") / MERGED_FOLDER,
        device=compute_device(context.spec.profile),
        dtype=compute_dtype(context.spec.profile),
        max_length=config.max_length,
        batch_size=config.batch_size,
    )
    reload_difference = _compare_with_training(context, scorer)
    files = [_score_file(context, scorer, file) for file in _read_files(context, config)]
    if not files[0].pairs:
        raise BadDataError(f"Not one validation pair fits in max_length {config.max_length} tokens.")
    evaluations = tuple(evaluate_file(file, config, seed=context.spec.seed) for file in files)
    scores = [score for file in files for pair in file.pairs for score in (pair.score_chosen, pair.score_rejected)]
    evaluation = RewardModelEvaluation(
        files=evaluations,
        samples=_samples(files[0].pairs, config.num_samples),
        score_mean=float(np.mean(scores)),
        score_std=float(np.std(scores)),
        score_head_sha256=score_head_sha256(scorer.model),
        reload_max_difference=reload_difference,
    )
    if is_first_rank():
        text = evaluation.model_dump_json(indent=2)
        (context.output / REWARD_MODEL_EVALUATION_FILE).write_text(text, encoding="utf-8")
        for file, figures in zip(files, evaluations, strict=True):
            _write_scores(file, context.output / figures.scores_file)
        write_reward_model_plots(evaluations, context.output / "plots")
    wait_for_all_ranks()
    return _metrics(evaluation)


def _config(context: StageContext) -> EvaluateRewardModelConfig:
    config = context.spec.config
    if not isinstance(config, EvaluateRewardModelConfig):
        raise BadConfigError(f"evaluate_reward_model was given the config of {config.stage}.")
    names = [VALIDATION, *(file.name for file in config.pair_files)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadConfigError(f"evaluate_reward_model.pair_files: the name {twice[0]!r} is taken; choose another one.")
    return config


def _compare_with_training(context: StageContext, scorer: RewardScorer) -> float:
    """The largest difference to the scores that training logged for the same conversations.

    Raises:
        StageError: it is larger than rounding explains.
    """
    artifact = context.input_path("reward_model")
    logged: list[float] = []
    conversations = []
    for sample in read_sample_predictions(artifact):
        for conversation, score in zip(
            both_conversations(sample), (sample.score_chosen, sample.score_rejected), strict=True
        ):
            if scorer.fits(conversation):
                conversations.append(conversation)
                logged.append(score)
    if not logged:
        raise BadConfigError(
            f"evaluate_reward_model.max_length {scorer.max_length} is shorter than every conversation whose score "
            f"training logged. Use train_reward_model.max_length."
        )
    found = scorer.score(conversations)
    difference = max(abs(a - b) for a, b in zip(found, logged, strict=True))
    bound = allowed_difference(_coarser_dtype(context, artifact), logged)
    if difference > bound:
        raise StageError(
            f"The reward model in {artifact} scores up to {difference:.3g} away from what training logged for the same "
            f"{len(logged)} conversations; at most {bound:.3g} is allowed. It is not the model that was trained."
        )
    return difference


def _coarser_dtype(context: StageContext, artifact: Path) -> torch.dtype:
    """bfloat16 where training or this stage computed in it."""
    path = artifact / TRAINING_INFO_FILE
    try:
        info = TrainingInfo.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise MissingPrerequisiteError(f"{path} cannot be read: {error}") from error
    return torch.bfloat16 if info.precision == "bf16" else compute_dtype(context.spec.profile)


def _read_files(context: StageContext, config: EvaluateRewardModelConfig) -> list[ScoredFile]:
    """Every file, not scored yet; the validation split comes first."""
    pairs = context.input("pairs")
    rows = read_pair_rows(Path(pairs.path), VALIDATION_PAIRS_FILE)
    validation = [
        Pair(
            prompt=tuple(row["prompt"]),
            chosen=row["chosen"][-1]["content"],
            rejected=row["rejected"][-1]["content"],
            margin=row["margin"],
            domain=row["domain"] or "",
            language=row["language"] or "",
            pair_id=row["pair_id"],
        )
        for row in rows
    ]
    files = [ScoredFile(name=VALIDATION, origin=pairs.origin, candidates=tuple(validation))]
    for file in config.pair_files:
        item = context.input(f"file_{file.name}")
        found = read_pairs(Path(item.path))
        if found.left_out:
            reasons = ", ".join(f"{reason}: {count:,}" for reason, count in sorted(found.left_out.items()))
            context.recorder.note(f"{file.name}: rows left out. {reasons}.")
        files.append(
            ScoredFile(
                name=file.name,
                origin=item.origin or file.path,
                candidates=found.pairs,
                malformed=sum(found.left_out.values()),
                minimum_accuracy=file.minimum_accuracy,
            )
        )
    return files


def _score_file(context: StageContext, scorer: RewardScorer, file: ScoredFile) -> ScoredFile:
    """The file with its scored pairs; those longer than max_length are counted out, and noted."""
    sides = [
        tuple(
            scorer.tokenize([*pair.prompt, {"role": "assistant", "content": completion}])
            for completion in (pair.chosen, pair.rejected)
        )
        for pair in file.candidates
    ]
    fitting = [number for number, both in enumerate(sides) if max(map(len, both)) <= scorer.max_length]
    too_long = len(sides) - len(fitting)
    if too_long:
        context.recorder.note(f"{file.name}: {too_long:,} pairs left out, longer than {scorer.max_length} tokens.")
    pairs: list[ScoredPair] = []
    for start in range(0, len(fitting), _CHUNK_PAIRS):
        chunk = fitting[start : start + _CHUNK_PAIRS]
        scores = spread_over_ranks([ids for number in chunk for ids in sides[number]], scorer.score_tokens)
        pairs += [
            ScoredPair(file.candidates[number], chosen, rejected)
            for number, chosen, rejected in zip(chunk, scores[::2], scores[1::2], strict=True)
        ]
        context.recorder.progress(len(pairs), len(fitting), unit="pairs", text=file.name)
    return file.with_scores(pairs, too_long=too_long)


def _samples(pairs: Sequence[ScoredPair], count: int) -> tuple[SamplePrediction, ...]:
    """`count` pairs from the most wrongly to the most rightly ordered one, evenly spread over the ranking."""
    ranked = sorted(pairs, key=lambda pair: pair.margin)
    places = np.unique(np.linspace(0, len(ranked) - 1, num=min(count, len(ranked))).round().astype(int))
    return tuple(ranked[place].as_sample() for place in places)


def _write_scores(file: ScoredFile, path: Path) -> None:
    columns = {
        "pair_id": [item.pair.pair_id for item in file.pairs],
        "prompt_id": [prompt_identity(item.pair.prompt) for item in file.pairs],
        "domain": [item.pair.domain for item in file.pairs],
        "language": [item.pair.language for item in file.pairs],
        "strength": [float(item.pair.margin) for item in file.pairs],
        "score_chosen": [item.score_chosen for item in file.pairs],
        "score_rejected": [item.score_rejected for item in file.pairs],
        "margin": [item.margin for item in file.pairs],
        "length_difference": [item.length_difference for item in file.pairs],
    }
    pq.write_table(pa.table(columns), path)


def _metrics(evaluation: RewardModelEvaluation) -> tuple[Metric, ...]:
    """`accuracy/<file>`, `mean_margin/<file>`, `log_loss/<file>` … and the figures of the whole."""
    figures = [
        metric.model_copy(update={"name": f"{metric.name}/{file.name}"})
        for file in evaluation.files
        for metric in (file.accuracy, file.mean_margin, file.log_loss, file.expected_calibration_error)
        if metric is not None
    ]
    return (
        *figures,
        Metric(name="reload_max_difference", value=evaluation.reload_max_difference, unit="score"),
        Metric(name="score_mean", value=evaluation.score_mean, unit="score"),
        Metric(name="score_std", value=evaluation.score_std, unit="score"),
    )
