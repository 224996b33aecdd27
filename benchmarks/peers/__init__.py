"""`make peers`: this package beside others, in real processes, where things go wrong.

`bodies` has the Celery tasks, the same for all packages. `run` has the workers and what is done to
them. The packages that are locks are in `locks`. Whatever stands in the tables was measured in the
run that printed them. With `--write`, they replace the tables of the page.
"""
