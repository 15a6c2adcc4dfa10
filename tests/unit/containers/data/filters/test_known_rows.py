"""A reader with the wrong sign trains the opposite, and nothing in the losses shows it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from containers.data.filters.known_rows import check_readers
from containers.data.formats.columns import SCHEMAS
from containers.data.rows import PreferenceRow, Value


def inverted(read: Callable[[Value], PreferenceRow]) -> Callable[[Value], PreferenceRow]:
    def parse(value: Value) -> PreferenceRow:
        if "overall_preference" in value:
            value = {**value, "overall_preference": -int(str(value["overall_preference"]))}
        return read(value)

    return parse


def test_the_readers_of_all_schemas_take_the_better_answer_of_known_rows() -> None:
    check_readers()


def test_a_reader_with_the_wrong_sign_is_a_fault_of_the_program() -> None:
    schemas = [replace(schema, parse=inverted(schema.parse)) for schema in SCHEMAS]
    with pytest.raises(RuntimeError, match=r"HelpSteer3 takes the worse answer .*chosen 'Five\.', rejected 'Four\.'"):
        check_readers(schemas)
