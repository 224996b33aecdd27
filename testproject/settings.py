"""Settings of the test project.

Environment variables: ``REDIS_URL`` (caches use database 0, Celery uses databases 1 and 2)
and ``TESTPROJECT_DB`` (the path of the SQLite file).
"""

import os
from pathlib import Path
from urllib.parse import urlsplit

import django

HERE = Path(__file__).resolve().parent


def redis_database(number: int) -> str:
    return urlsplit(REDIS_URL)._replace(path=f"/{number}").geturl()


REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")

SECRET_KEY = "for-the-demo-and-the-tests-only"  # noqa: S105  guards nothing
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "testserver"]
ROOT_URLCONF = "testproject.urls"
WSGI_APPLICATION = "testproject.wsgi.application"
ASGI_APPLICATION = "testproject.asgi.application"
USE_TZ = True
TIME_ZONE = "UTC"
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_redislock",
    "testproject.shop",
    "testproject.gallery",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django.middleware.csp.ContentSecurityPolicyMiddleware"
    if django.VERSION >= (6, 0)
    else "testproject.csp.ContentSecurityPolicyMiddleware",
]

# The strictest policy: pages cannot contain inline scripts or styles.
SECURE_CSP = {
    "default-src": ["'self'"],
    "script-src": ["'self'"],
    "style-src": ["'self'"],
    "img-src": ["'self'", "data:"],
    "object-src": ["'none'"],
    "base-uri": ["'none'"],
    "form-action": ["'self'"],
    "frame-ancestors": ["'none'"],
}

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("TESTPROJECT_DB", HERE / "db.sqlite3"),
        "OPTIONS": {"timeout": 20},
    },
}

CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": redis_database(0),
        "KEY_PREFIX": "testproject",
    },
    "django_redis": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": redis_database(0),
        "KEY_PREFIX": "testproject",
    },
}

CELERY_BROKER_URL = redis_database(1)
CELERY_RESULT_BACKEND = redis_database(2)
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
