"""A customer who clicks twice pays once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import ModuleType
from unittest import mock

from django.db import connections, models
from django.http import HttpResponse
from django.test import RequestFactory

View = Callable[..., HttpResponse]

SECONDS = 30


def assert_charges_once(views: ModuleType, pay: View, invoices: type[models.Model]) -> None:
    """Post to `pay` twice at once, and again later, and count the calls of `views.charge`. The
    fake ignores the idempotency key, so that only the lock and the view count."""
    charged: list[int] = []
    is_charging, is_answered = Event(), Event()
    pk = invoices._default_manager.create(amount=1).pk

    def slowly(amount: int, idempotency_key: str) -> None:
        charged.append(amount)
        is_charging.set()
        assert is_answered.wait(SECONDS)

    def post() -> int:
        try:
            return pay(RequestFactory().post("/"), pk).status_code
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as browser, mock.patch.object(views, "charge", slowly):
        first = browser.submit(post)
        assert is_charging.wait(SECONDS)
        second = browser.submit(post).result(SECONDS)
        is_answered.set()
        assert [first.result(SECONDS), second] == [200, 409]
        assert browser.submit(post).result(SECONDS) == 409
    assert charged == [1]
