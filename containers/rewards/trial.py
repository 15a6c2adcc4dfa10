"""The trial of rewards before training: do outcomes tell right answers from wrong ones, on the run's own prompts?

A verifier that cannot read the reference answers, or that takes an empty completion for right, would train a policy for
hours on nothing.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.names import REWARD_TRIAL_FILE
from containers.distributed.ranks import is_first_rank
from containers.harness.context import StageContext
from containers.harness.errors import BadDataError
from containers.rewards.base import Answered, StartedTerm
from containers.rollouts.generate import Completion
from containers.rollouts.prompts import PolicyPrompt

_SHOWN, _SHOWN_CHARACTERS = 3, 60


@dataclass(frozen=True)
class TriedKind:
    """Completions of one kind, tried with one term.

    Attributes:
        kind: what the completions are, for example `the reference answer`.
        wants_right: whether they should count as right.
        missed: those that did not count as they should: the prompt's id, its answer, what it was given, and why.
    """

    term: str
    kind: str
    wants_right: bool
    count: int
    missed: tuple[dict[str, str], ...]

    @property
    def share(self) -> float:
        """Share of the completions that count as they should."""
        return 1 - len(self.missed) / self.count


def try_rewards(
    context: StageContext,
    config: TrainPolicyConfig,
    started: Sequence[StartedTerm],
    prompts: Sequence[PolicyPrompt],
    *,
    opening: str,
) -> None:
    """Try each outcome on right and wrong completions of some prompts; write the results, and refuse a bad one.

    Raises:
        BadDataError: prompts lack the answer that a term needs, or a term misses the configured minimum.
    """
    _require_answers(started, prompts)
    wanted = config.reward_trial.num_prompts
    if not wanted:
        return
    some = prompts[:: max(1, len(prompts) // wanted)][:wanted]
    tried = [kind for one in started if one.term.is_outcome for kind in _tried(one, some, opening)]
    if not tried:
        return
    if is_first_rank():
        rows = [{**vars(kind), "share": kind.share, "minimum": config.reward_trial.minimum} for kind in tried]
        (context.output / REWARD_TRIAL_FILE).write_text(json.dumps(rows, indent=2), encoding="utf-8")
    if bad := [kind for kind in tried if kind.share < config.reward_trial.minimum]:
        raise BadDataError(
            f"The trial of the rewards failed; at least {config.reward_trial.minimum:.0%} are wanted "
            f"(train_policy.reward_trial.minimum), of {len(some)} prompts:\n"
            + "\n".join(map(_line, bad))
            + "\nCorrect the answers or the reward, or leave such prompts out."
        )
    shares = ", ".join(f"{kind.term}: {kind.kind} {kind.share:.0%}" for kind in tried)
    context.recorder.note(f"Trial of the rewards on {len(some)} prompts; as wanted count {shares}.")


def _require_answers(started: Sequence[StartedTerm], prompts: Sequence[PolicyPrompt]) -> None:
    needing = [one.term.name for one in started if one.term.needs_answer]
    without = [prompt.prompt_id for prompt in prompts if not prompt.answer]
    if needing and without:
        raise BadDataError(
            f"{len(without):,} of {len(prompts):,} prompts have no reference answer, which {', '.join(needing)} "
            f"(train_policy.rewards) compare{'s' if len(needing) == 1 else ''} completions with; the first is "
            f"{without[0]}. Use prompts with answers, or other rewards."
        )


def _tried(one: StartedTerm, prompts: Sequence[PolicyPrompt], opening: str) -> Iterator[TriedKind]:
    """Yield for each kind of completion how the term judged it."""
    kinds: list[tuple[str, bool, list[tuple[PolicyPrompt, str]]]] = [
        ("no text", False, [(prompt, "") for prompt in prompts])
    ]
    if one.term.needs_answer:
        form = one.term.answer_form
        answers = [prompt.answer or "" for prompt in prompts]
        others = [
            next((answer for answer in answers[place + 1 :] + answers[:place] if answer not in own), None)
            for place, own in enumerate((prompt.answer or "", *prompt.other_answers) for prompt in prompts)
        ]
        wrong = [(prompt, other) for prompt, other in zip(prompts, others, strict=True) if other is not None]
        kinds += [
            ("the prompt itself", False, [(prompt, prompt.conversation[-1]["content"]) for prompt in prompts]),
            (
                "the answer of another prompt",
                False,
                [(prompt, form.replace("{answer}", text)) for prompt, text in wrong],
            ),
            (
                "the reference answer",
                True,
                [(prompt, form.replace("{answer}", text)) for prompt, text in zip(prompts, answers, strict=True)],
            ),
        ]
    for kind, wants_right, cases in kinds:
        if not cases:
            continue
        answered = [
            Answered.of(prompt, Completion((), (), text, ended=True), opening=opening) for prompt, text in cases
        ]
        values, _, reasons = one.scored(answered)
        missed = [
            {"prompt_id": prompt.prompt_id, "answer": prompt.answer or "", "completion": text, "reason": reason}
            for (prompt, text), value, reason in zip(cases, values, reasons, strict=True)
            if (value > 0) is not wants_right
        ]
        yield TriedKind(one.term.name, kind, wants_right, len(cases), tuple(missed))


def _line(kind: TriedKind) -> str:
    told = "right" if kind.wants_right else "wrong"
    shown = "; ".join(_shown(row) for row in kind.missed[:_SHOWN])
    return f"  {kind.term}: {kind.kind} counts as {told} in {kind.share:.0%} of {kind.count}. Others: {shown}."


def _shown(row: dict[str, Any]) -> str:
    why = f", {row['reason']}" if row["reason"] else ""
    completion = " ".join(row["completion"].split())
    cut = f"{completion[:_SHOWN_CHARACTERS]}…" if len(completion) > _SHOWN_CHARACTERS else completion
    return f"{row['prompt_id'][:12]} (answer `{row['answer'][:_SHOWN_CHARACTERS]}`, completion `{cut}`{why})"
