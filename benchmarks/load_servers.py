"""Fill databases of Prefect and MLflow with thousands of runs, for `benchmarks.load`.

The rows go straight into the databases of servers that do not run, through the servers' own table definitions; their
APIs would take hours. The rows are those of a run of the demo: states of the run and of its tasks, artifacts, log
lines; figures, curves, parameters and tags.

    python -m benchmarks.load_servers prefect|mlflow DATABASE_URL --runs N

Each fills its database in its own process, since both servers read their settings when they are imported.
"""

import argparse
import asyncio
import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

STAGES = (
    "check_system",
    "filter_dataset",
    "build_base_model",
    "train_sft",
    "train_reward_model",
    "evaluate_reward_model",
    "train_policy",
    "sample_completions",
    "evaluate_policy",
    "write_report",
)
LOG_LINES, ARTIFACTS, CURVE_POINTS = 40, 10, 10
# Runs that the server shows as unfinished, while their processes are dead.
UNFINISHED = 3
_CHUNK = 500
_HOUR = timedelta(hours=1)

Row = dict[str, Any]


def _began(number: int, num_runs: int) -> datetime:
    """Return a run's start: the last began an hour ago, each other one a quarter of an hour before the next."""
    return datetime.now(UTC) - _HOUR - timedelta(minutes=15) * (num_runs - 1 - number)


def prefect_rows(num_runs: int, *, labels: dict[str, str], unfinished: int) -> Iterator[tuple[str, list[Row]]]:
    """Yield the name of a Prefect table and rows of it, in the order in which they refer to each other."""
    flow_id = uuid.uuid4()
    yield "Flow", [{"id": flow_id, "name": "rlhf", "tags": []}]
    for number in range(num_runs):
        yield from _flow_run(
            flow_id, number, began=_began(number, num_runs), labels=labels, is_open=number >= num_runs - unfinished
        )


def _flow_run(
    flow_id: uuid.UUID, number: int, *, began: datetime, labels: dict[str, str], is_open: bool
) -> Iterator[tuple[str, list[Row]]]:
    run_id = uuid.uuid4()
    words = (("PENDING", "Pending"), ("RUNNING", "Running")) + (() if is_open else (("COMPLETED", "Completed"),))
    states = _states(words, began, flow_run_id=run_id)
    timing = {"start_time": began, "end_time": None if is_open else began + _HOUR, "total_run_time": _HOUR}
    yield (
        "FlowRun",
        [
            {
                "id": run_id,
                "flow_id": flow_id,
                "name": f"demo-{number}",
                "parameters": {"config": {"run": {"name": f"demo-{number}", "seed": number}}},
                "tags": [f"run:demo-{number}", "cpu"],
                "labels": labels,
                "run_count": 1,
                **timing,
                **_last(states),
            }
        ],
    )
    yield "FlowRunState", states
    tasks, task_states = [], []
    for place, stage in enumerate(STAGES):
        task_id, at = uuid.uuid4(), began + _HOUR / len(STAGES) * place
        own = _states(
            (("PENDING", "Pending"), ("RUNNING", "Running"), ("COMPLETED", "Completed")), at, task_run_id=task_id
        )
        tasks.append(
            {
                "id": task_id,
                "flow_run_id": run_id,
                "name": stage,
                "task_key": f"{stage}-{flow_id}",
                "dynamic_key": "0",
                "tags": [],
                "run_count": 1,
                "start_time": at,
                "end_time": at + _HOUR / len(STAGES),
                "total_run_time": _HOUR / len(STAGES),
                **_last(own),
            }
        )
        task_states += own
    yield "TaskRun", tasks
    yield "TaskRunState", task_states
    yield (
        "Artifact",
        [
            {
                "key": f"figures-{place}",
                "type": "table",
                "data": json.dumps([{"figure": f"accuracy {row}", "value": row / 10} for row in range(8)]),
                "description": "Figures of a stage",
                "flow_run_id": run_id,
                "task_run_id": tasks[place % len(tasks)]["id"],
            }
            for place in range(ARTIFACTS)
        ],
    )
    yield (
        "Log",
        [
            {
                "name": "prefect.flow_runs",
                "level": 20,
                "flow_run_id": run_id,
                "task_run_id": tasks[line % len(tasks)]["id"],
                "message": f"step {line}: loss 0.{693 - line}, 12.3 pairs/s, 1.9 GiB",
                "timestamp": began + timedelta(seconds=line),
            }
            for line in range(LOG_LINES)
        ],
    )


