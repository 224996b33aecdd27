"""The admin links the results of tasks if django-celery-results is installed."""

from tests.tools import Child

RESULTS = """
import re
from celery import Celery
from django.contrib import admin
from django.core.management import call_command
from django_redislock import locks
from tests.pages import LIST, user_with

call_command("migrate", verbosity=0)
app = Celery("results", backend="django_celery_results.backends:DatabaseBackend")
app.conf.update(task_store_eager_result=True, broker_url="memory://")

clients = {
    "viewer": user_with("view_activelock"),
    "both": user_with("view_activelock", "view_taskresult"),
}

@app.task(bind=True, name="close")
def close(self):
    self.update_state(state="STARTED")
    with locks.lock("invoice", timeout=30):
        tell("held")
    locks.lock("forced", timeout=30).acquire()
    locks.force_release("forced")

def tell(when):
    for who, each in clients.items():
        text = each.get(LIST + "invoice/change/").content.decode()
        links = len(re.findall(r'href="/admin/django_celery_results/taskresult/\\d', text))
        assert "id-of-the-task" in text
        say(f"{when} {who} {links}")

def result_page():
    from django_celery_results.models import TaskResult
    result = TaskResult.objects.get(task_id="id-of-the-task")
    address = f"/admin/django_celery_results/taskresult/{result.pk}/change/"
    assert address in clients["both"].get(LIST + "invoice/change/").content.decode()
    say(f"result {clients['both'].get(address).status_code}")
    troubles = clients["both"].get(LIST + "dashboard/").content.decode()
    link = f'<b>close</b><br>.+?:\\d+<br><span class="id"><a href="{address}">id-of-the-task</a>'
    say(f"dashboard {len(re.findall(link, troubles))}")

close.apply(task_id="id-of-the-task").get()
tell("past")
result_page()
from django_celery_results.models import TaskResult
admin.site.unregister(TaskResult)
tell("unregistered")
"""


def test_a_task_leads_to_its_result(tmp_path):
    where = {
        "DJANGO_SETTINGS_MODULE": "tests.results_settings",
        "TESTPROJECT_DB": str(tmp_path / "results.sqlite3"),
    }
    with Child(RESULTS, **where) as child:
        assert child.expect("held viewer") == "0"
        assert child.expect("held both") == "1"
        assert child.expect("past viewer") == "0"
        assert child.expect("past both") == "1"
        assert child.expect("result") == "200"
        assert child.expect("dashboard") == "1"
        assert child.expect("unregistered viewer") == "0"
        assert child.expect("unregistered both") == "0"
        assert child.wait() == 0
