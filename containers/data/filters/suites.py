"""The prompts of the suites that will judge a model, so that no model trains on them."""

from containers.contracts.configs.parts.row_filters import RowFilters
from containers.contracts.registries import BENCHMARKS
from containers.data.filters.contamination import SuitePrompt
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError


def suite_prompts(context: StageContext, config: RowFilters) -> dict[str, list[SuitePrompt]]:
    """Return the prompts of the suites; none if `contamination` is off.

    Raises:
        BadConfigError: the benchmark of a suite is not known.
        BadDataError: a suite cannot be read.
    """
    if config.contamination == "off":
        return {}
    found = {}
    for suite in config.suites:
        if suite.benchmark not in BENCHMARKS:
            raise BadConfigError(
                f"The suite `{suite.name}` names the benchmark `{suite.benchmark}`, which is not known. "
                f"Known: {', '.join(BENCHMARKS)}."
            )
        rows = BENCHMARKS[suite.benchmark].read(context.input_path(f"suite_{suite.name}"))
        found[suite.name] = [SuitePrompt(suite.name, item.item_id, item.line, item.prompt) for item in rows.items]
    return found
