from django.db import migrations, models

import django_redislock.fencing


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Invoice",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("state", models.CharField(default="open", max_length=20)),
                ("fence", django_redislock.fencing.FenceField()),
            ],
        ),
    ]
