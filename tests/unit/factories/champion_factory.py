"""A store with versions of a reward model in it, as retrainings leave them; the models are a few bytes."""

import hashlib
import json
from pathlib import Path

from containers.contracts.champions import Contest
from containers.contracts.digests import content_digest, file_entries, write_atomically
from containers.contracts.manifest import LineageEntry, Manifest
from containers.contracts.names import StageName
from containers.contracts.outcome import Metric
from containers.contracts.records import GateRule, GateVerdict
from containers.evals.intervals import detectable, mean_end, mean_interval
from containers.evals.paired import clustered_difference
from tasks.champions.book import ChampionBook
from tasks.champions.record import ChampionRecord, Decision, ModelVersion, StoredArtifact

MADE_AT = "2026-01-01T00:00:00+00:00"


def make_book(store: Path, *, num_versions: int = 2, champions: tuple[int, ...] = (1, 2)) -> ChampionBook:
    """A book with versions 1 to `num_versions`, of which `champions` reigned in that order."""
    book = ChampionBook(store, run_name="demo", kind="reward_model")
    versions = tuple(_version(store, number) for number in range(1, num_versions + 1))
    decisions = tuple(
        Decision(
            at=MADE_AT,
            kind="won" if place else "first",
            version=number,
            champion_before=champions[place - 1] if place else None,
            champion_after=number,
            text=f"version {number} is better",
        )
        for place, number in enumerate(champions)
    )
    book.update(lambda record: record.model_copy(update={"versions": versions, "decisions": decisions}))
    return book


def publish(store: Path, stage: StageName, name: str, files: dict[str, bytes] | None = None) -> StoredArtifact:
    """An artifact with a manifest, in the store."""
    key = hashlib.sha256(name.encode()).hexdigest()
    folder = store / "artifacts" / stage / key
    for file, content in (files or {"weights.bin": name.encode()}).items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
    entries = file_entries(folder)
    manifest = Manifest(stage=stage, key=key, files=entries, created_at=MADE_AT)
    write_atomically(folder / "MANIFEST.json", manifest.model_dump_json())
    return StoredArtifact(stage=stage, key=key, digest=content_digest(entries))


def contest(
    better: int,
    worse: int,
    *,
    both: int = 0,
    name: str = "the frozen pairs",
    budget: float | None = None,
    must_rule_out: bool = False,
) -> Contest:
    """Items that only the challenger, only the champion, or both get right; the bounds are made of the counts."""
    differences = [1.0] * better + [-1.0] * worse + [0.0] * both
    prompts = [str(number) for number in range(len(differences))]
    found = clustered_difference(differences, prompts, confidence=0.95)
    return Contest(
        name=name,
        measure="accuracy",
        count=len(differences),
        num_prompts=len(differences),
        champion=(worse + both) / len(differences),
        challenger=(better + both) / len(differences),
        difference=found.difference,
        num_better=better,
        num_worse=worse,
        p_value=found.p_value,
        detectable=detectable(found.figure, confidence=0.95, power=0.8),
        budget=budget,
        at_most=None if budget is None else mean_end(found.figure, alpha=0.05),
        at_least=None if budget is None else mean_interval(found.figure, confidence=0.9)[0],
        must_rule_out=must_rule_out,
    )


def record_of(book: ChampionBook) -> ChampionRecord:
    """What stands in the file, read anew."""
    return ChampionRecord.model_validate(json.loads(book.path.read_text(encoding="utf-8")))


def _version(store: Path, number: int) -> ModelVersion:
    return ModelVersion(
        number=number,
        model=publish(
            store,
            StageName.TRAIN_REWARD_MODEL,
            f"model {number}",
            {"merged/model.safetensors": f"weights {number}".encode(), "adapter/adapter.bin": b"adapter"},
        ),
        certificate=publish(
            store,
            StageName.EVALUATE_REWARD_MODEL,
            f"certificate {number}",
            {"certificate.json": b"{}"},
        ),
        pairs=publish(store, StageName.FILTER_DATASET, f"pairs {number}"),
        dataset=(LineageEntry(name="train_data", digest=f"hub:{number:040x}:train.jsonl", origin="org/data@main"),),
        gate=GateVerdict(
            name="reward_model",
            passed=True,
            rules=(GateRule(name="accuracy on test", wanted="at least 60 %", found="71 %", passed=True),),
        ),
        figures=(Metric(name="accuracy/test", value=0.71, unit="fraction", count=100),),
        run_name="demo",
        run_id=f"run-{number}",
        mlflow_run_id="0" * 32,
        made_at=MADE_AT,
    )
