"""A stage as a task in Prefect's graph: with the stage's name, and in state `Reused` if it made nothing new."""

import functools
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, StateType
from prefect.context import TaskRunContext

from containers.contracts.names import StageName
from tasks.config.gates import PersonAwaitedError
from tasks.run.state import PipelineRun

P = ParamSpec("P")
R = TypeVar("R")


class StageTask(Generic[P, R]):
    """Decorates the function that runs the stage of its name: the task of Prefect that calls it.

    Raises ValueError if no stage has that name.

    Attributes:
        fn: the function itself, for callers outside a flow.
    """

    def __init__(self, function: Callable[Concatenate[PipelineRun, P], R]) -> None:
        self.fn = function
        self.stage = StageName(function.__name__)
        functools.update_wrapper(self, function)
        # The store finds artifacts by their keys and verifies them; Prefect caches nothing.
        self._task = task(
            name=self.stage.value, task_run_name=self.stage.value, cache_policy=NO_CACHE, persist_result=False
        )(self._with_state())

    def __call__(self, run: PipelineRun, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function as a task of Prefect; return its result.

        Raises:
            PersonAwaitedError: a person must do something first; the task ends in state `Waiting`.
        """
        returned = cast("Any", self._task)(run, *args, **kwargs)
        result = returned.result() if isinstance(returned, State) else returned
        if isinstance(result, PersonAwaitedError):
            raise result
        return cast("R", result)

    def _with_state(self) -> Callable[..., R | State[R]]:
        @functools.wraps(self.fn)
        def call(run: PipelineRun, *args: P.args, **kwargs: P.kwargs) -> R | State[R]:
            try:
                made = self.fn(run, *args, **kwargs)
            except PersonAwaitedError as error:
                if TaskRunContext.get() is None:
                    raise
                # Neither a success nor a failure; `__call__` raises it again.
                return State(type=StateType.COMPLETED, name="Waiting", message=str(error), data=cast("R", error))
            record = run.record_of(self.stage)
            if record is None or record.status != "reused" or TaskRunContext.get() is None:
                return made
            return State(type=StateType.COMPLETED, name="Reused", message=_sentence(record.message), data=made)

        return call


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""
