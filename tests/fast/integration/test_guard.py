"""@locks.guard: a second request at the same time is refused."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import AnonymousUser
from django.contrib.sessions.backends.signed_cookies import SessionStore
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import request_finished
from django.db import connection, connections, transaction
from django.http import HttpResponse, JsonResponse, StreamingHttpResponse
from django.test import AsyncClient, AsyncRequestFactory, Client, RequestFactory, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.http import require_POST
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


@method_decorator(locks.guard("pay:{pk}"), name="dispatch")
class PayAnyhow(View):
    def post(self, request, pk):
        return JsonResponse({"paid": pk})


@require_POST
@csrf_protect
@locks.guard("pay:{pk}")
def protected(request, pk):
    return HttpResponse("paid")


urlpatterns = [
    path("pay/<int:pk>/", pay),
    path("apay/<int:pk>/", apay),
    path("class/<int:pk>/", Pay.as_view()),
    path("anyhow/<int:pk>/", PayAnyhow.as_view()),
    path("auser/", afor_user),
    path("protected/<int:pk>/", protected),
]

pytestmark = pytest.mark.urls(__name__)


def refuse(request):
    pytest.fail("the view ran")


def view_of(*args, **options):
    return locks.guard(*args, **options)(lambda request, **kwargs: HttpResponse())


# One request, and a second one


@pytest.mark.parametrize("url", ["pay", "apay", "class", "anyhow"])
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


@pytest.mark.parametrize(
    ("lease", "options", "least", "most"),
    [
        (45, {}, 20, 45),
        (1.5, {}, 1, 2),
        (3600, {}, 60, 60),
        (45, {"retry_after": 0.5}, 1, 1),
        (45, {"retry_after": 0}, 0, 0),
    ],
)
def test_retry_after_is_given_or_the_rest_of_the_lease_within_limits(lease, options, least, most):
    lock = locks.lock("pay", timeout=lease, auto_renewal=False)
    assert start(lock.acquire).result()
    assert least <= int(view_of("pay", **options)(requests.get("/"))["Retry-After"]) <= most
    locks.force_release("pay")


def busy(request, pk):
    return HttpResponse(f"Invoice {pk} is being paid.", status=202)


async def abusy(request, pk):
    return busy(request, pk)


async def test_on_busy_answers_the_second_request():
    def guarded(on_busy, **options):
        return view_of("pay:{kwargs[pk]}", on_busy=on_busy, **options)(requests.get("/"), pk=7)

    @locks.guard("pay:{pk}", on_busy=busy)
    async def view(request, pk):
        return HttpResponse()

    @locks.guard("pay:{pk}", on_busy=abusy)
    async def other_view(request, pk):
        return HttpResponse()

    with held_elsewhere("pay:7"):
        response = guarded(busy, retry_after=9)
        with_header = guarded(lambda request, pk: HttpResponse(headers={"Retry-After": "5"}))
        with pytest.raises(TypeError, match="but returned None"):
            guarded(lambda request, pk: None)
        for each in (view, other_view):
            assert (await each(arequests.get("/"), 7)).text == "Invoice 7 is being paid."
    assert (response.text, response.status_code) == ("Invoice 7 is being paid.", 202)
    assert response["Retry-After"] == "9"
    assert with_header["Retry-After"] == "5"


def test_a_request_can_wait():
    with held_elsewhere("pay") as other:
        assert view_of("pay", blocking_timeout=0.01)(requests.get("/")).status_code == 409
        waiter = start(view_of("pay", blocking_timeout=60), requests.get("/"))
        waiting(locks, "pay", 1)
        other.release()
    assert waiter.result().status_code == 200


# Methods, CSRF and users


@pytest.mark.parametrize(
    ("method", "url", "status"),
    [
        ("options", "/class/7/", 200),
        ("options", "/anyhow/7/", 200),
        ("options", "/apay/7/", 200),
        ("get", "/class/7/", 423),
        ("head", "/class/7/", 423),
        ("head", "/pay/7/", 409),
    ],
)
def test_the_method_of_a_request_decides_whether_it_needs_the_lock(client, method, url, status):
    with held_elsewhere("pay:7"):
        assert getattr(client, method)(url).status_code == status
        protected = Client(enforce_csrf_checks=True).post("/protected/7/")
        assert protected.status_code == 403, "a failure of CSRF takes no lock"


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
        ("{request.user}", r"\{request.user\} is an instance of AnonymousUser without"),
        ("{request.tenant.pk}", r"the request has no \{request.tenant.pk\}.*'tenant'"),
        ("{request.POST[invoice]}", r"the request has no \{request.POST\[invoice\]\}"),
        ("{request.session}", r"\{request.session\}, a .*\.SessionStore, .* memory address"),
        ("{request.get_host()}", r"the request has no \{request.get_host\(\)\}"),
    ],
)
def test_a_field_that_the_request_lacks_is_named(name, text):
    with pytest.raises(ValueError, match=text):
        locks.guard(name)(refuse)(request_with(user=AnonymousUser(), session=SessionStore()))

    with pytest.raises(ValueError, match="needs 'invoice', which this call does not have"):
        method_decorator(locks.guard("pay:{invoice}"))(View.dispatch)(View(), requests.post("/"))


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
    response.close()  # a second time
    response = report(requests.get("/"))
    lose("report")
    response.close()
    assert "Lock not released after response: name='report'" in caplog.text


@pytest.mark.parametrize(
    "end",
    [
        lambda responses: start(responses[0].close).result(),
        lambda responses: responses.clear(),
        lambda responses: start(responses.clear).result(),
    ],
    ids=["closed by another thread", "dropped", "dropped by another thread"],
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

    @own_locks.guard("pay")
    async def aview(request):
        own_server.stop()
        return HttpResponse("paid")

    assert view(requests.get("/")).text == "paid"
    assert "Lock not released after response: name='pay'" in caplog.text
    own_server.start()
    assert asyncio.run(aview(arequests.get("/"))).text == "paid"
    with pytest.raises(ConnectionError):
        own_locks.guard("pay")(refuse)(requests.get("/"))


# Transactions


@pytest.fixture
def other_database(django_db_blocker, monkeypatch):
    """A database after the default one, so its transaction begins first and ends last."""
    settings = {**connection.settings_dict, "NAME": ":memory:", "ATOMIC_REQUESTS": True}
    monkeypatch.setitem(connections.settings, "other", settings)
    with django_db_blocker.unblock():
        yield "other"
        connection.close()
        connections["other"].close()
    del connections["other"]


@pytest.mark.django_db(transaction=True)
def test_with_atomic_requests_the_lock_is_held_until_the_commit(client, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    with transaction.atomic():
        assert pay(requests.post("/"), 7).status_code == 200
        assert start(pay, requests.post("/"), 7).result().status_code == 409
    assert locks.get("pay:7") is None
    assert client.post("/pay/7/").status_code == 200
    assert locks.get("pay:7") is None


@pytest.mark.parametrize("both", [False, True], ids=["one", "both"])
def test_the_lock_is_held_until_the_last_database_commits(other_database, monkeypatch, both):
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", both)
    with transaction.atomic(using=other_database):
        with transaction.atomic():
            assert pay(requests.post("/"), 7).status_code == 200
        assert locks.get("pay:7")
    assert locks.get("pay:7") is None
    with transaction.atomic():  # the view is one of `non_atomic_requests` for the other database
        assert pay(requests.post("/"), 7).status_code == 200
        assert bool(locks.get("pay:7")) is both
    assert locks.get("pay:7") is None


# Bad input


def generate(request):
    yield request


@pytest.mark.parametrize(
    ("arguments", "view", "error", "text"),
    [
        ({"name": ""}, pay, ValueError, "name must not be empty"),
        ({"status": 200}, pay, ValueError, "status must be from 300 to 599, got 200"),
        ({"retry_after": -1}, pay, ValueError, "retry_after must be from 0"),
        ({"on_busy": "busy"}, pay, TypeError, "on_busy must be a view, got 'busy'"),
        ({"on_busy": abusy}, pay, TypeError, "on_busy of the synchronous view"),
        ({"release_on_commit": True}, apay, TypeError, "is not supported for the async view"),
        ({"blocking": False}, pay, TypeError, "guard() does not accept blocking"),
        ({"timout": 5}, pay, TypeError, "unexpected keyword argument 'timout'"),
        ({}, generate, TypeError, "cannot decorate the generator function"),
        ({}, Pay, TypeError, "cannot decorate the class Pay. Decorate one of its methods"),
    ],
)
def test_bad_input_is_found_where_the_view_is_defined(arguments, view, error, text):
    with pytest.raises(error) as caught:
        locks.guard(**{"name": "pay"} | arguments)(view)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("argument", "text"),
    [("no request", "this call has no request"), (requests.get("/"), "returned a coroutine")],
)
def test_bad_input_is_found_by_the_call(argument, text):
    with pytest.raises(TypeError, match=text):
        locks.guard("pay")(lambda request: abusy(request, 7))(argument)


# Django REST framework


rest_requests = APIRequestFactory()


@api_view(["POST"])
@locks.guard("pay:{pk}")
def rest_pay(request, pk):
    return Response({"paid": pk})


@locks.guard("pay:{pk}")
@api_view(["POST"])
def guarded_outside(request, pk):
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
    [rest_pay, guarded_outside, Payments.as_view({"post": "update"})],
    ids=["inside", "outside", "viewset"],
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
    assert response.data == {"detail": "This request is already being processed. Try again later."}
    assert 5 <= int(response["Retry-After"]) <= 9
    response = respond(lambda: fail(AlreadyRunning("sync", expires_in=3600)))
    assert (response.status_code, response["Retry-After"]) == (409, "60")
    assert "sync" not in str(response.data)
    assert respond(lambda: fail(NotFound())).status_code == 404
    # The work is done, so this is no refusal.
    with pytest.raises(LockLost):
        respond(lambda: fail(LockLost("lost", lock_name="inner")))
