"""`make peers`: compare this package with others under faults, in real processes.

`bodies` has the Celery tasks, which are the same for all packages. `run` has the workers and their
faults. `locks` has the packages that provide locks. All cells of the tables are measured in the
same run. `--write` replaces the tables of the page.
"""
