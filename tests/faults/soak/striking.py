"""What is done to a round's clients, their connections and their server, while they are at it."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from django_redislock.lua import ACQUIRE, RELEASE, RENEW
from tests.servers import Node

from ..crew import Client
from ..events import Log
from ..proxy import Proxy, runs
from .mixing import LEASES


@dataclass(frozen=True)
class Target:
    """What there is to strike. Who lives for one round alone is killed and stopped."""

    node: Node
    proxy: Proxy
    mortals: Sequence[Client]
    log: Log
    random: Random

    def moment(self, longest: float) -> None:
        time.sleep(self.random.uniform(0, longest))

    def victim(self) -> Client:
        return self.random.choice([each for each in self.mortals if each.died is None])


def kill(target: Target) -> None:
    target.victim().kill()


def stop(target: Target) -> None:
    """For about as long as a lease."""
    victim = target.victim()
    victim.stop()
    target.moment(2 * max(LEASES))
    victim.resume()


def freeze(target: Target) -> None:
    with _away(target):
        target.proxy.freeze()
        target.moment(max(LEASES))
        target.proxy.thaw()


def delay(target: Target) -> None:
    target.proxy.delay(0.02)
    target.moment(max(LEASES))
    target.proxy.delay(0)


def refuse(target: Target) -> None:
    with _away(target):
        target.proxy.refuse()
        target.proxy.cut()
        target.moment(max(LEASES))
        target.proxy.accept()


def lose_a_reply(target: Target) -> None:
    target.proxy.drop_reply(runs(target.random.choice((ACQUIRE, RELEASE, RENEW))))


@contextmanager
def _away(target: Target) -> Iterator[None]:
    target.log.write("away")
    yield
    target.log.write("back")


STRIKES: dict[str, Callable[[Target], object]] = {
    "kill": kill,
    "stop": stop,
    "cut": lambda target: target.proxy.cut(),
    "freeze": freeze,
    "delay": delay,
    "refuse": refuse,
    "lose_a_reply": lose_a_reply,
    "flush_scripts": lambda target: target.node.ask("SCRIPT", "FLUSH"),
    "close_connections": lambda target: target.node.ask("CLIENT", "KILL", "TYPE", "normal"),
}


def strike(target: Target, seconds: float, number: int) -> None:
    """So many strikes, spread over that time. One of the mortals is left alive."""
    for _ in range(number):
        time.sleep(seconds / number * target.random.uniform(0.2, 0.8))
        living = sum(each.died is None for each in target.mortals)
        kind = target.random.choice([each for each in STRIKES if each != "kill" or living > 1])
        STRIKES[kind](target)
        if kind not in ("kill", "stop"):  # they note themselves
            target.log.write("fault", kind=kind)
