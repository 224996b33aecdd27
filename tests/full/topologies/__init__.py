"""One suite of tests that locks must pass on each deployment.

`places` makes Django's settings from a description of the servers, `topologies` starts servers,
and `test_conformance` is the suite. ``python -m tests.full.topologies.clients`` runs it with other
releases of redis-py.
"""
