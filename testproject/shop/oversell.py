"""Buyers share one stock: read the number, write an order, and write the number minus one.

``python -m testproject.shop.oversell [--lock]`` is one process with four buyers. It prints
``ready``, and starts when it reads a line.
"""

import argparse
import contextlib
import threading
from contextlib import AbstractContextManager

import django
from django.conf import settings
from django.core.cache import cache
from redis import Redis

STOCK = "stock:teapot"
ORDERS = "testproject:orders"
BUYERS = 4


def fill(items: int) -> None:
    cache.set(STOCK, items, timeout=None)
    with ledger() as orders:
        orders.delete(ORDERS)


def sold() -> int:
    """Return the number of orders written. The ledger is a Redis list, which loses no order."""
    with ledger() as orders:
        return int(orders.llen(ORDERS))


def left() -> int:
    """Return the number of items in stock."""
    return int(cache.get(STOCK))


def ledger() -> Redis:
    return Redis.from_url(settings.REDIS_URL)


def buy_all(locked: bool) -> None:
    with ledger() as orders:
        while buy_one(orders, locked):
            pass


def buy_one(orders: Redis, locked: bool) -> bool:
    with guard(locked):
        items = cache.get(STOCK)
        if items <= 0:
            return False
        orders.rpush(ORDERS, f"teapot {items}")
        cache.set(STOCK, items - 1, timeout=None)
        return True


def guard(locked: bool) -> AbstractContextManager[object]:
    if not locked:
        return contextlib.nullcontext()
    from django_redislock import locks

    return locks.lock(STOCK)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lock", action="store_true")
    locked = parser.parse_args().lock
    django.setup()
    input("ready\n")
    buyers = [threading.Thread(target=buy_all, args=(locked,)) for _ in range(BUYERS)]
    for buyer in buyers:
        buyer.start()
    for buyer in buyers:
        buyer.join()


if __name__ == "__main__":
    main()
