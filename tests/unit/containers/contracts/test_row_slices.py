"""A slice must take the rows that the datasets library takes, since people know its notation."""

import pytest
from datasets.arrow_reader import ReadInstruction
from hypothesis import given
from hypothesis import strategies as st

from containers.contracts.configs.parts.row_filters import SplitName, slice_of

pytestmark = pytest.mark.stages

ENDS = st.none() | st.integers(-100, 100)


@given(st.integers(0, 3000), ENDS, ENDS, st.sampled_from(["%", ""]))
def test_slices_are_those_of_the_datasets_library(
    num_rows: int, start: int | None, stop: int | None, unit: str
) -> None:
    first, last = ("" if end is None else f"{end}{unit}" for end in (start, stop))
    text = f"train[{first}:{last}]"
    (theirs,) = ReadInstruction.from_spec(text).to_absolute({"train": num_rows})
    wanted = range(theirs.from_, max(theirs.from_, theirs.to))
    assert slice_of(f"[{first}:{last}]", num_rows=num_rows) == wanted


@pytest.mark.parametrize(
    ("text", "name", "rows"),
    [("train", "train", ""), ("train[:10%]", "train", "[:10%]"), ("train_prefs[1_000:]", "train_prefs", "[1_000:]"),
     ("a.b-c[-5:]", "a.b-c", "[-5:]"), ("train[:]", "train", "[:]")],
)  # fmt: skip
def test_a_split_and_its_slice_are_told_apart(text: str, name: str, rows: str) -> None:
    assert SplitName.parsed(text) == (name, rows)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train+test", "is no split"),
        ("train[10]", "is no split"),
        ("train[:10%](pct1_dropremainder)", "is no split"),
        ("", "is no split"),
        ("../train", "is no split"),
        ("train[:0.5]", "is no split"),
        ("train[10:20%]", "mixes a number of rows and a percentage"),
        ("train[:101%]", "more than all rows"),
        ("train[20:10]", "holds no row"),
        ("train[5%:5%]", "holds no row"),
    ],
)
def test_what_is_no_slice_is_refused_with_the_notation(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SplitName.parsed(text)
