"""What judges a policy, in training and afterwards: models of rewards and judges, and what judges wrote elsewhere."""

from collections.abc import Mapping
from typing import Any

from containers.contracts.configs.parts.judges import EndpointJudge, JudgingModel, LanguageModelJudge
from containers.contracts.digests import file_sha256
from containers.contracts.names import JUDGE_INPUT
from containers.contracts.spec import ArtifactRef, StageInput
from tasks.config.run import RunConfig
from tasks.config.sources import model_source
from tasks.display import current_display
from tasks.judges.people import peoples_input
from tasks.judges.verdicts import VERDICTS_FOLDER, collected, known_verdicts
from tasks.pipeline.further_reward_models import certificate_file, further_model_inputs
from tasks.pipeline.inputs import model_input
from tasks.pipeline.reward_models import known_reward_model, named_reward_model


def training_inputs(run: RunConfig, made: Mapping[str, Any], ask_hub: bool) -> tuple[StageInput, ...]:
    """What train_policy reads beside the run's own models: further reward models, and those of judges that look.

    Args:
        ask_hub: as in `filter_dataset_inputs`.

    Raises:
        SourceError: a model is not available.
        UnusableSourceError: a certificate is named, and there is none.
    """
    looking = (judge for judge in run.judges_of_evidence if isinstance(judge, JudgingModel))
    models = (item for judge in looking for item in _judge_inputs(judge, ask_hub))
    return (*further_model_inputs(run, ask_hub), *models)


def judge_model_inputs(run: RunConfig) -> tuple[StageInput, ...]:
    """The models of the judges.

    Raises:
        SourceError: a model is not available.
    """
    return tuple(item for judge in run.judging_models for item in _judge_inputs(judge, ask_hub=True))


def judging_inputs(run: RunConfig, made: Mapping[str, Any], ask_hub: bool) -> tuple[StageInput, ...]:
    """The further reward models of the training, the models of the judges, and what judges behind addresses wrote.

    Args:
        ask_hub: as in `filter_dataset_inputs`; also whether judges behind addresses get their questions now.

    Raises:
        SourceError: a model or a judge is not available.
        UnusableSourceError: a certificate is named, and there is none.
    """
    models = (item for judge in run.judging_models for item in _judge_inputs(judge, ask_hub))
    written = (_written(judge, made["completions"], run, ask_hub) for judge in run.asked_judges)
    folder = run.store_dir.absolute() / VERDICTS_FOLDER
    chosen = (peoples_input(judge, made["completions"], folder, seed=run.run.seed) for judge in run.people_judges)
    return (*further_model_inputs(run, ask_hub), *models, *written, *chosen)


def chat_judges_inputs(run: RunConfig, made: Mapping[str, Any], ask_hub: bool) -> tuple[StageInput, ...]:
    """The same for evaluate_sets, of the judges that compare what start model and policy answered to open questions.

    Raises:
        SourceError: a model or a judge is not available.
    """
    if run.answer_sets is None or not run.answer_sets.has_chats or not run.has_policy:
        return ()
    models = (item for judge in run.judging_models for item in _judge_inputs(judge, ask_hub))
    return (*models, *(_written(judge, made["answers"], run, ask_hub) for judge in run.asked_judges))


def _written(judge: EndpointJudge, completions: ArtifactRef, run: RunConfig, ask_hub: bool) -> StageInput:
    """What a judge behind an address wrote about the pairs of an artifact; it answers now, with `ask_hub`."""
    folder = run.store_dir.absolute() / VERDICTS_FOLDER
    if ask_hub:
        return collected(judge, completions, folder, say=current_display().say)
    return known_verdicts(judge, completions, folder)


def _judge_inputs(judge: JudgingModel, ask_hub: bool) -> tuple[StageInput, ...]:
    role = f"{JUDGE_INPUT}_{judge.name}"
    if isinstance(judge, LanguageModelJudge):
        return (model_input(model_source(judge), name=role, ask_hub=ask_hub, key=f"judge {judge.name}"),)
    find = named_reward_model if ask_hub else known_reward_model
    model = find(model_source(judge)).model_copy(update={"name": role})
    if judge.certificate is None:
        return (model,)
    file = certificate_file(judge.certificate)
    certificate = StageInput(
        name=f"{role}_certificate",
        path=str(file.parent),
        digest=f"sha256:{file_sha256(file)}",
        origin=judge.certificate,
    )
    return (model, certificate)
