from django.http import HttpRequest, HttpResponse

from django_redislock import LockError

from . import orders


def pay(request: HttpRequest, order_id: int) -> HttpResponse:
    try:
        orders.pay(order_id)
    except LockError:
        return HttpResponse("This order is being paid.", status=409)
    return HttpResponse("Paid.")
