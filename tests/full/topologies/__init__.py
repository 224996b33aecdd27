"""One suite of tests that locks have to pass wherever they live.

`places` makes Django's settings of what is told of the servers, `topologies` starts the servers,
and `test_conformance` is the suite. ``python -m tests.full.topologies.clients`` runs it with other
releases of redis-py.
"""
