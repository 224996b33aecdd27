from django_redislock import locks


def pay(order_id: int) -> None:
    with locks.lock(f"order:{order_id}", blocking=False):
        pass
