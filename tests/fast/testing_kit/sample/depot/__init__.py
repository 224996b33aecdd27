"""A small project that tests its locks with `django_redislock.testing`."""
