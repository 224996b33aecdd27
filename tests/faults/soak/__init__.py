"""The soak test: all faults at once, for any length of time. No resource may grow.

    python -m tests.faults.soak --minutes 10       make soak ARGS="--minutes 10"

Permanent processes use all types of locks, in threads, tasks and greenlets (`mixing`). Other
processes live for one round and are killed and stopped. The server forgets scripts and closes
connections, a proxy cuts, freezes and loses replies, and an operator lists and force-releases
locks (`running`). After each round, all clients pause for the measurements: memory, objects,
threads and descriptors of each permanent process; memory, keys and connections of the server. The
`checker` reads the events of each round. At the end, each series of measurements must be flat.
"""
