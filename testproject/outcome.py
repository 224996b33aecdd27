"""What became of a task."""

from typing import Any

from celery import Task
from celery.states import READY_STATES

from .stage import Failed


class Sent:
    """A task that was sent to the workers.

    It asks the result backend by the task's id, and keeps no `AsyncResult`: those
    outlive their use in reference cycles, and each of them, when it is collected
    after the server has gone, looks for the server for 20 seconds.
    """

    def __init__(self, task: "Task[..., Any]", *args: Any, **kwargs: Any) -> None:
        self.id = str(task.delay(*args, **kwargs).id)
        self._backend = task.backend

    def has_ended(self) -> bool:
        return self._backend.get_state(self.id) in READY_STATES

    def answer(self) -> Any:
        """What it returned; raises `Failed` if it raised."""
        answer = self._backend.get_result(self.id)
        if isinstance(answer, BaseException):
            raise Failed(f"task {self.id} ended with {answer!r}")
        return answer
