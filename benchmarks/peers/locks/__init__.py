"""The locks of five packages under faults, each in its own processes.

`user` has the usage of each package, and the process that uses it. `place` has the environment of
a case: a server, and a proxy for each user. `cases` has the cases.
"""
