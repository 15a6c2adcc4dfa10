"""Certificates made by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from containers.contracts.certificate import Certificate, CertifiedModel, ParityPath, ScoreParity, SuiteEvaluation
from containers.contracts.names import CERTIFICATE_FILE
from containers.contracts.outcome import Metric


def suite(name: str, score: float | None, minimum: float | None = None, *, num_pairs: int = 100) -> SuiteEvaluation:
    """A suite of plain pairs; None: nothing was left of it."""
    found = None if score is None else Metric(name="score", value=score, unit="fraction", count=num_pairs)
    return SuiteEvaluation(
        name=name,
        num_items=num_pairs,
        num_pairs=num_pairs,
        score=found,
        accuracy=None if found is None else found.model_copy(update={"name": "accuracy"}),
        minimum_accuracy=minimum,
    )


def certificate(suites: Sequence[SuiteEvaluation] = (), **changes: Any) -> Certificate:
    """A certificate whose code paths all agree; `changes` replace its fields."""
    fields: dict[str, Any] = {
        "model": CertifiedModel(digest="sha256:0", score_head_sha256="0" * 64),
        "suites": tuple(suites) or (suite("test", 0.7),),
        "parity": ScoreParity(
            num_conversations=64,
            reference="logged by training",
            bound=1e-4,
            paths=(ParityPath(name="training collator", max_difference=2e-7),),
        ),
        "score_mean": 0.0,
        "score_std": 1.0,
    }
    return Certificate(**{**fields, **changes})


def write_certificate(folder: Path, *, score_head_sha256: str, digest: str = "sha256:0") -> Path:
    """An artifact of evaluate_reward_model about the model with that digest and score head."""
    folder.mkdir(parents=True, exist_ok=True)
    model = CertifiedModel(digest=digest, score_head_sha256=score_head_sha256)
    (folder / CERTIFICATE_FILE).write_text(certificate(model=model).model_dump_json())
    return folder
