"""The engine: one weighted FIFO semaphore with leases, whatever lock is built on it.

`ops` is what a flow can ask for; `flows`, `listing` and `past` are what to do, `records` how to
read what is found; `drivers` the two ways to do it, over connections as `exchange`, `pools` and
`forks` see them; `lease` a holding as its holder knows it, `hold` what an owner has by several,
and `renewal` what keeps them.
"""
