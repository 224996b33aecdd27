from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="ActiveLock",
            fields=[
                (
                    "name",
                    models.CharField(
                        max_length=512, primary_key=True, serialize=False, verbose_name="name"
                    ),
                ),
            ],
            options={
                "verbose_name": "active lock",
                "verbose_name_plural": "active locks",
                "permissions": (("release_activelock", "Can release active lock"),),
                "managed": False,
                "default_permissions": ("view",),
                "base_manager_name": "objects",
            },
        ),
    )
