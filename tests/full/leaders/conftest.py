"""Which tests of this folder can run."""

from importlib.util import find_spec

# django-celery-beat supports a new version of Django some months later.
collect_ignore = [] if find_spec("django_celery_beat") else ["test_database_beats.py"]
