"""@locks.guard: a second request at the same time is refused."""

import threading
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import AnonymousUser
from django.contrib.sessions.backends.signed_cookies import SessionStore
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import request_finished
from django.db import connection, transaction
from django.http import HttpResponse, JsonResponse, StreamingHttpResponse
from django.test import AsyncClient, AsyncRequestFactory, RequestFactory, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from redis.exceptions import ConnectionError
from rest_framework.decorators import api_view
from rest_framework.exceptions import NotFound
from rest_framework.permissions import IsAuthenticated
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory, force_authenticate
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_redislock import AlreadyRunning, LockLost, LockNotAcquired, locks
from django_redislock.testing import assert_nothing_held, held_elsewhere, lose
from tests.lock_tools import free, start, waiting

requests = RequestFactory()
arequests = AsyncRequestFactory()


@pytest.fixture(autouse=True)
def connections_of_other_tests(monkeypatch):
    """Leave those to databases and caches alone when a response is closed, as a test client does.

    One of the cache libraries that other tests use has an async receiver. With it, no event loop
    can close a response.
    """
    monkeypatch.setattr(request_finished, "receivers", [])


@locks.guard("pay:{pk}")
def pay(request, pk):
    locks.assert_held(f"pay:{pk}")
    return JsonResponse({"paid": pk})


@locks.guard("pay:{pk}")
async def apay(request, pk):
    if request.method != "OPTIONS":
        await locks.aassert_held(f"pay:{pk}")
    return JsonResponse({"paid": pk})


@locks.guard("user:{request.user.pk}")
async def afor_user(request):
    return JsonResponse({"names": [each.name async for each in locks.aactive()]})


class Pay(View):
    @locks.guard("pay:{pk}")
    def post(self, request, pk):
        return JsonResponse({"paid": pk})

    @method_decorator(locks.guard("pay:{pk}", status=423))
    def get(self, request, pk):
        return JsonResponse({"paid": pk})


urlpatterns = [
    path("pay/<int:pk>/", pay),
    path("apay/<int:pk>/", apay),
    path("class/<int:pk>/", Pay.as_view()),
    path("auser/", afor_user),
]

pytestmark = pytest.mark.urls(__name__)


def refuse(request):
    pytest.fail("the view ran")


def view_of(*args, **options):
    return locks.guard(*args, **options)(lambda request, **kwargs: HttpResponse())


# One request, and a second one


@pytest.mark.parametrize("url", ["pay", "apay", "class"])
def test_a_second_request_is_refused(client, url):
    assert client.post(f"/{url}/7/").json()["paid"] == 7
    with held_elsewhere("pay:7"):
        response = client.post(f"/{url}/7/")
        assert response.status_code == 409
        assert 20 <= int(response["Retry-After"]) <= 30
        assert response["Content-Type"] == "text/plain; charset=utf-8"
        assert client.post(f"/{url}/8/").status_code == 200
    assert client.post(f"/{url}/7/").status_code == 200
    assert_nothing_held()


@pytest.mark.parametrize(
    ("work", "error"),
    [
        (lambda: 1 / 0, ZeroDivisionError),
        (locks.lock("inner", blocking=False).__enter__, LockNotAcquired),
        (lambda: lose("pay"), LockLost),
    ],
)
def test_an_error_of_the_view_or_a_loss_is_no_refusal(work, error):
    """Only the lock of the guard makes a 409: the view has already done something."""
    view = locks.guard("pay")(lambda request: work() or HttpResponse())
    with held_elsewhere("inner"), pytest.raises(error):
        view(requests.get("/"))
    locks.force_release("pay")


# The answer to the second request


def busy(request, pk):
    return HttpResponse(f"Invoice {pk} is being paid.", status=202)


async def abusy(request, pk):
    return busy(request, pk)


async def test_on_busy_answers_the_second_request():
    @locks.guard("pay:{pk}", on_busy=busy, retry_after=9)
    def view(request, pk):
        return HttpResponse()

    @locks.guard("pay:{pk}", on_busy=abusy)
    async def async_view(request, pk):
        return HttpResponse()

    with held_elsewhere("pay:7"):
        responses = view(requests.get("/"), 7), await async_view(arequests.get("/"), 7)
    for each in responses:
        assert (each.text, each.status_code) == ("Invoice 7 is being paid.", 202)
    assert responses[0]["Retry-After"] == "9"


