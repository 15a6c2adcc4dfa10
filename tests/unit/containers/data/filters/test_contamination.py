"""A model that trained on its examination passes it; so the examination is looked for in the data."""

import gzip
import json
from collections import Counter, defaultdict
from itertools import chain, product, takewhile
from pathlib import Path

import pytest

from containers.contracts.registries import BENCHMARKS
from containers.data.filters.contamination import Contamination, SuiteIndex, SuitePrompt
from containers.data.filters.prompt_words import Prompts, text_of_turns
from containers.data.filters.run_numbers import words_of
from containers.data.filters.templates import TEMPLATE_WAYS
from containers.data.reader import read_rows
from containers.harness.errors import BadConfigError
from tests.unit.factories.filter_factory import Run, assert_every_row_is_counted, helpsteer3, write

LONG = "A farmer has seventeen sheep and all but nine of them run away. How many sheep are left on the farm?"
SUITE = ({"name": "farm", "benchmark": "pairs"},)


def turns(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]


def find(
    prompt: list[dict[str, str]], *suite: list[dict[str, str]], overlap: float = 0.5, beside: tuple[str, ...] = ()
) -> Contamination | None:
    """What of the suite is found in a prompt that stands among others."""
    items = [SuitePrompt("farm", f"item{number}", number + 1, item) for number, item in enumerate(suite)]
    prompts = {"it": prompt} | {text: turns(text) for text in beside}
    return next(iter(SuiteIndex(items).find(Prompts(prompts), overlap=overlap).get("it", ())), None)


@pytest.mark.parametrize(
    "prompt",
    [
        turns(LONG),
        turns(LONG.upper().replace(",", " ;") + "\n"),
        turns(f"Please think. {LONG} Explain."),
        turns("Hello!", "Hi.", LONG),
        turns("A farmer has seventeen sheep and all but nine of them run away. How many stayed?"),
    ],
)
def test_a_prompt_is_found_whole_within_another_text_or_for_the_most_part(prompt: list[dict[str, str]]) -> None:
    found = find(prompt, turns("Name a river of France."), turns(LONG))
    assert found is not None and found.items[0].item_id == "item1" and found.overlap >= 0.5


def test_a_few_words_in_common_are_no_contamination() -> None:
    other = "A farmer has seventeen sheep and all but three of the cows are in the barn, so how tall is the barn?"
    assert find(turns(other), turns(LONG)) is None
    assert find(turns(other), turns(LONG), overlap=0.3) is not None


TEMPLATE = "I like to host guests at my home and gather recipes of different cuisines. Do you have any for {}?"


def test_a_template_of_many_prompts_condemns_only_the_prompt_that_is_the_same() -> None:
    """HH-RLHF has 168 prompts of this kind, RM-Bench has one."""
    suite = [turns(TEMPLATE.format("Nauru"))]
    others = tuple(TEMPLATE.format(name) for name in ("France", "Chile", "Japan", "Ghana", "Italy"))
    assert find(turns(TEMPLATE.format("Peru")), *suite, beside=others) is None
    assert find(turns(TEMPLATE.format("Nauru")), *suite, beside=others) is not None
    assert find(turns(TEMPLATE.format("Peru")), *suite, beside=others[:2]) is None
    # Among a few it cannot be told from a question that is asked again in other words.
    assert find(turns(TEMPLATE.format("Peru")), *suite, beside=others[:1]) is not None


def test_instructions_that_all_items_of_a_suite_share_condemn_nothing() -> None:
    ending = "If you cannot determine the correct answer, take your best guess, and duplicate that letter five times."
    suite = [turns(f"How many legs has the animal number {name}? {ending}") for name in "abcdef"]
    assert find(turns(f"Which planet of the solar system is largest? {ending}"), *suite) is None
    found = find(suite[3], *suite)
    assert found is not None and found.items[0].item_id == "item3"


def test_a_short_prompt_is_found_whole_within_another_and_below_five_words_only_alone() -> None:
    five = turns("Name the rivers of France!")
    assert find(turns("Hello there. Name the rivers of France, then those of Spain."), five) is not None
    assert find(turns("Name the long rivers of France"), five) is None
    four = turns("Name rivers of France!")
    assert find(turns("name rivers of france"), four) is not None
    assert find(turns("Hello!", "Hi.", "Name rivers of France."), four) is not None
    assert find(turns("Name rivers of France. Then name a colour."), four) is None
    assert find(turns("Name rivers of France.", "Seine.", "Why?"), four) is None


def test_a_system_turn_hides_nothing_and_finds_nothing() -> None:
    system = {"role": "system", "content": LONG}
    assert find([system, *turns("Hello there!")], turns(LONG)) is None
    assert find(turns("Hello, there"), [system, *turns("Hello there!")]) is not None


