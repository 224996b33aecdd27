"""Locks in Django's views: sync and async, under ASGI."""

import asyncio

import pytest
from asgiref.sync import sync_to_async
from django.http import JsonResponse
from django.test import AsyncClient
from django.urls import path

from django_redislock import locks


def sync_view(request):
    with locks.lock("view") as lock:
        return JsonResponse({"mine": locks.get("view").token == lock.token})


async def async_view(request):
    async with locks.lock("view") as lock:
        info = await locks.aget("view")
        return JsonResponse({"mine": info.token == lock.token})


urlpatterns = [
    path("sync/", sync_view),
    path("async/", async_view),
    path("mixed/", sync_to_async(sync_view)),
]

pytestmark = pytest.mark.urls(__name__)


@pytest.mark.parametrize("url", ["/sync/", "/async/", "/mixed/"])
async def test_under_asgi(url):
    client = AsyncClient()
    responses = await asyncio.gather(*(client.get(url) for _ in range(10)))
    assert [each.json() for each in responses] == [{"mine": True}] * 10
    assert await locks.aget("view") is None