def test_a_request_can_wait():
    with held_elsewhere("pay") as other:
        assert view_of("pay", blocking_timeout=0.01)(requests.get("/")).status_code == 409
        waiter = start(view_of("pay", blocking_timeout=60), requests.get("/"))
        waiting(locks, "pay", 1)
        other.release()
    assert waiter.result().status_code == 200


# Methods and users


@pytest.mark.parametrize(
    ("method", "url", "status"),
    [
        ("options", "/class/7/", 200),
        ("options", "/apay/7/", 200),
        ("get", "/class/7/", 423),
        ("head", "/pay/7/", 409),
    ],
)
def test_the_method_of_a_request_decides_whether_it_needs_the_lock(client, method, url, status):
    with held_elsewhere("pay:7"):
        assert getattr(client, method)(url).status_code == status


@pytest.mark.django_db(transaction=True)
async def test_an_async_view_can_have_the_user_in_its_name(django_user_model):
    user = await django_user_model.objects.acreate(username="anna", pk=5)
    client = AsyncClient()
    await client.aforce_login(user)
    assert (await client.post("/auser/")).json() == {"names": ["user:5"]}


def request_with(**attributes):
    request = requests.post("/", {"order": "9"}, headers={"Idempotency-Key": "abc"})
    vars(request).update(attributes)
    return request


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("{request.user.pk}", "5"),
        ("{request.POST[order]}", "9"),
        ("{request.headers[Idempotency-Key]}", "abc"),
        ("{request.method}:{request.path}:{pk:03d}", "POST:/:007"),
    ],
)
def test_fields_come_from_the_request_and_the_arguments(name, expected):
    @locks.guard(name)
    def view(request, pk):
        return HttpResponse([each.name for each in locks.active()])

    request = request_with(user=SimpleNamespace(pk=5))
    assert view(request, 7).text == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("{request.user.pk}", r"\{request.user.pk\} is None in this request"),
        ("{request.tenant.pk}", r"the request has no \{request.tenant.pk\}.*'tenant'"),
        ("{request.POST[invoice]}", r"the request has no \{request.POST\[invoice\]\}"),
        ("{request.session}", r"\{request.session\}, a .*\.SessionStore, .* memory address"),
    ],
)
def test_a_field_that_the_request_lacks_is_named(name, text):
    with pytest.raises(ValueError, match=text):
        locks.guard(name)(refuse)(request_with(user=AnonymousUser(), session=SessionStore()))


# Streaming


class Stream:
    def __init__(self):
        self.closed = threading.Event()

    def __iter__(self):
        yield b"one"
        assert locks.get("report")
        yield b"two"

    def close(self):
        self.closed.set()


@locks.guard("report")
def report(request):
    return StreamingHttpResponse(Stream())


def test_the_lock_is_held_until_the_stream_ends(caplog):
    response = locks.guard("outer")(report)(requests.get("/"))
    assert start(report, requests.get("/")).result().status_code == 409
    assert b"".join(response) == b"onetwo"
    assert {each.name for each in locks.active()} == {"outer", "report"}
    response.close()
    assert_nothing_held()
    response = report(requests.get("/"))
    lose("report")
    response.close()
    assert "Lock not released after response: name='report'" in caplog.text


@pytest.mark.parametrize(
    "end",
    [
        lambda responses: start(responses[0].close).result(),
        lambda responses: responses.clear(),
    ],
    ids=["closed by another thread", "dropped"],
)
def test_a_stream_that_nobody_reads_releases_its_lock(end, caplog):
    responses = [report(requests.get("/"))]
    assert locks.get("report")
    end(responses)
    free(locks, "report", timeout=20)  # its lease is longer
    assert "Lock not released" not in caplog.text


@pytest.mark.django_db(transaction=True)  # Django looks at its connections at the end of a request
async def test_an_async_view_that_streams_is_an_error():
    stream = Stream()

    @locks.guard("report")
    async def view(request):
        return StreamingHttpResponse(stream)

    with pytest.raises(ImproperlyConfigured, match="cannot hold the lock until the stream ends"):
        await view(arequests.get("/"))
    assert stream.closed.is_set()
    assert await locks.aget("report") is None


# Redis is away


