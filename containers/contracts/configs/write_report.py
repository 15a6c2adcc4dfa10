"""What write_report is told."""

from typing import Literal

from pydantic import Field

from containers.contracts.base import Frozen, Shown


class WriteReportConfig(Frozen):
    """The page at the end."""

    stage: Literal["write_report"] = "write_report"
    title: str = Field("RLHF run", description="Heading of the page")
    num_samples: Shown = Field(8, description="Samples shown of each evaluation, at most")
