from django.db import models

from django_redislock.fencing import FenceField


class Invoice(models.Model):
    """What is guarded, where a lock guards a row."""

    state = models.CharField(max_length=20, default="open")
    fence = FenceField()

    def __str__(self) -> str:
        return f"invoice {self.pk}, {self.state}"
