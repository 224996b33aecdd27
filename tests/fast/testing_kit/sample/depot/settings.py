SECRET_KEY = "of a sample"
USE_TZ = True
INSTALLED_APPS = ["django_redislock", "depot"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}

# No server listens on this port, so tests cannot bypass the embedded server.
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": "redis://:secret@redis.invalid:6379/0",
        "KEY_PREFIX": "depot",
    },
    "locks": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": "redis://:secret@redis.invalid:6379/1",
        "OPTIONS": {"socket_timeout": 5},
    },
}
REDISLOCK_CACHE = "locks"
