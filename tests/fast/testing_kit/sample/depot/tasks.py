from celery import shared_task

from django_redislock import single_instance


@shared_task
@single_instance(unique_on=["depot_id"])
def count(depot_id: int, verbose: bool = False) -> str:
    return f"depot {depot_id} is counted"


@shared_task
@single_instance(unique_on=["order_id"], on_conflict="retry", countdown=0.1)
def ship(order_id: int) -> str:
    return f"order {order_id} is shipped"
