"""A view under a guard, for servers that run in processes of their own."""

from collections.abc import Iterator

from django.http import HttpRequest, StreamingHttpResponse
from django.urls import path

from django_redislock import locks


def rows() -> Iterator[bytes]:
    yield b"first\n"
    for _ in range(20_000):  # more than the buffers of a connection
        yield b"x" * 1000 + b"\n"


@locks.guard("report", timeout=1.5)
def report(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(rows())


urlpatterns = [path("report/", report)]
