"""Pages with something the matter, for the tests of the harness."""

from django.http import HttpRequest, HttpResponse
from django.urls import path

HEAD = '<!doctype html><html lang="en"><title>A page</title><main><h1>A page</h1>'


def page(body: str):
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(HEAD + body)

    return view


urlpatterns = [
    path("plain/", page('<a href="/styled/">On</a><p>Some text.</p>')),
    path("styled/", page('<p style="color: red">red</p>')),
    path("scripted/", page("<script>document.title = 'ran'</script>")),
    path("nameless/", page('<img src="data:,"><input>')),
]
