"""Whether a judge behind an address can be asked, before any GPU hour is spent."""

from functools import partial

from containers.contracts.configs.parts.judges import EndpointJudge
from containers.contracts.records import CheckFinding
from tasks.config.errors import near_match
from tasks.judges.endpoint import Endpoint, EndpointDownError, EndpointError, judge_key


def endpoint_finding(judge: EndpointJudge) -> CheckFinding:
    """Whether the address answers, takes the key, and offers the model."""
    row = partial(CheckFinding, name=f"judge {judge.name}", wanted=f"{judge.model} at {judge.url}")
    advice = "Start the judge, or correct url, model and key in evaluate_policy.judges."
    try:
        models = Endpoint(judge, judge_key(judge)).models()
    except EndpointDownError as error:
        return row(found=str(error), verdict="failure", advice=advice)
    except EndpointError as error:  # some addresses have no list
        return row(found=f"answers, and {error}", verdict="warning", advice="Whether it has the model is not known.")
    if judge.model not in models:
        return row(found=f"no such model. {near_match(judge.model, models)}".rstrip(), verdict="failure", advice=advice)
    return row(found=f"answers, and has {judge.model}", verdict="ok")
