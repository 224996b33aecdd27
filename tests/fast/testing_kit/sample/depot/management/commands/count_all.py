from typing import Any

from django.core.management.base import BaseCommand, CommandError

from django_redislock import LockError, locks


class Command(BaseCommand):
    help = "Counts all depots, unless somebody is at it."

    def handle(self, **options: Any) -> None:
        try:
            with locks.lock("count-all", blocking=False):
                self.stdout.write("All is counted.")
        except LockError as error:
            raise CommandError("Somebody counts already.") from error
