"""`make peers`: this package beside three others, on real workers, where things go wrong.

Each package has a module of its own that says how its users write a task; `bodies` has the
tasks, the same for all; `cases` are what is done to them; `run` has the workers. Whatever stands
in the table was measured in the run that printed it.
"""
