"""Check and stage must see the same schema and say the same: both ask here."""

import subprocess
import sys

import pytest

from containers.data.formats.columns import (
    ARENA,
    HELPSTEER3,
    SCHEMAS,
    TRL,
    PreferenceSchema,
    schema_of,
)
from containers.data.formats.errors import UnknownSchemaError


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_columns_of_a_schema_are_enough_and_more_do_no_harm_unless_it_stands_alone(
    schema: PreferenceSchema,
) -> None:
    assert schema_of([schema.example], file="x") is schema
    with_more = (*schema.example, *schema.optional, "domain", "language", "more")
    if schema.stands_alone:
        with pytest.raises(UnknownSchemaError):
            schema_of([with_more], file="x")
    else:
        assert schema_of([with_more], file="x") is schema


@pytest.mark.parametrize("schema", SCHEMAS)
def test_one_missing_column_is_no_such_schema(schema: PreferenceSchema) -> None:
    for missing in schema.example:
        rest = [name for name in schema.example if name != missing]
        if TRL.fits(rest) and schema is not TRL:
            assert schema_of([rest], file="x") is TRL
        else:
            with pytest.raises(UnknownSchemaError):
                schema_of([rest], file="x")


@pytest.mark.parametrize(
    ("names", "nearest"),
    [
        (["prompt", "completion"], "Nearest: unpaired (KTO); its `label` is missing."),
        (["question", "chosen"], "Nearest: Orca DPO; its `rejected` is missing."),
        (["prompt", "responses", "ranking"], "Nearest: ranking; its `ranks` or `scores` or `ratings` is missing."),
        (["conversation_a", "model_a", "model_b"],
         "Nearest: arena conversations; its `conversation_b` and `winner` are missing."),
        (["text", "source"], "Nearest: NeMo-Aligner comparisons, which has no `source`."),
    ],
)  # fmt: skip
def test_an_unknown_form_is_refused_with_the_nearest_one(names: list[str], nearest: str) -> None:
    with pytest.raises(UnknownSchemaError) as caught:
        schema_of([names], file="x")
    assert caught.value.advice.startswith(nearest)


def test_no_form_is_called_near_where_no_column_is_shared() -> None:
    with pytest.raises(UnknownSchemaError) as caught:
        schema_of([["a", "b"]], file="x")
    assert "Nearest" not in caught.value.advice


def test_most_rows_decide_and_the_first_schema_wins_a_draw() -> None:
    assert schema_of([ARENA.columns, (), HELPSTEER3.columns, ARENA.columns], file="x") is ARENA
    assert schema_of([ARENA.columns, TRL.columns], file="x") is TRL


def test_the_message_has_the_columns_found_in_their_order_and_those_wanted() -> None:
    with pytest.raises(UnknownSchemaError) as caught:
        schema_of([["question", "good", "bad"], ["good"]], file="rows.jsonl")
    assert caught.value.problem == ("has no schema that is known here. Columns found: good, question, bad.")
    for schema in SCHEMAS:
        assert f"{schema.name} ({', '.join(schema.columns)}" in caught.value.advice
    assert str(caught.value) == f"rows.jsonl {caught.value.problem} {caught.value.advice}"


def test_foreign_column_names_cannot_flood_or_steer_the_terminal() -> None:
    with pytest.raises(UnknownSchemaError) as caught:
        schema_of([["\x1b[2J", "x" * 10_000, *(str(number) for number in range(1000))]], file="x")
    assert "\\x1b[2J" in caught.value.problem and "\x1b" not in caught.value.problem
    assert caught.value.problem.endswith("and 982 more.")
    assert len(caught.value.problem) < 400


def test_no_columns_at_all_are_said_so() -> None:
    with pytest.raises(UnknownSchemaError, match="Columns found: none"):
        schema_of([[], []], file="x")


@pytest.mark.waits
def test_importing_it_loads_nothing_heavy() -> None:
    code = "import sys, containers.data.formats.columns; print(*sys.modules)"
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert not loaded & {"torch", "pyarrow", "prefect", "mlflow", "docker", "datasets"}