def _states(words: tuple[tuple[str, str], ...], began: datetime, **of: uuid.UUID) -> list[Row]:
    return [
        {
            "id": uuid.uuid4(),
            "type": kind,
            "name": name,
            "timestamp": began + timedelta(seconds=place),
            "message": "",
            **of,
        }
        for place, (kind, name) in enumerate(words)
    ]


def _last(states: list[Row]) -> Row:
    state = states[-1]
    return {
        "state_id": state["id"],
        "state_type": state["type"],
        "state_name": state["name"],
        "state_timestamp": state["timestamp"],
        "expected_start_time": states[0]["timestamp"],
    }


async def fill_prefect(url: str, num_runs: int, *, labels: dict[str, str], unfinished: int = UNFINISHED) -> None:
    """Put the rows into a database that Prefect has set up before; the last `unfinished` runs have no end."""
    from prefect.server.database import orm_models
    from sqlalchemy import insert
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(url)
    waiting: dict[str, list[Row]] = {}
    async with engine.begin() as connection:

        async def flush() -> None:
            for table, rows in waiting.items():
                await connection.execute(insert(getattr(orm_models, table)), rows)
            waiting.clear()

        for count, (table, rows) in enumerate(prefect_rows(num_runs, labels=labels, unfinished=unfinished)):
            waiting.setdefault(table, []).extend(rows)
            if count % _CHUNK == 0:
                await flush()
        await flush()
    await engine.dispose()


def fill_mlflow(url: str, num_runs: int) -> None:
    """Put the rows into a database of MLflow: a parent run for each run, and one for each of its stages."""
    from mlflow.store.tracking.dbmodels import models
    from sqlalchemy import create_engine, insert

    engine = create_engine(url)
    with engine.begin() as connection:
        now = int(datetime.now(UTC).timestamp() * 1000)
        experiment = {
            "experiment_id": 1,
            "name": "rlhf-flows",
            "artifact_location": "mlflow-artifacts:/1",
            "lifecycle_stage": "active",
            "creation_time": now,
            "last_update_time": now,
        }
        connection.execute(insert(models.SqlExperiment), [experiment])
        for number in range(num_runs):
            for table, rows in _mlflow_rows(number, num_runs).items():
                connection.execute(insert(getattr(models, table)), rows)
    engine.dispose()


def _mlflow_rows(number: int, num_runs: int) -> dict[str, list[Row]]:
    began = int(_began(number, num_runs).timestamp() * 1000)
    parent = uuid.uuid4().hex
    found: dict[str, list[Row]] = {
        name: [] for name in ("SqlRun", "SqlMetric", "SqlLatestMetric", "SqlParam", "SqlTag")
    }
    for name in (f"demo-{number}", *STAGES[1:]):
        run_id = parent if name.startswith("demo-") else uuid.uuid4().hex
        found["SqlRun"].append(
            {
                "run_uuid": run_id,
                "name": name,
                "source_type": "UNKNOWN",
                "source_name": "",
                "entry_point_name": "",
                "user_id": "load",
                "status": "FINISHED",
                "start_time": began,
                "end_time": began + 3_600_000,
                "source_version": "",
                "lifecycle_stage": "active",
                "artifact_uri": f"mlflow-artifacts:/1/{run_id}/artifacts",
                "experiment_id": 1,
            }
        )
        tags = {"mlflow.runName": name, "rlhf.run": f"demo-{number}"} | (
            {} if run_id == parent else {"mlflow.parentRunId": parent}
        )
        found["SqlTag"] += [{"key": key, "value": value, "run_uuid": run_id} for key, value in tags.items()]
        found["SqlParam"] += [
            {"key": f"section.key_{place}", "value": str(place), "run_uuid": run_id} for place in range(20)
        ]
        for key in ("loss", "accuracy", "margin"):
            points = [
                {
                    "key": key,
                    "value": 1 / (step + 1),
                    "timestamp": began + step,
                    "step": step,
                    "is_nan": False,
                    "run_uuid": run_id,
                }
                for step in range(CURVE_POINTS)
            ]
            found["SqlMetric"] += points
            found["SqlLatestMetric"].append(points[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", choices=("prefect", "mlflow"))
    parser.add_argument("url")
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("--labels", type=json.loads, default={}, help="of Prefect's flow runs, as JSON")
    given = parser.parse_args()
    if given.server == "prefect":
        asyncio.run(fill_prefect(given.url, given.runs, labels=given.labels))
    else:
        fill_mlflow(given.url, given.runs)


if __name__ == "__main__":
    main()
