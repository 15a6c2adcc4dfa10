"""The prompts of the suites that the reward model will be judged by, for filter_dataset to keep out of the training."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from containers.contracts.configs.filter_dataset import FilterDatasetConfig, HeldOutSuite
from containers.contracts.registries import BENCHMARKS
from containers.data.filters.contamination import SuitePrompt
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError


def suite_prompts(context: StageContext, config: FilterDatasetConfig) -> dict[str, list[SuitePrompt]]:
    """The prompts of the suites that the reward model will be judged by; none where nobody looks for them."""
    if config.contamination == "off":
        return {}
    paths = {suite.name: Path(context.input_path(f"suite_{suite.name}")) for suite in config.suites}
    return read_suite_prompts(config.suites, paths)


def read_suite_prompts(suites: Sequence[HeldOutSuite], paths: Mapping[str, Path]) -> dict[str, list[SuitePrompt]]:
    """The prompts of each suite, read as the evaluation reads them.

    Raises:
        BadConfigError: a benchmark that is not known.
        BadDataError: a suite that cannot be read.
    """
    found = {}
    for suite in suites:
        if suite.benchmark not in BENCHMARKS:
            raise BadConfigError(
                f"The suite `{suite.name}` is of the benchmark `{suite.benchmark}`, which is not known. "
                f"Known: {', '.join(BENCHMARKS)}."
            )
        rows = BENCHMARKS[suite.benchmark].read(paths[suite.name])
        found[suite.name] = [SuitePrompt(suite.name, item.item_id, item.line, item.prompt) for item in rows.items]
    return found
