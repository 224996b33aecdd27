"""What becomes of locks when things go wrong: real servers, processes and faults, and a history
that is checked.

    python -m tests.faults                     all scenarios, 20 minutes at most
    python -m tests.faults --short             fewer runs: what CI does
    python -m tests.faults --only 1 --seed 7 --run 3 --keep
    python -m tests.faults --make redis-6.2     all servers of that make

A scenario happens in a `Setting` (`scenario`), which has servers, proxies and a `Crew` (`crew`) of
clients (`client`). Clients note what they do as `events`, and the harness notes the faults. At the
end the `checker` reads the events, and the result becomes a row of the `table`.

How to write a scenario
-----------------------

It is a function in a file of `scenarios/`; `scenarios/killed.py` is the model.

    @scenario(1, "SIGKILL of the holder", runs=300, short=24, operations=2, free_within=3.5)
    def holder(setting):
        node, crew = setting.node(), setting.crew()

        def body(run):
            client = run.client(crew, "first", node.url)
            client.ask("acquire", lock=run.lock, timeout=1)
            run.moment(0.2)
            client.kill()

        setting.each(body, lanes=8)

- Start what is slow (servers, the crew) once. `setting.use` enters any other context manager. The
  seed chooses the make of `setting.node`. At the end no key of the product may be left on it,
  except the index and the history, and no connection.
- `setting.each` runs `body` as often as is due, several at a time (`lanes`). Take all choices from
  `run.random`, which is the same for the same seed. Wait for events (`client.wait_for`,
  `wait_until`). An error in a run fails the row.
- `client.ask("acquire", lock=…, timeout=…)` waits for the answer, `client.start` does not. Clients
  can be asked for any function of `client.py`, or for one of yours by its path
  (``"tests.faults.scenarios.processes:tell"``), which is called with the client.
- `client.kill()`, `stop()` and `resume()` note themselves. Note any other fault with
  `run.fault("cut")` when it was truly injected: a row with too few faults or operations fails.
- `Shared(nodes)` lends each run a node of its own, for scenarios that break the server.
- Note `run.free()` when a lock becomes free for its waiters, `run.log.write("taken", lock=…)` when
  it is taken from its holder, and ``"away"`` and ``"back"`` while nobody can reach the server.
- Say `at_once=True` if nobody dies or is stopped and no server is away; `may_fail=(EXCLUSION,)`
  if the docs do not promise that here. `setting.notes` is for other measurements.
- One number may have several scenarios with different titles. Each is a row.
"""
