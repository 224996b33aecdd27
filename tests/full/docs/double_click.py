"""A customer who clicks twice pays once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from types import ModuleType
from typing import Any
from unittest import mock

from django.db import connections, models
from django.http import HttpResponse
from django.test import RequestFactory

from django_redislock import locks

View = Callable[..., HttpResponse]

RACES = 5
SECONDS = 30


def assert_charges_once(views: ModuleType, pay: View, invoices: type[models.Model]) -> None:
    """Post to `pay` twice, at once and one after the other, and count the calls of
    `views.charge`. The fake ignores the idempotency key, so that only the lock and the view
    count."""
    charged: list[Any] = []
    is_charging, is_answered = Event(), Event()

    def slowly(amount: int, idempotency_key: str) -> None:
        charged.append(amount)
        is_charging.set()
        assert is_answered.wait(SECONDS)

    def quickly(amount: int, idempotency_key: str) -> None:
        charged.append(amount)

    def post(pk: int, begin: Barrier | None = None) -> int:
        try:
            if begin:
                begin.wait(SECONDS)
            return pay(RequestFactory().post("/"), pk).status_code
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as browser:
        pk = invoices._default_manager.create(amount=1).pk
        with mock.patch.object(views, "charge", slowly):
            first = browser.submit(post, pk)
            assert is_charging.wait(SECONDS)
            second = browser.submit(post, pk).result(SECONDS)
            is_answered.set()
            assert [first.result(SECONDS), second] == [200, 409]
        assert charged == [1], "charged twice while the first request was still running"

        with mock.patch.object(views, "charge", quickly):
            assert browser.submit(post, pk).result(SECONDS) == 409
            assert charged == [1], "charged again after the first request had ended"
            for amount in range(2, 2 + RACES):
                pk = invoices._default_manager.create(amount=amount).pk
                begin = Barrier(2)
                posts = [browser.submit(post, pk, begin) for _ in range(2)]
                assert sorted(each.result(SECONDS) for each in posts) == [200, 409]
                assert charged.count(amount) == 1
                assert locks.get(f"invoice:{pk}") is None
