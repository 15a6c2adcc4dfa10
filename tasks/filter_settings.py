"""What filter_dataset must know that stands elsewhere in a run: the mixture's weights, and the suites to keep out."""

from collections.abc import Sequence

from containers.contracts.filter_config import ReferenceRewardModel
from containers.contracts.stage_configs import FilterDatasetConfig, HeldOutSuite, SourceShare, SuiteFile
from tasks.source_config import DatasetSource


def whole_filter_config(
    config: FilterDatasetConfig, dataset: DatasetSource, suites: Sequence[SuiteFile]
) -> FilterDatasetConfig:
    """The stage's configuration with names and weights of the mixture and, unless nobody looks for them, the suites.

    What a gate demands of a suite, and where suites and reference reward model lie, is left out: none changes what the
    stage does. Their contents count as the stage's inputs.
    """
    looked_for = suites if config.contamination != "off" else ()
    asked = config.polarity.reference_reward_model is not None
    return config.model_copy(
        update={
            "mixture": tuple(SourceShare(name=source.name, weight=source.weight) for source in dataset.mixture),
            "polarity": config.polarity.model_copy(
                update={"reference_reward_model": ReferenceRewardModel() if asked else None}
            ),
            "suites": tuple(HeldOutSuite(name=suite.name, benchmark=suite.benchmark) for suite in looked_for),
        }
    )
