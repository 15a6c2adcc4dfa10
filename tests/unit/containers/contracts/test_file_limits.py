"""How many lines of a text hold something is counted the same, however the text is cut into chunks."""

from hypothesis import given
from hypothesis import strategies as st

from containers.contracts.file_limits import MAX_LINES_WITHOUT_ROW, RowLines, has_too_few_rows


def counted(text: bytes, sizes: list[int]) -> tuple[int, int]:
    lines, begin = RowLines(), 0
    for size in [*sizes, len(text)]:
        lines.add(text[begin : begin + size])
        begin += size
    return lines.num_lines, lines.num_rows


@given(st.lists(st.sampled_from([b"a", b"{}", b" ", b"\n", b"\r\n", b"\t"])), st.lists(st.integers(0, 3)))
def test_lines_and_rows_are_those_of_the_whole_text(parts: list[bytes], sizes: list[int]) -> None:
    text = b"".join(parts)
    split = text.split(b"\n")
    if not split[-1].strip():
        split.pop()  # blanks behind the last line's end are no further line
    assert counted(text, sizes) == (len(split), sum(1 for line in split if line.strip()))


def test_a_file_of_blank_lines_is_noticed_after_some_of_them() -> None:
    lines = RowLines()
    lines.add(b"{}\n" + b"\n" * MAX_LINES_WITHOUT_ROW)
    assert not has_too_few_rows(num_lines=lines.num_lines, num_rows=lines.num_rows)
    lines.add(b"\n" * 11)
    assert has_too_few_rows(num_lines=lines.num_lines, num_rows=lines.num_rows)
