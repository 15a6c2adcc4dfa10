"""The self-test's table is read by people: figures with units, what is wrong below it, and how many passed."""

from containers.contracts.configs.selftest import Measurement, ProbeResult, Selftest
from tasks.checks.selftest.table import failure_lines, figures_text, summary, table_of


def result(probe: str, verdict: str, *, why: str = "", advice: str = "", **figures: tuple[float, str]) -> ProbeResult:
    values = tuple(Measurement(name=name, value=value, unit=unit) for name, (value, unit) in figures.items())
    return ProbeResult.model_validate(
        {
            "probe": probe,
            "name": probe,
            "verdict": verdict,
            "passes": "words come back",
            "values": values,
            "why": why,
            "advice": advice,
        }
    )


RECORD = Selftest(
    made_at="2026-11-30T10:00:00+00:00",
    host="lab-1",
    profile="8x80gb",
    num_gpus=8,
    precision="bf16",
    card="NVIDIA H100 80GB HBM3",
    runtime="docker",
    model="Qwen3-8B",
    sources="s",
    results=(
        result("memory", "failed", why="GPU 5: 7 words", advice="Have it replaced.", wrong_words=(7, "words")),
        result("kernels", "passed", gradient=(0.0123, "of the largest"), rounding=(0.0078, "")),
        result("load", "not run", why="the profile has no GPUs"),
        result("reload", "passed"),
    ),
    duration_s=431,
)


def test_each_probe_has_a_row_with_figures_or_why_there_are_none() -> None:
    assert list(table_of(RECORD).rows) == [
        ("memory", "failed", "wrong words 7 words", "words come back"),
        ("kernels", "passed", "gradient 0.0123 of the largest", "words come back"),
        ("load", "not run", "the profile has no GPUs", "words come back"),
        ("reload", "passed", "as wanted", "words come back"),
    ]


def test_what_a_probe_notes_follows_its_figures_once() -> None:
    row = result("kernels", "passed", gradient=(0.5, "of the largest"))
    noted = row.model_copy(update={"notes": ("One kernel for all.", "One kernel for all.")})
    shown = table_of(RECORD.model_copy(update={"results": (noted,)})).rows[0]
    assert shown[2] == "gradient 0.500 of the largest. One kernel for all"


def test_a_failure_says_what_to_do() -> None:
    assert failure_lines(RECORD) == [
        "memory: GPU 5: 7 words",
        "  to do:  Have it replaced.",
    ]
    assert summary(RECORD) == "2 passed, 1 failed, 1 not run; 7 min 11 s. Steps in the shape of: Qwen3-8B."


def test_probes_that_failed_of_one_cause_are_named_together() -> None:
    rows = [result(probe, "failed", why="torch sees none.", advice="Look.") for probe in ("memory", "kernels")]
    lines = failure_lines(RECORD.model_copy(update={"results": tuple(rows)}))
    assert lines[0] == "memory, kernels: torch sees none."
    assert len(lines) == 2 and "one cause" in lines[1]


def test_figures_of_several_cards_are_one_range_with_one_unit() -> None:
    values = [
        *(Measurement(name="product", value=value, unit="FLOP/s", of="GPU") for value in (6.12e14, 6.4e14, 6.3e14)),
        *(Measurement(name="copy", value=2.5 * 1024**4, unit="bytes/s", of="GPU") for _ in range(3)),
        Measurement(name="wrong_words", value=0, unit="words"),
        Measurement(name="context", value=0.2, unit="s", of="GPU 0"),
        Measurement(name="context", value=2.0, unit="s", of="GPU 1"),
        Measurement(name="same_weights", value=1, unit="yes"),
        Measurement(name="gradients", value=0.99987, unit="cosine"),
        Measurement(name="checkpoints", value=1, unit="whole"),
        Measurement(name="checkpoints", value=3, unit="whole"),
    ]
    assert figures_text(values) == (
        "product 612 to 640 TFLOP/s, copy 2.50 TiB/s, context 200 ms to 2.0 s, same weights yes, gradients 0.9999, "
        "checkpoints 1 to 3 whole"
    )
