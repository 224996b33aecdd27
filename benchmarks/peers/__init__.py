"""`make peers`: this package beside others, in real processes, where things go wrong.

`apps` says how the users of each package for Celery write a task. `bodies` has the tasks, the same
for all. `cases` are what is done to them, and `run` has the workers. The packages that are locks
are in `locks`. Whatever stands in the tables was measured in the run that printed them. `table`
puts them on the docs' page, and a shorter form into the README.
"""
