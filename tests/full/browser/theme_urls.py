from django.apps import apps
from django.urls import include, path

from testproject.urls import urlpatterns

if apps.is_installed("grappelli"):
    urlpatterns = [path("grappelli/", include("grappelli.urls")), *urlpatterns]
