"""IFEval: prompts with instructions that a program can check; by the rules of lm-evaluation-harness.

An answer counts as right if it follows every instruction of its prompt, read strictly.

Source: Zhou et al. 2023, arXiv:2311.07911; `lm_eval.tasks.ifeval` of EleutherAI/lm-evaluation-harness.
"""

from functools import partial
from typing import Any

from containers.data.rows import MalformedRowError, read_prompt
from containers.evals.sets.base import CannotTellError, SetItem, SetKind
from containers.evals.suites.base import Row, SuiteItem, list_column, row_id, text_column
from containers.evals.suites.rows import Layout, digest, read_suite


def _parse(row: Row) -> SuiteItem:
    names, settings = list_column(row, "instruction_id_list"), list_column(row, "kwargs")
    if not all(isinstance(name, str) for name in names):
        raise MalformedRowError("instruction_not_text", repr(names))
    if len(settings) != len(names) or not all(one is None or isinstance(one, dict) for one in settings):
        raise MalformedRowError("kwargs_do_not_fit", repr(settings))
    prompt = read_prompt(text_column(row, "prompt"))
    return SetItem(
        item_id=row_id(row, "key", "id") or digest(prompt, ()),
        prompt=prompt,
        responses=(),
        subset=str(names[0]).partition(":")[0] if len(names) == 1 else "several instructions",
        comparisons=(),
        told={"names": names, "settings": settings, "prompt": row["prompt"]},
    )


def follows_all(item: SetItem, answer: str) -> float:
    """Return 1 if the answer follows every instruction of the item, read strictly, else 0.

    Raises:
        CannotTellError: the rules do not know an instruction, or lack data about sentences.
    """
    rules: Any = _rules()
    asked = rules.InputExample(
        key=0,
        instruction_id_list=list(item.told["names"]),
        prompt=item.told["prompt"],
        kwargs=[one or {} for one in item.told["settings"]],
    )
    try:
        return float(rules.test_instruction_following_strict(asked, answer).follow_all_instructions)
    except KeyError as error:
        raise CannotTellError(f"the rules know no instruction {error}") from error
    except LookupError as error:  # of nltk
        raise CannotTellError("nltk's data `punkt_tab` is not installed, which finds sentences") from error


def _rules() -> object:
    import nltk

    # The rules fetch data of nltk when they are imported. A stage reaches no network.
    fetch, nltk.download = nltk.download, lambda *_, **__: False
    try:
        from lm_eval.tasks.ifeval import utils
    finally:
        nltk.download = fetch
    return utils


IFEVAL = SetKind(
    name="ifeval",
    title="IFEval",
    measure="prompts whose instructions are all followed",
    reader=partial(read_suite, layouts=[Layout(("prompt", "instruction_id_list", "kwargs"), _parse)]),
    value=follows_all,
    source="Zhou et al. 2023, arXiv:2311.07911; rules of lm-evaluation-harness, strict",
)
