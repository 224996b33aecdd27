"""Check that the fast tests find faults that are planted into the Python code.

``make mutants`` plants each fault of `mutants.toml` into a copy of the package and runs the test
modules that have to find it. The faults in the Lua scripts are in `tests/fast/unit/mutants.toml`,
and `tests/fast/unit/test_mutants.py` checks them.
"""
