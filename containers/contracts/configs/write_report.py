"""Configuration of write_report."""

from typing import Literal

from pydantic import Field

from containers.contracts.base import Frozen, Shown


class WriteReportConfig(Frozen):
    """Settings of the page that a run ends with."""

    stage: Literal["write_report"] = "write_report"
    title: str = Field("RLHF run", description="Heading of the page")
    num_samples: Shown = Field(8, description="Most samples shown of each evaluation")
