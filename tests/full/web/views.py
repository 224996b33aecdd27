"""Views under a guard, for servers that run in processes of their own."""

import asyncio
from collections.abc import Iterator

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from django_redislock import locks
from tests.tools import wait_until

LEASE_SECONDS = 1.5


def may_go_on() -> bool:
    """Whether the test has let the request go on, by a lock that it holds until then."""
    return locks.get("gate") is None


@csrf_exempt
@locks.guard("pay:{pk}", timeout=LEASE_SECONDS)
def pay(request: HttpRequest, pk: int) -> HttpResponse:
    wait_until(may_go_on)
    return HttpResponse("paid")


@csrf_exempt
@locks.guard("pay:{pk}", timeout=LEASE_SECONDS)
async def apay(request: HttpRequest, pk: int) -> HttpResponse:
    while await locks.aget("gate"):  # noqa: ASYNC110  another process releases it
        await asyncio.sleep(0.01)
    return HttpResponse("paid")


def rows() -> Iterator[bytes]:
    yield b"first\n"
    wait_until(may_go_on)
    for _ in range(20_000):  # more than the buffers of a connection
        yield b"x" * 1000 + b"\n"


@locks.guard("report", timeout=LEASE_SECONDS)
def report(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(rows())


@locks.guard("late-report")
def late_report(request: HttpRequest) -> StreamingHttpResponse:
    wait_until(may_go_on)
    return StreamingHttpResponse(rows())


def ready(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


urlpatterns = [
    path("pay/<int:pk>/", pay),
    path("apay/<int:pk>/", apay),
    path("report/", report),
    path("late-report/", late_report),
    path("ready/", ready),
]
