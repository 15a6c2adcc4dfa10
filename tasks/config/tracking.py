"""The section of a run about the servers that show it."""

from pydantic import Field, ValidationInfo, field_validator

from containers.contracts.base import Frozen, Port
from tasks.config.logins import address_problem


class TrackingSection(Frozen):
    """Where curves and runs are shown."""

    mlflow_uri: str | None = Field(
        None, description="MLflow server, or a database that MLflow opens; null: a server is started here, on SQLite"
    )
    experiment: str = Field("rlhf-flows", min_length=1, description="MLflow experiment")
    mlflow_port: Port | None = Field(
        None,
        description="Port of the MLflow started here; null: 5000, or a free one where that is taken; 0: any free one",
    )
    prefect_api_url: str | None = Field(None, description="Prefect server; null: one is started here")
    prefect_login: bool = Field(
        True,
        description="Whether the Prefect started here requires a login, which is generated and stored in "
        "outputs/.servers/prefect/login. false: every user of the machine can use it, and run code as you",
    )
    prefect_port: Port | None = Field(
        None,
        description="Port of the Prefect started here; null: 4200, or a free one where that is taken; 0: any free one",
    )

    @field_validator("mlflow_uri", "prefect_api_url")
    @classmethod
    def _is_an_address_without_password(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None:
            return None
        if "@" in value.partition("://")[2].partition("/")[0]:
            raise ValueError(
                "holds a user or password, and the configuration is copied into the report. Leave it out here and set "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or PREFECT_API_AUTH_STRING."
            )
        problem = address_problem("mlflow" if info.field_name == "mlflow_uri" else "prefect", value)
        if problem is not None:
            raise ValueError(problem)
        return value
