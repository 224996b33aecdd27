"""Fault injection: real servers, processes and faults, and a history that a checker reads.

    python -m tests.faults                     all scenarios, 15 minutes at most
    python -m tests.faults --short             fewer runs, as in CI
    python -m tests.faults --only 1 --seed 7 --run 3 --keep

A scenario runs in a `Setting` (`scenario`) with servers, proxies and clients (`client`), which a
`Crew` (`crew`) forks. Clients log their actions as `events`, and the harness logs the faults. At
the end the `checker` reads the events, and the result becomes a row of the `table`.

How to write a scenario
-----------------------

A scenario is a function in a file of `scenarios/`. Use `scenarios/killed.py` as a model.

    @scenario(1, "SIGKILL of the holder", runs=300, short=16, operations=2, free_within=3.5)
    def holder(setting):
        node = setting.node()

        def body(run):
            [client] = run.clients(node, "first")
            client.ask("acquire", lock=run.lock, timeout=1)
            run.moment(0.2)
            client.kill()

        setting.each(body, lanes=8)

- Start slow resources once. `setting.use` enters any other context manager.
  The seed chooses the make of `setting.node`. At the end, the node must have no connection left,
  and no key of the package except the index and the history.
- `setting.each` runs `body` for each run, with several runs at a time (`lanes`). Take all random
  choices from `run.random`, which is the same for the same seed. Wait for events
  (`client.wait_for`, `wait_until`). An error in a run fails the row.
- `client.ask("acquire", lock=…, timeout=…)` waits for the answer; `client.start` does not. A
  client can run any function of `client.py`, and your own functions by path
  (``"tests.faults.test_planted:plant"``). The client is the first argument.
- `client.kill()`, `stop()` and `resume()` log themselves. Log any other fault with
  `run.fault("cut")` after it was really injected: a row with too few faults or operations fails.
- `Shared(nodes)` lends each run its own node, for scenarios that break the server.
- Log `run.free()` when a lock becomes free for its waiters, and ``"away"`` and ``"back"`` while
  the server is unreachable.
- Set `may_fail=(EXCLUSION,)` if the docs do not promise it. Add other measurements to
  `setting.notes`.
- Several scenarios with different titles can have the same number. Each is a row.
"""
