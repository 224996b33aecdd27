import sys

from django_redislock.management import IsolatedCommand


class Command(IsolatedCommand):
    lock_timeout = 2

    def handle(self, *args, **options):
        print("runs", flush=True)
        sys.stdin.readline()
        print("ends", flush=True)
