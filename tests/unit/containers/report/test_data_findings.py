"""What the data says about itself must reach the pages that people read."""

from containers.contracts.funnel import Funnel, FunnelStep, PolarityCheck, ReferenceCheck, SuiteContamination
from containers.document.markdown import markdown
from containers.document.model import Section, Table, walk
from containers.report.data import data_findings, data_section

FUNNEL = Funnel(
    sources=("a.jsonl", "b.jsonl"),
    rows_read=100,
    steps=(
        FunnelStep(
            reason="tie",
            rows_in=100,
            rows_out=96,
            dropped_by_domain=(("general", 4),),
            dropped_by_strength=(("0", 4),),
            dropped_by_source=(("soups", 3), ("friends", 1)),
        ),
    ),
    train_pairs=90,
    validation_pairs=6,
    policy_train_prompts=0,
    policy_eval_prompts=0,
    read_by_source=(("soups", 60), ("friends", 40)),
    polarity=(
        PolarityCheck(
            source="a.jsonl", num_judged=50, num_agreeing=47, agreement=0.94, low=0.835, high=0.987, confidence=0.95
        ),
    ),
    reference=(
        ReferenceCheck(
            source="a.jsonl",
            model="org/judge@1",
            num_judged=200,
            num_agreeing=108,
            agreement=0.54,
            low=0.471,
            high=0.608,
            confidence=0.95,
        ),
    ),
    num_similar_prompts=5,
    num_near_duplicates=2,
    contamination=(
        SuiteContamination(
            suite="rm_bench", num_prompts=482, num_prompts_found=5, num_items=482, num_items_found=5, num_rows=12
        ),
        SuiteContamination(
            suite="labelled_pairs", num_prompts=48, num_prompts_found=1, num_items=192, num_items_found=4, num_rows=1
        ),
        SuiteContamination(suite="older", num_items=30, num_items_found=2, num_rows=3),
    ),
)


def test_polarity_near_duplicates_and_suites_are_said_in_the_report() -> None:
    assert data_findings(FUNNEL) == (
        "a.jsonl: the label agrees with the scores beside it on 94.0 % of 50 rows (83.5 % to 98.7 %).",
        "a.jsonl: the label agrees with the reference reward model org/judge@1 on 54.0 % of 200 pairs (47.1 % to "
        "60.8 %), which says nothing about the sign of the labels.",
        "2 rows nearly repeat another one (near_duplicates.jsonl).",
        "5 prompts are like another prompt; a split keeps them on one side, unless `similar_prompts` is `report`.",
        "Suite rm_bench: 5 of its 482 prompts are in 12 rows (contaminated.jsonl).",
        "Suite labelled_pairs: 1 of its 48 prompts (4 of its 192 items) are in 1 rows (contaminated.jsonl).",
        "Suite older: 2 of its 30 items are in 3 rows (contaminated.jsonl).",
    )


def test_what_was_not_looked_for_is_not_said() -> None:
    nothing = FUNNEL.model_copy(
        update=dict.fromkeys(("polarity", "reference", "contamination"), ())
        | {"num_near_duplicates": None, "num_similar_prompts": None}
    )
    assert data_findings(nothing) == ()
    assert "Suite" not in markdown(data_section(nothing))


def breakdowns(funnel: Funnel) -> dict[str, list[tuple[object, ...]]]:
    """Section → group and number of dropped rows."""
    sections = [block for block in walk((data_section(funnel),)) if isinstance(block, Section)]
    return {
        section.title: [row[:2] for row in block.rows]
        for section in sections
        for block in section.blocks
        if isinstance(block, Table)
    }


def test_dropped_rows_are_shown_by_strength_and_of_a_mixture_by_source() -> None:
    found = breakdowns(FUNNEL)
    assert found["Dropped by strength"] == [("0", 4)]
    assert found["Dropped by source"] == [("soups", 3), ("friends", 1)]
    alone = FUNNEL.model_copy(update={"read_by_source": (("dataset", 100),)})
    assert "Dropped by source" not in breakdowns(alone)


def test_the_page_in_prefect_has_the_suites_and_the_polarity() -> None:
    page = markdown(data_section(FUNNEL))
    assert "Suite rm_bench: 5 of its 482 prompts are in 12 rows" in page
    assert "agrees with the scores beside it on 94.0 % of 50 rows" in page
    assert "54.0 % of 200 pairs (47.1 % to 60.8 %), which says nothing about the sign of the labels" in page


def test_beside_a_prompt_set_no_row_of_the_pairs_is_said_to_be_the_policys() -> None:
    assert "Policy, training" in markdown(data_section(FUNNEL))
    assert "Policy, training" not in markdown(data_section(FUNNEL, beside_prompts=True))
    prompts = Funnel(
        sources=("p.jsonl",), rows_read=9, steps=(), kind="prompts", num_with_answer=8,
        policy_train_prompts=6, policy_eval_prompts=2,
    )  # fmt: skip
    page = markdown(data_section(prompts))
    assert "6 prompts" in page and "8 prompts" in page
    assert "those that judge the policy: too few are held out" in page
    assert "1 rows are neither dropped nor used" in page
