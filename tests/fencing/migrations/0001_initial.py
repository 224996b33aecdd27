import uuid

from django.db import migrations, models
from django.db.models.deletion import CASCADE

from django_redislock.fencing import FenceField


def auto_id():
    options = {"auto_created": True, "primary_key": True, "serialize": False}
    return "id", models.BigAutoField(verbose_name="ID", **options)


def parent(name):
    options = {"auto_created": True, "primary_key": True, "serialize": False}
    return models.OneToOneField(to=name, on_delete=CASCADE, parent_link=True, **options)


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel("Owner", [auto_id(), ("name", models.TextField())]),
        migrations.CreateModel(
            "Account",
            [
                auto_id(),
                ("balance", models.IntegerField(default=0)),
                ("note", models.TextField(default="")),
                ("fence", FenceField()),
                (
                    "owner",
                    models.ForeignKey(
                        "fencing.owner", CASCADE, null=True, related_name="accounts"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            "Savings",
            [],
            options={"proxy": True, "indexes": [], "constraints": []},
            bases=("fencing.account",),
        ),
        migrations.CreateModel(
            "Parcel",
            [
                ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                ("weight", models.IntegerField(default=0)),
                ("fence", FenceField(verbose_name="written under")),
            ],
        ),
        migrations.CreateModel(
            "Ledger",
            [
                auto_id(),
                ("debit", models.IntegerField(default=0)),
                ("debit_fence", FenceField()),
                ("credit", models.IntegerField(default=0)),
                ("credit_fence", FenceField(db_column="credited_under")),
            ],
        ),
        migrations.CreateModel(
            "Place",
            [auto_id(), ("name", models.TextField(default="")), ("fence", FenceField())],
        ),
        migrations.CreateModel(
            "Restaurant",
            [
                ("place_ptr", parent("fencing.place")),
                ("seats", models.IntegerField(default=0)),
            ],
            bases=("fencing.place",),
        ),
        migrations.CreateModel("Building", [auto_id(), ("name", models.TextField(default=""))]),
        migrations.CreateModel(
            "School",
            [
                ("building_ptr", parent("fencing.building")),
                ("pupils", models.IntegerField(default=0)),
                ("fence", FenceField()),
            ],
            bases=("fencing.building",),
        ),
    ]
