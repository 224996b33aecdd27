"""A Chromium, and the tab that a test has of it.

Elements are found as a reader finds them, by role and name, through the browser's own
accessibility tree. It is there without JavaScript too.
"""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from selenium import webdriver
from selenium.common.exceptions import (
    NoSuchElementException,
    StaleElementReferenceException,
    TimeoutException,
    WebDriverException,
)
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.programs import find

T = TypeVar("T")

WIDTH, HEIGHT = 1280, 900

OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--lang=en-US",
    "--no-first-run",
)

PATIENCE = 10
"""Seconds to wait for anything at all."""


def start(profile: Path) -> webdriver.Chrome:
    """A headless Chromium that keeps all that it writes in `profile`, a new folder."""
    options = webdriver.ChromeOptions()
    options.binary_location = find("chromium")
    for option in (*OPTIONS, f"--window-size={WIDTH},{HEIGHT}", f"--user-data-dir={profile}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options, Service(find("chromedriver")))


class Tab:
    """A tab that nothing is left in from another test: no cookie, storage or emulation.

    `origin` is the address of the site; what is opened is a path on it.
    """

    def __init__(self, driver: webdriver.Chrome, origin: str) -> None:
        self.driver = driver
        self.origin = origin
        self._home = driver.current_window_handle
        self._told: list[str] = []
        self._expected: list[str] = []

    def __enter__(self) -> "Tab":
        self.driver.get_log("browser")  # whatever came after the last test's end
        self.driver.switch_to.new_window("tab")
        self.show()
        self.cdp("Storage.clearDataForOrigin", origin=self.origin, storageTypes="all")
        self.resize(WIDTH, HEIGHT)
        return self

    def __exit__(self, *_: object) -> None:
        # Closed before the server goes, so that no page asks it for more.
        for handle in self.driver.window_handles:
            if handle != self._home:
                self.driver.switch_to.window(handle)
                self.driver.close()
        self.driver.switch_to.window(self._home)

    def cdp(self, command: str, **arguments: Any) -> Any:
        """What Chromium's DevTools answer to that command of their protocol."""
        return self.driver.execute_cdp_cmd(command, arguments)

    def script(self, code: str, *arguments: Any) -> Any:
        """What the body of a JavaScript function returns; whatever the page's policy says."""
        return self.driver.execute_script(code, *arguments)

    # What the visitor is and has

    def log_in(self, cookie: str, *, name: str = "sessionid") -> None:
        self.cdp("Network.setCookie", name=name, value=cookie, url=self.origin, httpOnly=True)

    def emulate(self, *, scheme: str) -> None:
        """Prefer the ``"light"`` or the ``"dark"`` color scheme."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.cdp("Emulation.setEmulatedMedia", features=features)

    def without_scripts(self) -> None:
        """Run no JavaScript in the pages that are opened from now on."""
        self.cdp("Emulation.setScriptExecutionDisabled", value=True)

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.cdp("Emulation.setDeviceMetricsOverride", **size)

    def hide(self) -> None:
        """Make ``document.visibilityState`` ``"hidden"``, as another tab in front would."""
        self.driver.minimize_window()

    def show(self) -> None:
        self.driver.set_window_rect(0, 0, WIDTH, HEIGHT)

    # Going about

    def open(self, path: str) -> None:
        self.driver.get(self.origin + path)

    @property
    def path(self) -> str:
        return self.driver.current_url.removeprefix(self.origin)

    @property
    def text(self) -> str:
        """What a reader sees of the page."""
        return self.driver.find_element(By.TAG_NAME, "body").text

    def wait(self, condition: Callable[[], T], what: str = "") -> T:
        """The first true answer of `condition`; AssertionError if none comes in time."""

        def attempt(_: object) -> T | None:
            try:
                return condition()
            except WebDriverException as error:
                if _is_of_a_page_that_changes(error):
                    return None
                raise

        try:
            return WebDriverWait(self.driver, PATIENCE, poll_frequency=0.05).until(attempt)
        except TimeoutException:
            wanted = what or condition
            raise AssertionError(
                f"waited {PATIENCE} s in vain for {wanted}; {self.path} says:\n{self.text}"
            ) from None

    def wait_for_text(self, text: str) -> None:
        self.wait(lambda: text in self.text, f"the text {text!r}")

    def follow(self, element: WebElement) -> None:
        """Click on what leads to another page, and wait until that is there."""
        before = self._document()
        element.click()
        self.wait(lambda: self._document() != before and self._is_loaded(), "another page")

    def _document(self) -> str:
        """What tells this page from the one before, were it at the same address."""
        return self.cdp("Page.getFrameTree")["frameTree"]["frame"]["loaderId"]

    def _is_loaded(self) -> bool:
        return self.script("return document.readyState") == "complete"

    # Finding

    def all(
        self, role: str, name: str | None = None, *, within: WebElement | None = None
    ) -> list[WebElement]:
        """The elements of that role (and of just that name, in any case), in the page's order."""
        root = within or self.driver.find_element(By.TAG_NAME, "html")
        of_page, _, number = root.id.rpartition(".")
        tree = self.cdp("Accessibility.queryAXTree", backendNodeId=int(number), role=role)
        # chromedriver's name of an element ends with the number that DevTools know it by.
        return [
            WebElement(self.driver, f"{of_page}.{node['backendDOMNodeId']}")
            for node in tree["nodes"]
            if not node["ignored"] and (name is None or _is_named(node, name))
        ]

    def get(self, role: str, *names: str) -> WebElement:
        """The only element of that role and of one of the names; waits for it to come."""

        def only() -> WebElement | None:
            found = [each for name in names or (None,) for each in self.all(role, name)]
            assert len(found) < 2, f"{len(found)} elements are a {role} named {names}"
            return found[0] if found else None

        return self.wait(only, f"a {role} named {names}")  # type: ignore[return-value]

    # What it looks like

    def picture(self, *, tallest: int) -> bytes:
        """The page as a PNG, the whole of it or its first `tallest` pixels."""
        size = self.cdp("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"width": size["width"], "height": min(size["height"], tallest)}
        told = self.cdp(
            "Page.captureScreenshot",
            format="png",
            clip={"x": 0, "y": 0, "scale": 1} | clip,
            captureBeyondViewport=True,
        )
        return base64.b64decode(told["data"])

    def scrolls_sideways(self) -> bool:
        wide = "return document.documentElement.scrollWidth > document.documentElement.clientWidth"
        return bool(self.script(wide))

    # What it complains of

    def expect_complaint(self, text: str) -> None:
        """Let a complaint that has `text` in it pass; one must come."""
        self._expected.append(text)

    def complaints(self) -> list[str]:
        """The errors, warnings and breaches of the policy so far that no test expected."""
        self._listen()
        return [
            text for text in self._told if not any(expected in text for expected in self._expected)
        ]

    def expected_in_vain(self) -> list[str]:
        self._listen()
        return [text for text in self._expected if not any(text in told for told in self._told)]

    def _listen(self) -> None:
        self._told += [
            entry["message"] for entry in self.driver.get_log("browser") if _is_serious(entry)
        ]


def _is_of_a_page_that_changes(error: WebDriverException) -> bool:
    """Whether the next attempt may well succeed: an element is not there yet, or no longer."""
    if isinstance(error, NoSuchElementException | StaleElementReferenceException):
        return True
    return '"code":-32000' in str(error.msg)  # as the DevTools say of a node


def _is_named(node: dict[str, Any], name: str) -> bool:
    # A style sheet may write a name in capitals. Chromium 150 keeps spaces around a name.
    return bool(node["name"]["value"].strip().casefold() == name.casefold())


def _is_serious(entry: dict[str, Any]) -> bool:
    # Django's admin names no icon, and the browser asks for one.
    return entry["level"] in ("SEVERE", "WARNING") and "/favicon.ico" not in entry["message"]
