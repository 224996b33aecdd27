"""The engine: one weighted FIFO semaphore with leases, whatever lock is built on it.

`ops` is what a flow can ask for, `flows` what to do, `drivers` the two ways to
do it, `lease` a holding as its holder knows it, `renewal` what keeps it.
"""
