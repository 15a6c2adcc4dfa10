"""Certificates with the scores behind them, as evaluate_reward_model leaves them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from containers.contracts.certificate import Certificate, CertifiedModel, ParityPath, ScoreParity, SuiteEvaluation
from containers.contracts.names import CERTIFICATE_FILE
from containers.contracts.outcome import Metric
from containers.data.rows import prompt_identity
from containers.evals.item_scores import write_item_scores
from containers.evals.suites.base import Comparison, ScoredItem, SuiteItem


def scored_pair(item_id: str, prompt: str, margin: float) -> ScoredItem:
    """An item of one pair; the better response scores `margin`, the other 0."""
    turns = ({"role": "user", "content": prompt},)
    item = SuiteItem(item_id, turns, ("better", "worse"), subset="all", comparisons=(Comparison(0, 1),))
    return ScoredItem(item, (margin, 0.0))


def identity(prompt: str) -> str:
    """The id of the prompt of `scored_pair`."""
    return prompt_identity(({"role": "user", "content": prompt},))


def write_certificate(
    folder: Path, margins: Mapping[str, Sequence[float]], *, digest: str = "sha256:data", items_per_prompt: int = 1
) -> Path:
    """A certificate with a suite for each name, whose items have one pair with that margin each.

    Args:
        items_per_prompt: so many items that stand one after the other ask the same prompt.
    """
    folder.mkdir(parents=True)
    suites = []
    for name, found in margins.items():
        right = sum(0.5 if margin == 0 else margin > 0 for margin in found) / len(found)
        score = Metric(
            name="score", value=right, unit="fraction", ci_low=right / 2, ci_high=(1 + right) / 2, count=len(found)
        )
        suite = SuiteEvaluation(
            name=name, title=name, digest=digest, num_items=len(found), num_pairs=len(found), score=score
        )
        suites.append(suite)
        items = [f"item-{number}" for number in range(len(found))]
        prompts = [f"prompt-{number // items_per_prompt}" for number in range(len(found))]
        scored = [scored_pair(item, *rest) for item, *rest in zip(items, prompts, found, strict=True)]
        write_item_scores(scored, folder / suite.item_scores_file)
    certificate = Certificate(
        model=CertifiedModel(digest="sha256:model", score_head_sha256="0" * 64),
        suites=tuple(suites),
        parity=ScoreParity(
            num_conversations=64,
            reference="batch 1",
            bound=1e-4,
            paths=(ParityPath(name="batch 8", max_difference=1e-6),),
        ),
        score_mean=0.0,
        score_std=1.0,
    )
    (folder / CERTIFICATE_FILE).write_text(certificate.model_dump_json(), encoding="utf-8")
    return folder
