"""Wait for a task, and read its result."""

from typing import Any

from celery import Task
from celery.states import READY_STATES

from .stage import DemoError


class SentTask:
    """A task that was sent to the workers.

    It asks the result backend by task id instead of keeping an `AsyncResult`. An
    `AsyncResult` stays alive in a reference cycle. If it is collected after the server
    has stopped, it tries to connect for 20 seconds.
    """

    def __init__(self, task: "Task[..., Any]", *args: Any, **kwargs: Any) -> None:
        self.id = str(task.delay(*args, **kwargs).id)
        self._backend = task.backend

    def has_ended(self) -> bool:
        return self._backend.get_state(self.id) in READY_STATES

    def result(self) -> Any:
        """Return the task's result. Raises `DemoError` if the task raised."""
        result = self._backend.get_result(self.id)
        if isinstance(result, BaseException):
            raise DemoError(f"task {self.id} ended with {result!r}")
        return result
