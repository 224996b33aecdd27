from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, models


@contextmanager
def table(model: type[models.Model]) -> Iterator[None]:
    """Create the table of a model without migrations."""
    with connection.schema_editor() as editor:
        editor.create_model(model)
    try:
        yield
    finally:
        with connection.schema_editor() as editor:
            editor.delete_model(model)
