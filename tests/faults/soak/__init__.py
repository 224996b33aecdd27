"""The soak: everything at once, for as long as one likes, and nothing grows.

    python -m tests.faults.soak --minutes 10       make soak ARGS="--minutes 10"

Lasting processes use locks of all kinds, in threads, tasks and greenlets (`mixing`), beside others
that live for one round and are killed and stopped; meanwhile the server forgets its scripts and
closes connections, a proxy cuts, freezes and loses replies, and an operator lists and forces
(`running`). After each round all rest, and are measured: memory, objects, threads and
descriptors of each lasting process; memory, keys and connections of the server. What the rounds'
clients noted is read by the `checker`. At the end each row of measures has to be flat (`running`).
"""
