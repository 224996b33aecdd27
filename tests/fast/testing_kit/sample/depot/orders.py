"""The steps of an order, which are empty here."""

from django_redislock import locks


def reserve(order_id: int) -> None:
    pass


def charge(order_id: int) -> None:
    pass


def pay(order_id: int) -> None:
    with locks.lock(f"order:{order_id}", blocking=False) as lock:
        reserve(order_id)
        lock.assert_held()  # from here on it can't be undone
        charge(order_id)
