"""Send `settings.SECURE_CSP` as Content-Security-Policy header on Django 5.2.

On Django 6.0 the settings name Django's own middleware, ``django.middleware.csp``, instead.
"""

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse

GetResponse = Callable[[HttpRequest], HttpResponse]


class ContentSecurityPolicyMiddleware:
    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response
        policy = settings.SECURE_CSP
        self.header = "; ".join(f"{name} {' '.join(policy[name])}" for name in policy)

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        response.headers.setdefault("Content-Security-Policy", self.header)
        return response
