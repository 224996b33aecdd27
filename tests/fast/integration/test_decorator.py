"""A lock around each call of a function."""

import asyncio
import functools
import inspect
from dataclasses import dataclass

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.test import RequestFactory
from django.utils.decorators import method_decorator
from django.views import View

from django_redislock import locks


def held():
    return sorted(info.name for info in locks.active())


def test_it_holds_the_lock_around_each_call():
    @locks.lock("report")
    def report():
        """The docstring."""
        return held()

    assert (report.__name__, report.__doc__) == ("report", "The docstring.")
    assert report() == ["report"]
    assert held() == []


def test_fields_can_go_into_an_argument_and_format_it():
    @dataclass
    class User:
        pk: int

    @locks.using("django_redis").lock("user:{user.pk:04d}:{options[mode]}", timeout=77)
    def work(user, **rest):
        assert locks.get("user:0005:full").timeout == 77.0
        return held()

    assert work(User(5), options={"mode": "full"}) == ["user:0005:full"]


def test_methods_have_self():
    class Account:
        number = 9
        kind = "savings"

        @locks.lock("account:{self.number}")
        def close(self):
            return held()

        @classmethod
        @locks.lock("class:{cls.kind}")
        def of_class(cls):
            return held()

    assert Account().close() == ["account:9"]
    assert Account.of_class() == ["class:savings"]


def test_coroutine_functions_stay_coroutine_functions():
    @locks.lock("site:{site_id}")
    async def rebuild(site_id):
        return [info.name async for info in locks.aactive()]

    assert inspect.iscoroutinefunction(rebuild)
    assert asyncio.run(rebuild(3)) == ["site:3"]
    assert held() == []


def generator():
    yield


async def acoroutine():
    return held()


async def agenerator():
    yield held()


@pytest.mark.parametrize(
    ("lock", "function"),
    [
        (locks.lock("a"), generator),
        (locks.lock("a"), agenerator),
        (locks.atomic("a"), generator),
        (locks.atomic("a"), agenerator),
        (locks.atomic("a"), acoroutine),
    ],
)
def test_functions_that_run_after_their_call_are_refused_at_import(lock, function):
    with pytest.raises(TypeError, match=f"cannot decorate .*{function.__name__}"):
        lock(function)


def passed_on(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


class Dispatched(View):
    async def get(self, request):
        raise AssertionError("it ran")

    @locks.lock("a")
    def dispatch(self, request):
        return super().dispatch(request)


@pytest.mark.parametrize(
    "call",
    [
        locks.lock("a")(passed_on(acoroutine)),
        locks.lock("a")(passed_on(agenerator)),
        locks.lock("a")(lambda: (each for each in "ab")),
        locks.lock("a")(staticmethod(acoroutine)),
        locks.lock_many(["a", "b"])(passed_on(acoroutine)),
        locks.atomic("a")(passed_on(acoroutine)),
        functools.partial(Dispatched.as_view(), RequestFactory().get("/")),
    ],
    ids=["coroutine", "async-generator", "generator", "static", "many", "atomic", "dispatch"],
)
@pytest.mark.django_db
def test_returned_objects_that_run_later_are_refused(call):
    with pytest.raises(TypeError, match="runs after the"):
        call()
    assert held() == []


def test_the_lock_is_held_while_any_awaitable_runs():
    assert asyncio.run(locks.lock("a")(sync_to_async(held))()) == ["a"]


@pytest.mark.django_db
def test_method_decorator_puts_locks_on_the_methods_of_views():
    @method_decorator(locks.lock("report:{kwargs[pk]}"), name="dispatch")
    class Whole(View):
        def get(self, request, pk):
            return HttpResponse(",".join(held()))

    class Atomic(View):
        @method_decorator(locks.atomic("report:{pk}"))
        def get(self, request, pk):
            return HttpResponse(",".join(held()))

    for view in (Whole, Atomic):
        assert view.as_view()(RequestFactory().get("/"), pk=1).content == b"report:1"


def test_a_name_without_fields_does_not_inspect_the_call():
    def with_tenant(function):
        @functools.wraps(function)
        def wrapper(*args):
            return function("acme", *args)

        return wrapper

    @locks.lock("rebuild")
    @with_tenant
    def rebuild(tenant, site):
        return tenant, site, held()

    assert rebuild(7) == ("acme", 7, ["rebuild"])


@pytest.mark.parametrize("name", ["{", "{0}", "{}"])
def test_an_invalid_template_is_refused_at_import(name):
    with pytest.raises(ImproperlyConfigured, match="name="):
        locks.lock(name)(lambda x: None)


def test_an_invalid_name_from_an_argument_is_made_valid():
    @locks.lock("a:{x}")
    def work(x):
        return held()

    assert work("b\nc") == ["a:b\\nc"]
