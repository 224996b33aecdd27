"""Who listens to what happens, and who counts it."""

from typing import Any

from django.dispatch import receiver
from prometheus_client import CollectorRegistry

from django_redislock import BaseLock, metrics
from django_redislock.signals import (
    lock_acquired,
    lock_failed,
    lock_force_released,
    lock_lost,
    lock_refused,
    lock_released,
    lock_waiting,
    task_replaced,
    task_skipped,
)


@receiver([lock_acquired, lock_refused, lock_failed, lock_released, lock_waiting])
def note(sender: type[BaseLock], lock: BaseLock, name: str, **about: Any) -> None:
    print(lock.fence_token, name, about)


@receiver(lock_lost)
def alarm(name: str, token: str, fence_token: int, **about: Any) -> None:
    print(name, token, fence_token)


@receiver(lock_force_released)
def audit(name: str, tokens: tuple[str, ...], **about: Any) -> None:
    print(name, tokens)


@receiver([task_skipped, task_replaced])
def count(name: str, task_id: str | None, **about: Any) -> None:
    print(name, task_id)


registry = CollectorRegistry()
metrics.install(
    registry=registry, using=["default"], labels={"area": lambda name: name.partition(":")[0]}
)
registry.register(metrics.Servers())
