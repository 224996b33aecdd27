"""`make peers`: this package beside others, in real processes, where things go wrong.

Of the packages for Celery `apps` says how their users write a task; `bodies` has the tasks, the same for all; `cases` are what is done to them; `run` has the workers.
The packages that are locks are in `locks`. Whatever stands in the tables was measured in the run
that printed them. With `--write`, they replace the tables of the page.
"""
