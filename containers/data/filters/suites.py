"""The prompts of the suites and standard sets that will judge a model, so that no model trains on them."""

from containers.contracts.configs.parts.row_filters import RowFilters
from containers.contracts.registries import BENCHMARKS, STANDARD_SETS
from containers.data.filters.contamination import SuitePrompt
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError


def suite_prompts(context: StageContext, config: RowFilters) -> dict[str, list[SuitePrompt]]:
    """Return the prompts of suites and standard sets; none if `contamination` is off.

    Raises:
        BadConfigError: the benchmark of a suite is not known.
        BadDataError: a suite cannot be read.
    """
    if config.contamination == "off":
        return {}
    found = {}
    for suite in config.suites:
        known = BENCHMARKS if suite.benchmark in BENCHMARKS else STANDARD_SETS
        if suite.benchmark not in known:
            raise BadConfigError(
                f"The suite `{suite.name}` names the benchmark `{suite.benchmark}`, which is not known. "
                f"Known: {', '.join((*BENCHMARKS, *STANDARD_SETS))}."
            )
        rows = known[suite.benchmark].read(context.input_path(f"suite_{suite.name}"))
        found[suite.name] = [SuitePrompt(suite.name, item.item_id, item.line, item.prompt) for item in rows.items]
    return found
