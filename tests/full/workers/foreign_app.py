"""A Celery app of a project that does not use this package.

`celery -A tests.full.workers.foreign_app worker`.
"""

import os

from celery import Celery

app = Celery("tests.foreign", set_as_current=False)
app.conf.update(
    broker_url=os.environ["FOREIGN_BROKER"],
    result_backend=os.environ["FOREIGN_RESULTS"],
    broker_connection_retry_on_startup=True,
)


@app.task(name="tests.full.workers.ended_app.ready")
def ready() -> int:
    return os.getpid()
