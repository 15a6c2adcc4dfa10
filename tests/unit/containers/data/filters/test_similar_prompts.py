"""A prompt one letter off, or a conversation that goes on, lets validation reward what was learnt by heart."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import chain, combinations
from pathlib import Path

import pytest

from containers.data.filters.prompt_words import RUN_WORDS, Prompts, text_of_turns
from containers.data.filters.repetitions import most_texts_sharing, repeating_texts
from containers.data.filters.run_numbers import words_of
from containers.data.filters.similar_prompts import PromptGroups, one_letter_apart, similar_prompts
from containers.data.reader import read_rows
from containers.data.rows import Turn
from tests.unit.factories.filter_factory import BAD, GOOD, Run, assert_every_row_is_counted, helpsteer3, write

BUS = "Which bus goes from the old harbour to the museum on Sunday mornings in winter?"


def user(*texts: str) -> tuple[Turn, ...]:
    """Turns of user and assistant by turns, the user's first."""
    return tuple({"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts))


def alike(*prompts: tuple[Turn, ...] | str, overlap: float = 0.9) -> bool:
    """Whether all these prompts come out as one group, in either order."""
    turns = [user(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
    verdicts = []
    for order in (turns, turns[::-1]):
        groups = similar_prompts(Prompts({f"id{place}": prompt for place, prompt in enumerate(order)}), overlap=overlap)
        verdicts.append(len({groups.of(f"id{place}") for place in range(len(order))}) == 1)
    assert len(set(verdicts)) == 1, "the order decides"
    return verdicts[0]


def test_case_punctuation_and_spaces_make_no_other_prompt() -> None:
    assert alike("How do I learn to rollerblade?", "how do I learn to roller-blade")


@pytest.mark.parametrize(
    ("left", "right"),
    [("colour", "color"), ("recieve", "receive"), ("museum", "museun"), ("winter", "winters"), ("harbour", "arbour")],
)
def test_a_word_that_is_one_letter_off_is_the_same_word(left: str, right: str) -> None:
    assert one_letter_apart(left, right) and one_letter_apart(right, left)


@pytest.mark.parametrize(
    ("left", "right"),
    [("hot", "hat"), ("museum", "museum"), ("12345", "12346"), ("spain", "italy"), ("winter", "winning")],
)
def test_short_words_numbers_and_other_words_are_not(left: str, right: str) -> None:
    assert not one_letter_apart(left, right)


def test_prompts_one_letter_apart_are_alike_wherever_the_letter_is() -> None:
    for word in ("Which", "harbour", "museum", "mornings", "winter"):
        assert alike(BUS, BUS.replace(word, word + "x"))
        assert alike(BUS, BUS.replace(word, word[1:]))


def test_prompts_with_another_number_or_name_are_not_alike() -> None:
    assert not alike("Which bus goes to pier 10400 today?", "Which bus goes to pier 10401 today?")
    assert not alike("What is the capital of France?", "What is the capital of Spain?")


def test_conversations_that_begin_with_the_same_eight_words_or_more_are_alike() -> None:
    longer = user(BUS, "Line 4 does.", "And on Mondays?")
    assert alike(BUS, longer)
    assert alike(longer, user(BUS, "None, I fear.", "Then how do I get there?"))
    assert alike(
        user("Hi there!", f"Hello. {GOOD}", "Thanks"), user("Hi there!", f"Hello. {GOOD}", "Why?", BAD, "I see")
    )
    assert not alike(user("Hi there!", "Hello.", BUS), user("Hi there!", "Hello.", "Who wrote the book that you like?"))


def test_a_system_turn_makes_no_beginning() -> None:
    system: Turn = {"role": "system", "content": "You are a helpful assistant that answers every question at length."}
    assert not alike((system, *user("Who wrote that?")), (system, *user("Which bus goes there?")))


def test_a_prompt_that_holds_nearly_all_of_another_is_alike_and_one_that_holds_half_is_not() -> None:
    assert alike(BUS, f"A question for tomorrow. {BUS} My aunt wants to know.")
    half = " ".join(BUS.split()[:9])
    assert not alike(BUS, f"A question for tomorrow. {half}, and who wrote this book?")
    assert alike(BUS, f"{half}, and who wrote this book?", overlap=0.51)


def test_what_many_prompts_share_is_a_template_and_makes_none_alike() -> None:
    template = "I like to host guests at my home and I am gathering recipes of dishes from {}"
    lands = ["Peru", "Spain", "Ghana", "India", "Nepal", "Chile"]
    filled = {land: user(template.format(land)) for land in lands}
    assert similar_prompts(Prompts(filled), overlap=0.9).members() == {}
    assert len(similar_prompts(Prompts({land: filled[land] for land in lands[:2]}), overlap=0.9).members()) == 1


def test_the_largest_group_is_told_as_a_share_of_the_prompts() -> None:
    groups = PromptGroups()
    assert groups.largest_share([]) == 0
    groups.join("a", "b")
    assert (groups.largest_share("abcd"), groups.largest_share("bcde")) == (0.5, 0.25)


def test_so_many_texts_share_a_run_that_is_of_no_template() -> None:
    assert [most_texts_sharing(count, limit=100) for count in (2, 30, 80, 500, 1000, 20_000)] == [4, 4, 8, 50, 100, 100]


def test_groups_are_named_by_their_smallest_prompt_however_they_were_joined() -> None:
    for pairs in (("ab", "bc", "de"), ("bc", "de", "ab"), ("cb", "ba", "ed")):
        groups = PromptGroups()
        for one, other in pairs:
            groups.join(one, other)
        assert groups.members() == {"a": ["a", "b", "c"], "d": ["d", "e"]}
        assert groups.of("f") == "f"


def repeating(texts: list[str], overlap: float) -> set[tuple[int, int]]:
    """What repeats what among texts."""
    return set(
        repeating_texts(
            Prompts({str(place): user(text) for place, text in enumerate(texts)}).words, overlap=overlap, limit=8
        )
    )


def test_no_text_and_short_texts_repeat_nothing() -> None:
    assert repeating([], 0.9) == set()
    assert repeating(["a", "", "a"], 0.9) == set()


def repeating_by_hand(texts: list[list[str]], overlap: float) -> set[tuple[int, int]]:
    """The same rule over strings and every pair of texts."""
    runs = [
        {place: tuple(text[place : place + RUN_WORDS]) for place in range(len(text) - RUN_WORDS + 1)} for text in texts
    ]
    with_run = defaultdict[tuple[str, ...], set[int]](set)
    for place, own in enumerate(runs):
        for run in own.values():
            with_run[run].add(place)
    shortest = {run: sorted(owners, key=lambda one: (len(texts[one]), one))[:4] for run, owners in with_run.items()}
    most = most_texts_sharing(len(texts), limit=8)

    def words(places: Iterable[int]) -> set[int]:
        return {place + step for place in places for step in range(RUN_WORDS)}

    found = set()
    for one, own in enumerate(runs):
        telling = {place: run for place, run in own.items() if len(with_run[run]) <= most}
        own_words = set(range(len(texts[one]))) - words(own.keys() - telling.keys())
        for other in range(len(texts)):
            shared = [
                place
                for place, run in telling.items()
                if other in with_run[run] and {one, other} & set(shortest[run]) and other != one
            ]
            repeated = len(words(shared) & own_words)
            if repeated and repeated >= overlap * len(own_words):
                found.add((one, other))
            if own and other != one and f" {' '.join(texts[one])} " in f" {' '.join(texts[other])} ":
                found.add((one, other))
    return found


@pytest.mark.waits
@pytest.mark.shared_data
def test_the_numbers_of_runs_find_what_comparing_every_pair_finds(shared_data: Path) -> None:
    rows = [item.row for item in read_rows(shared_data / "hh_harmless.jsonl.gz") if item.row is not None]
    texts = [text_of_turns(row.pair.prompt) for row in rows if len(row.pair.prompt) < 6][:250]
    texts += [text[:90] + " indeed " + text[90:] for text in texts[::9]]
    # Some in more wordings than a run of no template may have.
    texts += [f"{word} {text}" for text in texts[:3] for word in map(str, range(40))]
    for overlap in (0.6, 0.9):
        found = repeating(texts, overlap)
        assert found == repeating_by_hand([words_of(text) for text in texts], overlap)
        assert found


def similar_by_hand(prompts: dict[str, tuple[Turn, ...]], overlap: float) -> PromptGroups:
    """The three rules over strings and every pair of prompts."""
    ids = list(prompts)
    turns = [[words_of(turn["content"]) for turn in prompt if turn["role"] != "system"] for prompt in prompts.values()]
    words = [list(chain(*of_turns)) for of_turns in turns]
    whole = ["".join(own) for own in words]
    beginnings = []
    for of_turns in turns:
        firsts = (list(chain(*of_turns[: place + 1])) for place in range(len(of_turns)))
        beginnings.append(next((own for own in firsts if len(own) >= RUN_WORDS), None))
    repeating = repeating_by_hand(words, overlap)
    groups = PromptGroups()
    for one, other in combinations(range(len(ids)), 2):
        different = []
        if len(words[one]) == len(words[other]):
            different = [pair for pair in zip(words[one], words[other], strict=True) if pair[0] != pair[1]]
        if (
            (whole[one] and whole[one] == whole[other])
            or (beginnings[one] is not None and beginnings[one] == beginnings[other])
            or (len(words[one]) > 1 and len(different) == 1 and one_letter_apart(*different[0]))
            or {(one, other), (other, one)} & repeating
        ):
            groups.join(ids[one], ids[other])
    return groups


@pytest.mark.shared_data
def test_real_prompts_are_grouped_as_comparing_every_pair_groups_them(shared_data: Path) -> None:
    rows = [item.row for item in read_rows(shared_data / "hh_harmless.jsonl.gz") if item.row is not None]
    real = [row.pair.prompt for row in rows if len(row.pair.prompt) < 6][:120]
    made = [user(prompt[-1]["content"].upper().replace(" ", "")) for prompt in real[::7]]
    made += [(*prompt, {"role": "assistant", "content": "No."}, *user("Why?")) for prompt in real[1::7]]
    made += [(*prompt[:-1], *user(f"{prompt[-1]['content']}s")) for prompt in real[2::7]]
    made += [user(f"Well then. {prompt[-1]['content']} Thanks.") for prompt in real[3::7]]
    prompts = {f"id{place:03}": prompt for place, prompt in enumerate((*real, *made))}
    for overlap in (0.5, 0.9):
        found = similar_prompts(Prompts(prompts), overlap=overlap).members()
        assert found == similar_by_hand(prompts, overlap).members()
        assert len(found) > 20


def misspelt(number: int) -> dict[str, object]:
    """The row of that number with a letter more in its prompt and answers of its own."""
    prompt = f"What should I cook for {number} guestts this evening?"
    return helpsteer3(
        number,
        context=[{"role": "user", "content": prompt}],
        response1="Bake potatoes with herbs and a little olive oil, then serve them hot.",
        response2="Order something, cooking takes far too long.",
    )


def test_a_training_row_with_a_prompt_like_a_validation_prompt_is_dropped_and_listed(tmp_path: Path) -> None:
    inputs = {
        "train_data": write(tmp_path / "train.jsonl", [*(helpsteer3(n) for n in range(50)), misspelt(63)]),
        "validation_data": write(tmp_path / "valid.jsonl", [helpsteer3(n) for n in range(60, 70)]),
    }
    done = Run(tmp_path, inputs)
    assert (done.dropped_by["similar_to_validation"], done.funnel.validation_pairs) == (1, 10)
    assert_every_row_is_counted(done.funnel)
    assert done.funnel.num_similar_prompts == 2
    (line,) = done.lines("near_duplicates.jsonl") or []
    assert (line["alike"], line["done"], line["line"]) == ("prompt", "dropped", 51)
    assert (line["of_file"], line["of_line"]) == ("validation_data", 4)
    assert "63 guestts" in line["prompt"] and "63 guests" in line["of_prompt"]


def test_such_rows_are_only_listed_where_that_is_asked_for_and_not_looked_for_where_not(tmp_path: Path) -> None:
    inputs = {
        "train_data": write(tmp_path / "train.jsonl", [*(helpsteer3(n) for n in range(50)), misspelt(63)]),
        "validation_data": write(tmp_path / "valid.jsonl", [helpsteer3(n) for n in range(60, 70)]),
    }
    listed = Run(tmp_path / "report", inputs, similar_prompts="report")
    assert "similar_to_validation" not in listed.dropped_by
    assert [line["done"] for line in listed.lines("near_duplicates.jsonl") or []] == ["kept"]
    silent = Run(tmp_path / "off", inputs, similar_prompts="off", near_duplicates="off")
    assert silent.lines("near_duplicates.jsonl") is None


@pytest.mark.parametrize("aside", [0.0, 0.3])
def test_prompts_that_are_alike_stay_on_one_side_of_every_split(tmp_path: Path, aside: float) -> None:
    twins = [row for number in range(60) for row in (helpsteer3(number), misspelt(number))]
    inputs = {"train_data": write(tmp_path / "train.jsonl", twins)}
    settings = {"validation_fraction": 0.3, "policy_prompt_fraction": aside, "policy_eval_prompt_fraction": 0.3}
    done = Run(tmp_path / "kept", inputs, **settings)
    names = ["train", "test", "policy_train_prompts", "policy_eval_prompts"][: 4 if aside else 2]
    sides = [{prompt.replace("guestts", "guests") for prompt in done.prompts(name)} for name in names]
    assert all(sides)
    assert sum(map(len, sides)) == len(set.union(*sides)) == 60
    assert_every_row_is_counted(done.funnel)
    torn = Run(tmp_path / "torn", inputs, **settings, similar_prompts="report")
    sides = [{prompt.replace("guestts", "guests") for prompt in torn.prompts(name)} for name in names]
    assert sum(map(len, sides)) > 60
