"""Every schema that the check lets pass must have a reader in the stage."""

import pytest

from containers.preference_columns import SCHEMAS, PreferenceSchema
from containers.stages.pair_schemas import MalformedRowError, detect_schema


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_schema_that_the_check_knows_has_a_reader_that_wants_just_its_columns(schema: PreferenceSchema) -> None:
    empty = dict.fromkeys(schema.columns)
    found = detect_schema([empty], file="rows.jsonl")
    assert found.name == schema.name
    with pytest.raises(MalformedRowError) as caught:
        found.parse(empty)
    assert caught.value.reason != "missing_column"
