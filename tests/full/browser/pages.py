"""Actions of a visitor on the pages of the admin."""

from urllib.parse import quote

from selenium.webdriver.support.ui import Select

from .browser import Tab

LIST = "/admin/django_redislock/activelock/"
RELEASE = f"{LIST}release/"

SURE = "Release lock"


def path_of(name: str) -> str:
    """Return the path of a lock's page."""
    return f"{LIST}{quote(name, safe='')}/change/"


def search(tab: Tab, text: str) -> None:
    field = tab.get("textbox", "Search")
    field.clear()
    field.send_keys(text)
    tab.follow(tab.get("button", "Search"))


def lists(tab: Tab, name: str) -> bool:
    return bool(tab.all("link", name, within=tab.get("main")))


def ask_to_release_selected(tab: Tab, *names: str) -> None:
    for name in names:
        tab.get("checkbox", f"Select this object for an action - {name}").click()
    Select(tab.get("combobox", "Action:")).select_by_value("release_selected")
    tab.follow(tab.get("button", "Run", "Go"))  # Django 6.1 says Run


def ask_to_release(tab: Tab) -> None:
    """Click on the release button of the lock's page."""
    tab.follow(tab.get("button", "Release…"))


def confirm(tab: Tab) -> None:
    tab.follow(tab.get("button", SURE, f"{SURE}s"))
