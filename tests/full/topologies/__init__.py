"""One suite of tests that locks must pass on each deployment: `topologies` starts its servers, and
`test_conformance` is the suite.
"""
