from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, models


@contextmanager
def table(model: type[models.Model]) -> Iterator[None]:
    """The table of a model that is in no migration."""
    with connection.schema_editor() as editor:
        editor.create_model(model)
    yield
    with connection.schema_editor() as editor:
        editor.delete_model(model)
