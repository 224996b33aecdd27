from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class DjangoRedislockConfig(AppConfig):
    name = "django_redislock"
    verbose_name = _("Redis locks")

    def ready(self) -> None:
        from . import checks  # noqa: F401  registers them
