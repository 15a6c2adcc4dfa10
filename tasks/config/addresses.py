"""What an address of a Prefect or MLflow server may look like. Pure."""

from urllib.parse import urlsplit

# Databases that MLflow opens itself, each also with a driver: `postgresql+psycopg2`.
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_ADVICE = {
    "prefect": "Give the address of its API, such as http://host:4200/api, or leave it out to have one started here.",
    "mlflow": "Give a server, such as http://host:5000, or a database, such as sqlite:////data/mlflow.db, or leave it "
    "out to have one started here.",
}


def address_problem(name: str, address: str) -> str | None:
    """Why this cannot be the address of `prefect` or `mlflow`, and what to do; None where it can.

    A folder is none: MLflow's store of plain files takes no new runs.
    """
    try:
        parts = urlsplit(address)
        if parts.scheme in ("http", "https"):
            found = "names no host" if not parts.hostname else "names port 0" if parts.port == 0 else None
        elif name == "mlflow" and (parts.scheme.partition("+")[0] in _DATABASES or _is_databricks(address)):
            found = None
        else:
            found = f"is no http(s) address{' and no database' if name == 'mlflow' else ''}"
    except ValueError as error:
        found = f"is no address ({error})"
    return None if found is None else f"`{address}` {found}. {_ADVICE[name]}"


def _is_databricks(address: str) -> bool:
    return address.partition(":")[0] in ("databricks", "databricks-uc")
