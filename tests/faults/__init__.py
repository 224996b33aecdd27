"""What becomes of locks where things go wrong: real servers, real processes, real faults, a
history that is checked, and a table of what was found.

    python -m tests.faults                     all scenarios, 20 minutes at most
    python -m tests.faults --short             fewer runs: what CI does
    python -m tests.faults --only 1 --seed 7 --run 3 --keep
    python -m tests.faults --make redis-6.2     all servers of that make

A scenario happens in a `Setting` (`scenario`), which gives it servers, proxies and a `Crew`
(`crew`) of clients (`client`). These note what they do, and the harness what it did to them, as
events (`events`). When it is over the `checker` reads them, and makes of them a row of the
`table`.

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

- What is slow to start (servers, the crew) is started once, and `setting.use` takes any other
  context manager. `setting.node` is of a make that the seed chooses, of all or of those that it is
  told; the row tells it. It is looked over at the end: no key of the product (but index and
  history) and no connection may be left; `setting.look_over` says so of other nodes.
- `setting.each` lets `body` happen as often as is due, several at a time (`lanes`). Each run has
  `run.lock`, a name of its own, and `run.random`, which is the same for the same seed: take all
  choices from there (`run.moment(longest)` lets a random time pass). Wait for events
  (`client.wait_for`, `wait_until`), with an error if they don't come. An error in a run fails the
  row.
- A client does what it is told: `client.ask("acquire", lock=…, timeout=…)` waits for the answer,
  `client.start` does not (then `client.answer()`). It can be told any function of `client.py`
  (`acquire`, `check`, `write`, `release`, `loop`), or one of your own by its path:
  ``client.ask("tests.faults.scenarios.forks:fork_and_release", lock=…)`` calls
  ``fork_and_release(client, lock=…)`` there, in which `client.log.write` notes events. Options
  that are not of `acquire` itself are those of the lock; `kind` is the manager's method
  (``"semaphore"``).
- `client.kill()`, `stop()` and `resume()` note themselves. Note any other fault with
  `run.fault("cut")`, when it was truly injected: a row with fewer faults or operations than the
  scenario's `faults` and `operations` a run fails, so nothing can pass because nothing happened.
- `run.info(node)` is how the run's lock stands at the server; `setting.shared(nodes)` hands each
  run a node of its own (``with shared.one() as node``), for scenarios that break the server.
- What a client raises is noted as its error. A row fails for errors of other types than the
  scenario's `errors`, but for being told that a lock is not one's own, which is judged by whether
  it was.
- When a run's clients are gone, it is noted who still holds its lock, and whether what is counted
  there is what there is: phantom locks and double counts fail. Note others that you find with
  ``run.log.write("phantom", lock=…)`` and ``"double"``.
- Note `run.free()` when a lock comes free for who waits, `run.log.write("taken", lock=…)` when one
  is taken from its holder (by force, or with the server's data; without `lock`: all), and
  ``"away"`` and ``"back"`` around the time in which a server can't be reached by anybody.
- Where nobody dies or stands still and no server is away, say so by `at_once=True`: what is
  allowed for those, 3 seconds beside a free lock, would hide notifications that are lost.
- Where the docs do not promise something, `may_fail=(EXCLUSION,)` says so: it is counted, and no
  failure. Stale writes that the fence lets through, fencing tokens that don't grow, and what is
  left behind fail everywhere. `setting.notes.append(...)` is for what else was measured.
- One number may have several scenarios, each a row, told apart by their titles.
"""
