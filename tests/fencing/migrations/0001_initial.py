import uuid

import django.db.models.deletion
from django.db import migrations, models

import django_redislock.fencing


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Account",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("balance", models.IntegerField(default=0)),
                ("note", models.TextField(default="")),
                ("fence", django_redislock.fencing.FenceField()),
            ],
        ),
        migrations.CreateModel(
            name="Building",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.TextField(default="")),
            ],
        ),
        migrations.CreateModel(
            name="Ledger",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("debit", models.IntegerField(default=0)),
                ("debit_fence", django_redislock.fencing.FenceField()),
                ("credit", models.IntegerField(default=0)),
                ("credit_fence", django_redislock.fencing.FenceField(db_column="credited_under")),
            ],
        ),
        migrations.CreateModel(
            name="Owner",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.TextField()),
            ],
        ),
        migrations.CreateModel(
            name="Parcel",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                ("weight", models.IntegerField(default=0)),
                ("fence", django_redislock.fencing.FenceField(verbose_name="written under")),
            ],
        ),
        migrations.CreateModel(
            name="Place",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.TextField(default="")),
                ("fence", django_redislock.fencing.FenceField()),
            ],
        ),
        migrations.CreateModel(
            name="Savings",
            fields=[],
            options={
                "proxy": True,
                "indexes": [],
                "constraints": [],
            },
            bases=("fencing.account",),
        ),
        migrations.CreateModel(
            name="School",
            fields=[
                (
                    "building_ptr",
                    models.OneToOneField(
                        auto_created=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        parent_link=True,
                        primary_key=True,
                        serialize=False,
                        to="fencing.building",
                    ),
                ),
                ("pupils", models.IntegerField(default=0)),
                ("fence", django_redislock.fencing.FenceField()),
            ],
            bases=("fencing.building",),
        ),
        migrations.AddField(
            model_name="account",
            name="owner",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="accounts",
                to="fencing.owner",
            ),
        ),
        migrations.CreateModel(
            name="Restaurant",
            fields=[
                (
                    "place_ptr",
                    models.OneToOneField(
                        auto_created=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        parent_link=True,
                        primary_key=True,
                        serialize=False,
                        to="fencing.place",
                    ),
                ),
                ("seats", models.IntegerField(default=0)),
            ],
            bases=("fencing.place",),
        ),
    ]
