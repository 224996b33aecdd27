"""Guards and the exception handler in Django REST framework."""

import pytest
from django.test import override_settings
from django.utils.decorators import method_decorator

from django_redislock import AlreadyRunning, LockLost, locks
from django_redislock.testing import assert_nothing_held, held_elsewhere

pytest.importorskip("rest_framework")

from rest_framework.decorators import api_view
from rest_framework.exceptions import NotFound
from rest_framework.permissions import IsAuthenticated
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory, force_authenticate
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

requests = APIRequestFactory()


@api_view(["POST"])
@locks.guard("pay:{pk}")
def pay(request, pk):
    return Response({"paid": pk})


@locks.guard("pay:{pk}")
@api_view(["POST"])
def guarded_outside(request, pk):
    return Response({"paid": pk})


class Pay(APIView):
    permission_classes = (IsAuthenticated,)

    @method_decorator(locks.guard("pay:{request.user.pk}:{request.data[order]}", retry_after=2))
    def post(self, request, pk):
        return Response({"paid": pk})


class Payments(ViewSet):
    @locks.guard("pay:{pk}")
    def update(self, request, pk):
        return Response({"paid": pk})


class Fails(APIView):
    error: Exception | None = None

    def post(self, request):
        raise self.error


class WithLock(APIView):
    def post(self, request):
        with locks.lock("inner", timeout=9, blocking=False):
            return Response({"paid": 1})


@pytest.mark.parametrize(
    "view",
    [pay, guarded_outside, Payments.as_view({"post": "update"})],
    ids=["inside", "outside", "viewset"],
)
def test_a_second_request_is_refused(view):
    assert view(requests.post("/"), pk=7).data == {"paid": 7}
    with held_elsewhere("pay:7"):
        response = view(requests.post("/"), pk=7)
        assert response.status_code == 409
        assert int(response["Retry-After"]) > 20
        assert view(requests.post("/"), pk=8).status_code == 200
    assert_nothing_held()


def test_a_guard_of_a_handler_comes_after_authentication(django_user_model):
    request = requests.post("/", {"order": 9}, format="json")
    with held_elsewhere("pay:5:9"):
        assert Pay.as_view()(request, pk=7).status_code == 403
        request = requests.post("/", {"order": 9}, format="json")
        force_authenticate(request, django_user_model(pk=5))
        response = Pay.as_view()(request, pk=7)
        assert response.status_code == 409
        assert response["Retry-After"] == "2"


@pytest.fixture
def handler():
    name = "django_redislock.drf.exception_handler"
    with override_settings(REST_FRAMEWORK={"EXCEPTION_HANDLER": name}):
        yield


@pytest.mark.usefixtures("handler")
def test_the_handler_answers_a_lock_that_was_not_acquired():
    assert WithLock.as_view()(requests.post("/")).status_code == 200
    with held_elsewhere(locks.lock("inner", timeout=9)):
        response = WithLock.as_view()(requests.post("/"))
    assert response.status_code == 409
    assert response.data == {"detail": "This request is already being processed. Try again later."}
    assert 5 <= int(response["Retry-After"]) <= 9


@pytest.mark.usefixtures("handler")
def test_the_handler_answers_conflicts_and_leaves_other_exceptions_to_the_framework():
    response = Fails.as_view(error=AlreadyRunning("sync", expires_in=3600))(requests.post("/"))
    assert (response.status_code, response["Retry-After"]) == (409, "60")
    assert "sync" not in str(response.data)
    assert Fails.as_view(error=NotFound())(requests.post("/")).status_code == 404
    # The work is done, so this is no refusal.
    with pytest.raises(LockLost):
        Fails.as_view(error=LockLost("lost", lock_name="inner"))(requests.post("/"))
