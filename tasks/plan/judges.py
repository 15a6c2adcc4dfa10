"""Memory and work of the models that judge a policy: other reward models, and language models."""

from collections.abc import Sequence

from containers.contracts.configs.parts.judges import EndpointJudge, Judge, JudgingModel, LanguageModelJudge
from containers.contracts.hardware import GpuProfile
from tasks.plan import estimates
from tasks.plan.estimates import Work
from tasks.plan.figures import PlanContext
from tasks.plan.inputs.model_shape import total_parameters

# Of the question that a language model gets, without its criteria, the conversation and the two answers.
_QUESTION_TOKENS = 150
_CHARACTERS_PER_TOKEN = 4.0


def judges_memory(context: PlanContext, judges: Sequence[Judge], profile: GpuProfile) -> dict[str, int]:
    """Bytes of each judging model on one device; those of unknown shape are left out."""
    found: dict[str, int] = {}
    for judge in judges:
        shape = context.judges.get(judge.name)
        if shape is None or not isinstance(judge, JudgingModel):
            continue
        is_language_model = isinstance(judge, LanguageModelJudge)
        total = total_parameters(shape.shape, head="language" if is_language_model else "score")
        devices = judge.vllm_gpus if isinstance(judge, LanguageModelJudge) else profile.tensor_parallel
        found[f"judge {judge.name}"] = estimates.inference_memory(total, profile) // devices
    return found


def judges_work(
    context: PlanContext,
    judges: Sequence[Judge],
    *,
    num_pairs: float,
    prompt_tokens: float,
    answer_tokens: float,
    num_processes: int,
) -> Work:
    """Work of comparing so many pairs: both conversations are scored, or read in one question in both orders."""
    found = Work()
    for judge in judges:
        shape = context.judges.get(judge.name)
        if shape is None:
            continue
        of_each = prompt_tokens + answer_tokens
        if isinstance(judge, LanguageModelJudge):
            of_each += answer_tokens + _QUESTION_TOKENS + len(judge.criteria) / _CHARACTERS_PER_TOKEN
        found += estimates.forward_work(
            shape.shape, context.profile, tokens=2 * num_pairs * of_each, num_processes=num_processes
        )
    return found


def uncounted_judges(context: PlanContext, judges: Sequence[Judge]) -> str:
    """A clause that names the judges whose time is unknown; empty if there is none.

    People are none of them: the run waits for them without working.
    """
    names = [
        judge.name
        for judge in judges
        if isinstance(judge, EndpointJudge) or (isinstance(judge, JudgingModel) and judge.name not in context.judges)
    ]
    return f"without the time of judge {', '.join(names)}, which is not known here" if names else ""