def test_texts_without_spaces_are_compared_by_characters() -> None:
    chinese = "农夫有十七只羊，除了九只以外都跑掉了，农场里还剩下几只羊？"
    found = find(turns(f"请回答：{chinese}谢谢"), turns(chinese))
    assert found is not None and found.overlap == 1.0


def write_suite(folder: Path, *prompts: str) -> Path:
    return write(folder / "suite.jsonl", [{"prompt": text, "chosen": "Good.", "rejected": "Bad."} for text in prompts])


@pytest.mark.parametrize(("choice", "num_dropped"), [("drop", 2), ("report", None)])
def test_rows_of_both_splits_with_a_prompt_of_a_suite_are_listed_by_suite_and_item(
    tmp_path: Path, choice: str, num_dropped: int | None
) -> None:
    # A suite may ask about one prompt several times: those are items, not prompts.
    suite = write_suite(tmp_path, LONG, "What should I cook for 5 guests this evening?", "Nobody asks this.", LONG)
    asked = {"context": [{"role": "user", "content": f"{LONG} Answer in one word."}]}
    inputs = {
        "train_data": write(tmp_path / "train.jsonl", [helpsteer3(number) for number in range(40)]),
        "validation_data": write(tmp_path / "validation.jsonl", [helpsteer3(900), helpsteer3(901, **asked)]),
        "suite_farm": suite,
    }
    done = Run(tmp_path, inputs, contamination=choice, suites=SUITE)
    assert done.dropped_by.get("contaminated") == num_dropped
    assert_every_row_is_counted(done.funnel)
    listed = done.lines("contaminated.jsonl") or []
    assert [(line["split"], line["line"], line["suite"], line["item_line"]) for line in listed] == [
        ("train", 6, "farm", 2),
        ("validation", 2, "farm", 1),
    ]
    (found,) = done.funnel.contamination
    assert (found.suite, found.num_items, found.num_items_found, found.num_rows) == ("farm", 4, 3, 2)
    assert (found.num_prompts, found.num_prompts_found) == (3, 2)
    assert [(one.value, one.unit) for one in done.metrics if one.name == "contaminated_rows"] == [(2, "rows")]
    held_out = {row["prompt"][-1]["content"] for name in ("train", "policy_train_prompts") for row in done.table(name)}
    assert ("What should I cook for 5 guests this evening?" in held_out) == (choice == "report")


def test_a_clean_set_says_so(tmp_path: Path) -> None:
    inputs = {
        "train_data": write(tmp_path / "train.jsonl", [helpsteer3(number) for number in range(40)]),
        "suite_farm": write_suite(tmp_path, LONG),
    }
    done = Run(tmp_path, inputs, suites=SUITE)
    assert (done.dropped_by["contaminated"], done.lines("contaminated.jsonl")) == (0, [])
    assert done.funnel.contamination[0].num_rows == 0


def test_a_benchmark_that_nobody_knows_is_refused_by_name(tmp_path: Path) -> None:
    inputs = {
        "train_data": write(tmp_path / "train.jsonl", [helpsteer3(number) for number in range(40)]),
        "suite_farm": write_suite(tmp_path, LONG),
    }
    with pytest.raises(BadConfigError, match="names the benchmark `no_bench`, which is not known"):
        Run(tmp_path, inputs, suites=({"name": "farm", "benchmark": "no_bench"},))


@pytest.mark.shared_data
def test_every_real_prompt_that_was_put_into_the_data_is_found(tmp_path: Path, shared_data: Path) -> None:
    """Prompts of three real suites, with a word before and after, between rows of real training data."""
    with gzip.open(shared_data / "hh_helpful_train.jsonl.gz", "rt") as stream:
        rows = [json.loads(line) for line in stream][:300]
    suites = {
        "llmbar": "llmbar_pairs.jsonl",
        "judge_bench": "judgebench_pairs.jsonl.gz",
        "rm_bench": "rmbench_pairs.jsonl.gz",
    }
    planted = {}
    for name, file in suites.items():
        for item in BENCHMARKS[name].read(shared_data / file).items[:40]:
            planted[len(rows) + 1] = (name, item.item_id)
            text = item.prompt[-1]["content"]
            # Below eight words only the prompt itself is one.
            asked = f"Question: {text} Thanks." if len(text.split()) > 8 else text
            rows.append({**rows[len(planted)], "prompt": [{"role": "user", "content": asked}]})
    done = Run(
        tmp_path,
        {"train_data": write(tmp_path / "rows.jsonl", rows)}
        | {f"suite_{name}": shared_data / file for name, file in suites.items()},
        suites=tuple({"name": name, "benchmark": name} for name in suites),
        check_language_on_text=False,
        contamination="report",
        near_duplicates="off",
    )
    found = {line["line"]: line["suite"] for line in done.lines("contaminated.jsonl") or []}
    assert {line for line in planted if line not in found} == set()
    assert len([line for line in found if line not in planted]) <= 3


