"""Certificates with the scores behind them, as evaluate_reward_model leaves them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from containers.contracts.certificate import Certificate, CertifiedModel, ParityPath, ScoreParity, SuiteEvaluation
from containers.contracts.names import CERTIFICATE_FILE
from containers.contracts.outcome import Metric


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
        margin = pa.array(found, pa.float64())
        table = pa.table({"item_id": items, "pair_id": items, "prompt_id": prompts, "margin": margin})
        pq.write_table(table, folder / suite.scores_file)
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
