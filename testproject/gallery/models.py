from django.db import models

from django_redislock.fencing import FenceField


class Invoice(models.Model):
    """A row that a lock protects."""

    state = models.CharField(max_length=20, default="open")
    fence = FenceField()

    def __str__(self) -> str:
        return f"invoice {self.pk}, {self.state}"