def blocks_by_hand(own: list[str], text: list[str]) -> set[tuple[int, int, str, str]]:
    """Begin and end of every block of eight words or more of an item in a text, and the words around it there."""
    found = set()
    for here, there in product(range(len(own)), range(len(text))):
        if own[here] == text[there] and not (here and there and own[here - 1] == text[there - 1]):
            pairs = zip(own[here:], text[there:], strict=False)
            length = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
            if length >= 8:
                around = ["", *text, ""]
                found.add((here, here + length, around[there], around[there + length + 1]))
    return found


def template_by_hand(own: list[str], blocks: list[tuple[int, int, str, str]], sharing: list[int]) -> set[int]:
    """Begins of the runs of an item from which texts depart in many ways, to one side."""
    found = set()
    for run in range(len(own) - 7):
        over = [block for block in blocks if block[0] <= run and run + 8 <= block[1]]
        right = {(end, after) for _, end, _, after in over if end < len(own)}
        left = {(begin, before) for begin, _, before, _ in over if begin}
        goes_right = {end: sum(one[0] <= end - 8 and one[1] > end for one in blocks) for end, _ in right}
        goes_left = {begin: sum(one[0] < begin and one[1] >= begin + 8 for one in blocks) for begin, _ in left}
        num_right = sum(sum(one[1] == end for one in blocks) >= goes_right[end] for end, _ in right)
        num_left = sum(sum(one[0] == begin for one in blocks) >= goes_left[begin] for begin, _ in left)
        if max(num_right, num_left) + sharing[run] >= TEMPLATE_WAYS:
            found.add(run)
    return found


def find_by_hand(
    suite: list[SuitePrompt], prompts: dict[str, list[dict[str, str]]], overlap: float
) -> dict[str, dict[str, float]]:
    """The rule over strings, every item against every prompt; items have different words."""
    texts = {key: words_of(text_of_turns(prompt)) for key, prompt in prompts.items()}
    words = [words_of(text_of_turns(item.prompt)) for item in suite]
    runs = [[tuple(own[place : place + 8]) for place in range(len(own) - 7)] for own in words]
    with_run = Counter(run for own in runs for run in set(own))
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for item, own, of_item in zip(suite, words, runs, strict=True):
        blocks = {}
        for key, text in texts.items():
            spread = f" {' '.join(text)} "
            if own in (text, words_of(prompts[key][-1]["content"])) or (
                len(own) >= 5 and f" {' '.join(own)} " in spread
            ):
                found[key][item.item_id] = 1.0
            else:
                blocks[key] = [
                    block
                    for block in blocks_by_hand(own, text)
                    if any(with_run[run] < TEMPLATE_WAYS for run in of_item[block[0] : block[1] - 7])
                ]
        template = template_by_hand(own, list(chain(*blocks.values())), [with_run[run] for run in of_item])
        telling = set(range(len(own))) - {place + step for place in template for step in range(8)}
        for key, of_text in blocks.items():
            runs_here = {place for block in of_text for place in range(block[0], block[1] - 7)} - template
            covered = {place + step for place in runs_here for step in range(8)} & telling
            if covered and len(covered) / len(telling) >= overlap:
                found[key][item.item_id] = len(covered) / len(telling)
    return found


@pytest.mark.waits
@pytest.mark.shared_data
def test_the_index_finds_what_comparing_every_item_with_every_prompt_finds(shared_data: Path) -> None:
    items = BENCHMARKS["rm_bench"].read(shared_data / "rmbench_pairs.jsonl.gz").items[::9]
    suite = [SuitePrompt("rm", item.item_id, item.line, item.prompt) for item in items]
    rows = [item.row for item in read_rows(shared_data / "hh_harmless.jsonl.gz") if item.row is not None][:60]
    prompts = {row.prompt_id: [*row.pair.prompt] for row in rows}
    for place, item in enumerate(items):
        words = item.prompt[-1]["content"].split()
        prompts[f"half {place}"] = turns("Hello!", "Hi.", " ".join(words[: len(words) * 2 // 3]))
        prompts[f"last {place}"] = turns("Hello!", "Hi.", " ".join(words[:9]))
    for overlap in (0.3, 0.5, 0.9):
        found = SuiteIndex(suite).find(Prompts(prompts), overlap=overlap)
        expected = find_by_hand(suite, prompts, overlap)
        assert {
            key: {one.items[0].item_id: one.overlap for one in several} for key, several in found.items()
        } == expected
        assert expected