def test_if_redis_fails_at_the_release_the_response_is_kept(own_locks, own_server, caplog):
    @own_locks.guard("pay")
    def view(request):
        own_server.stop()
        return HttpResponse("paid")

    assert view(requests.get("/")).text == "paid"
    assert "Lock not released after response: name='pay'" in caplog.text
    with pytest.raises(ConnectionError):
        own_locks.guard("pay")(refuse)(requests.get("/"))


# Transactions


@pytest.mark.django_db(transaction=True)
def test_with_atomic_requests_the_lock_is_held_until_the_commit(client, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    with transaction.atomic():
        assert pay(requests.post("/"), 7).status_code == 200
        assert start(pay, requests.post("/"), 7).result().status_code == 409
    assert locks.get("pay:7") is None
    assert client.post("/pay/7/").status_code == 200
    assert locks.get("pay:7") is None


# Bad input


@pytest.mark.parametrize(
    ("arguments", "view", "error", "text"),
    [
        ({"name": ""}, pay, ValueError, "name must not be empty"),
        ({"status": 200}, pay, ValueError, "status must be from 300 to 599, got 200"),
        ({"on_busy": abusy}, pay, TypeError, "on_busy of the synchronous view"),
        ({"timout": 5}, pay, TypeError, "unexpected keyword argument 'timout'"),
        ({}, Pay, TypeError, "cannot decorate the class Pay. Decorate one of its methods"),
    ],
)
def test_bad_input_is_found_where_the_view_is_defined(arguments, view, error, text):
    with pytest.raises(error) as caught:
        locks.guard(**{"name": "pay"} | arguments)(view)
    assert text in str(caught.value)


# Django REST framework


rest_requests = APIRequestFactory()


@api_view(["POST"])
@locks.guard("pay:{pk}")
def rest_pay(request, pk):
    return Response({"paid": pk})


class RestPay(APIView):
    permission_classes = (IsAuthenticated,)

    @method_decorator(locks.guard("pay:{request.user.pk}:{request.data[order]}", retry_after=2))
    def post(self, request, pk):
        return Response({"paid": pk})


class Payments(ViewSet):
    @locks.guard("pay:{pk}")
    def update(self, request, pk):
        return Response({"paid": pk})


@pytest.mark.parametrize(
    "view",
    [rest_pay, Payments.as_view({"post": "update"})],
    ids=["function", "viewset"],
)
def test_a_second_request_is_refused_by_rest_framework(view):
    assert view(rest_requests.post("/"), pk=7).data == {"paid": 7}
    with held_elsewhere("pay:7"):
        response = view(rest_requests.post("/"), pk=7)
        assert response.status_code == 409
        assert int(response["Retry-After"]) > 20
        assert view(rest_requests.post("/"), pk=8).status_code == 200
    assert_nothing_held()


def test_a_guard_of_a_handler_comes_after_authentication(django_user_model):
    request = rest_requests.post("/", {"order": 9}, format="json")
    with held_elsewhere("pay:5:9"):
        assert RestPay.as_view()(request, pk=7).status_code == 403
        request = rest_requests.post("/", {"order": 9}, format="json")
        force_authenticate(request, django_user_model(pk=5))
        response = RestPay.as_view()(request, pk=7)
        assert response.status_code == 409
        assert response["Retry-After"] == "2"


@override_settings(REST_FRAMEWORK={"EXCEPTION_HANDLER": "django_redislock.drf.exception_handler"})
def test_the_handler_answers_refusals_and_leaves_other_exceptions_to_the_framework():
    def respond(work):
        @api_view(["POST"])
        def view(request):
            work()

        return view(rest_requests.post("/"))

    def fail(error):
        raise error

    with held_elsewhere(locks.lock("inner", timeout=9)):
        response = respond(locks.lock("inner", timeout=9, blocking=False).__enter__)
    assert response.status_code == 409
    assert 5 <= int(response["Retry-After"]) <= 9
    response = respond(lambda: fail(AlreadyRunning("sync", expires_in=3600)))
    assert (response.status_code, response["Retry-After"]) == (409, "60")
    assert respond(lambda: fail(NotFound())).status_code == 404
    # The work is done, so this is no refusal.
    with pytest.raises(LockLost):
        respond(lambda: fail(LockLost("lost", lock_name="inner")))
