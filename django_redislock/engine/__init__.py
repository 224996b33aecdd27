"""The engine: one weighted FIFO semaphore with leases, on which all lock types are built.

`operations` has what a flow can ask for. `protocol`, `queries` and `history` are the flows, and
`store` and `parsing` translate to and from the scripts. `runners` performs operations over
`transport`, and `inbox` waits for grants. `registry` has what a process holds, and `renewer` keeps
it. docs/project/architecture.md describes each module.
"""
