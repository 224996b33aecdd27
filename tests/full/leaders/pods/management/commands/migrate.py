from django.core.management.commands import migrate

from django_redislock.management import IsolatedCommand


class Command(IsolatedCommand, migrate.Command):
    lock_name = "migrate:{database}"
    lock_timeout = 2
    lock_wait = 600
    conflict_exit_code = 1
