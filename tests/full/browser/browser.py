"""A Chromium browser, and the tab of a test.

Tests find elements by role and name, in the browser's accessibility tree. The tree also exists
without JavaScript.
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

WAIT_SECONDS = 60
"""Limit of each wait."""


def start(profile: Path) -> webdriver.Chrome:
    """Start a headless Chromium that keeps its files in the new folder `profile`."""
    options = webdriver.ChromeOptions()
    options.binary_location = find("chromium")
    for option in (*OPTIONS, f"--window-size={WIDTH},{HEIGHT}", f"--user-data-dir={profile}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options, Service(find("chromedriver")))


class Tab:
    """A new tab without cookies, storage or emulation of other tests.

    `origin` is the address of the site. The tab opens paths on it.
    """

    def __init__(self, driver: webdriver.Chrome, origin: str) -> None:
        self.driver = driver
        self.origin = origin
        self._home = driver.current_window_handle
        self._messages: list[str] = []
        self._expected: list[str] = []

    def __enter__(self) -> "Tab":
        self.driver.get_log("browser")  # discard late messages of the previous test
        self.driver.switch_to.new_window("tab")
        self.cdp("Storage.clearDataForOrigin", origin=self.origin, storageTypes="all")
        self.resize(WIDTH, HEIGHT)
        return self

    def __exit__(self, *_: object) -> None:
        # Close the pages before the server stops, so that they send no more requests.
        for handle in self.driver.window_handles:
            if handle != self._home:
                self.driver.switch_to.window(handle)
                self.driver.close()
        self.driver.switch_to.window(self._home)

    def cdp(self, command: str, **arguments: Any) -> Any:
        """Send a command of the DevTools protocol, and return the answer."""
        return self.driver.execute_cdp_cmd(command, arguments)

    def script(self, code: str, *arguments: Any) -> Any:
        """Run the body of a JavaScript function, regardless of the page's policy."""
        return self.driver.execute_script(code, *arguments)

    # Settings of the visitor

    def log_in(self, cookie: str, *, name: str = "sessionid") -> None:
        self.cdp("Network.setCookie", name=name, value=cookie, url=self.origin, httpOnly=True)

    def emulate(self, *, scheme: str) -> None:
        """Prefer the ``"light"`` or the ``"dark"`` color scheme."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.cdp("Emulation.setEmulatedMedia", features=features)

    def without_scripts(self) -> None:
        """Disable JavaScript in pages that are opened from now on."""
        self.cdp("Emulation.setScriptExecutionDisabled", value=True)

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.cdp("Emulation.setDeviceMetricsOverride", **size)

    # Navigation

    def open(self, path: str) -> None:
        self.driver.get(self.origin + path)

    @property
    def path(self) -> str:
        return self.driver.current_url.removeprefix(self.origin)

    @property
    def text(self) -> str:
        """The visible text of the page."""
        return self.driver.find_element(By.TAG_NAME, "body").text

    def wait(self, condition: Callable[[], T], what: str = "") -> T:
        """Return the first true answer of `condition`. Raises AssertionError after a timeout."""

        def attempt(_: object) -> T | None:
            try:
                return condition()
            except WebDriverException as error:
                if _is_of_a_page_that_changes(error):
                    return None
                raise

        try:
            return WebDriverWait(self.driver, WAIT_SECONDS, poll_frequency=0.05).until(attempt)
        except TimeoutException:
            wanted = what or condition
            raise AssertionError(
                f"no {wanted} within {WAIT_SECONDS} s; {self.path} shows:\n{self.text}"
            ) from None

    def wait_for_text(self, text: str) -> None:
        self.wait(lambda: text in self.text, f"the text {text!r}")

    def follow(self, element: WebElement) -> None:
        """Click on a link or button, and wait until the next page is loaded."""
        before = self._document()
        element.click()
        self.wait(lambda: self._document() != before and self._is_loaded(), "another page")

    def _document(self) -> str:
        """Return an id of this page load, which differs for the same address too."""
        return self.cdp("Page.getFrameTree")["frameTree"]["frame"]["loaderId"]

    def _is_loaded(self) -> bool:
        return self.script("return document.readyState") == "complete"

    # Elements

    def all(
        self, role: str, name: str | None = None, *, within: WebElement | None = None
    ) -> list[WebElement]:
        """Return the elements with that role (and name, ignoring case), in the page's order."""
        root = within or self.driver.find_element(By.TAG_NAME, "html")
        of_page, _, number = root.id.rpartition(".")
        tree = self.cdp("Accessibility.queryAXTree", backendNodeId=int(number), role=role)
        # The id of an element in chromedriver ends with its number in DevTools.
        return [
            WebElement(self.driver, f"{of_page}.{node['backendDOMNodeId']}")
            for node in tree["nodes"]
            if not node["ignored"] and (name is None or _is_named(node, name))
        ]

    def get(self, role: str, *names: str) -> WebElement:
        """Wait for the only element with that role and one of the names, and return it."""

        def only() -> WebElement | None:
            found = [each for name in names or (None,) for each in self.all(role, name)]
            assert len(found) < 2, f"{len(found)} elements are a {role} named {names}"
            return found[0] if found else None

        return self.wait(only, f"a {role} named {names}")  # type: ignore[return-value]

    # Appearance

    def picture(self, *, tallest: int) -> bytes:
        """Return the page as a PNG, with a height of at most `tallest` pixels."""
        size = self.cdp("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"width": size["width"], "height": min(size["height"], tallest)}
        picture = self.cdp(
            "Page.captureScreenshot",
            format="png",
            clip={"x": 0, "y": 0, "scale": 1} | clip,
            captureBeyondViewport=True,
        )
        return base64.b64decode(picture["data"])

    def scrolls_sideways(self) -> bool:
        wide = "return document.documentElement.scrollWidth > document.documentElement.clientWidth"
        return bool(self.script(wide))

    # Messages of the console

    def expect_complaint(self, text: str) -> None:
        """Allow complaints that contain `text`. At least one must come."""
        self._expected.append(text)

    def complaints(self) -> list[str]:
        """Return the unexpected errors, warnings and policy violations so far."""
        self._listen()
        return [
            text for text in self._messages if not any(each in text for each in self._expected)
        ]

    def missing_complaints(self) -> list[str]:
        self._listen()
        return [
            text for text in self._expected if not any(text in each for each in self._messages)
        ]

    def _listen(self) -> None:
        self._messages += [
            entry["message"] for entry in self.driver.get_log("browser") if _is_serious(entry)
        ]


def _is_of_a_page_that_changes(error: WebDriverException) -> bool:
    """Return whether an element is missing or stale, so that the next attempt may succeed."""
    if isinstance(error, NoSuchElementException | StaleElementReferenceException):
        return True
    return '"code":-32000' in str(error.msg)  # reported by DevTools for a node


def _is_named(node: dict[str, Any], name: str) -> bool:
    # A style sheet may write a name in capitals. Chromium 150 keeps spaces around a name.
    return bool(node["name"]["value"].strip().casefold() == name.casefold())


def _is_serious(entry: dict[str, Any]) -> bool:
    # Django's admin names no icon, and the browser asks for one.
    return entry["level"] in ("SEVERE", "WARNING") and "/favicon.ico" not in entry["message"]
