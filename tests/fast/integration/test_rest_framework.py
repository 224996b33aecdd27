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


@override_settings(REST_FRAMEWORK={"EXCEPTION_HANDLER": "django_redislock.drf.exception_handler"})
def test_the_handler_answers_refusals_and_leaves_other_exceptions_to_the_framework():
    def respond(work):
        @api_view(["POST"])
        def view(request):
            work()

        return view(requests.post("/"))

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
