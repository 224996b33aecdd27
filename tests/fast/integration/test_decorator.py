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


@dataclass
class User:
    pk: int
    kind = "savings"

    @locks.lock("user:{self.pk}")
    def close(self):
        """The docstring."""
        return held()

    @classmethod
    @locks.lock("class:{cls.kind}")
    def of_class(cls):
        return held()


def test_it_holds_the_lock_around_each_call():
    assert (User.close.__name__, User.close.__doc__) == ("close", "The docstring.")
    assert User(9).close() == ["user:9"]
    assert User.of_class() == ["class:savings"]
    assert held() == []


def test_fields_can_go_into_an_argument_and_format_it():
    @locks.using("django_redis").lock("user:{user.pk:04d}:{options[mode]}", timeout=77)
    def work(user, **rest):
        [info] = locks.active()
        return info.name, info.timeout

    assert work(User(5), options={"mode": "full"}) == ("user:0005:full", 77.0)
    name, _ = work(User(5), options={"mode": "b\nc"})
    assert name == "user:0005:b\\nc", "is made valid"


def test_coroutine_functions_stay_coroutine_functions():
    @locks.lock("site:{site_id}")
    async def rebuild(site_id):
        return [info.name async for info in locks.aactive()]

    assert inspect.iscoroutinefunction(rebuild)
    assert asyncio.run(rebuild(3)) == ["site:3"]
    assert asyncio.run(locks.lock("a")(sync_to_async(held))()) == ["a"]
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


@pytest.mark.parametrize(
    "call",
    [
        locks.lock("a")(passed_on(acoroutine)),
        locks.lock("a")(lambda: (each for each in "ab")),
    ],
    ids=["coroutine", "generator"],
)
def test_returned_objects_that_run_later_are_refused(call):
    with pytest.raises(TypeError, match="runs after the"):
        call()
    assert held() == []


@pytest.mark.django_db
def test_method_decorator_puts_a_lock_on_a_method_of_a_view():
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


def test_an_invalid_template_is_refused_at_import():
    with pytest.raises(ImproperlyConfigured, match="name="):
        locks.lock("{")(lambda x: None)
