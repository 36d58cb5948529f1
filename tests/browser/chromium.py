"""Chromium without a window, as the tests and ``docs/make_pictures.py`` drive it."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

WAIT_SECONDS = 120
"""For what must come; a test that passes never waits so long."""
ARGUMENTS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--disable-background-networking", "--no-first-run", "--force-device-scale-factor=1",
)  # fmt: skip


def found(*names: str) -> str:
    """The first of these programs that there is."""
    for name in names:
        path = shutil.which(name)
        if path:
            return path
    raise FileNotFoundError(f"there is no {' or '.join(names)}: run tests/browser/install")


@contextlib.contextmanager
def started() -> Iterator[Browser]:
    """A browser, ended with the block."""
    options = Options()
    options.binary_location = found("chromium", "chromium-browser", "google-chrome")
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(found("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


class Browser:
    """A page in Chromium: what a person does to it, and what it looks like then."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False, media: str = "") -> None:
        """Opens an address in a window of that size, and waits until the page has drawn itself."""
        self.driver.get("about:blank")
        self.log(), self.requests()
        self.look(width=width, height=height, dark=dark, media=media)
        self.driver.get(url)
        self.wait(
            "return document.querySelectorAll('#figures .figure').length || !document.getElementById('trouble').hidden"
        )

    def look(self, *, width: int = 1280, height: int = 900, dark: bool = False, media: str = "") -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": scheme})

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, script: str, *arguments: Any) -> Any:
        """The first answer of the script that is true."""
        return WebDriverWait(self.driver, WAIT_SECONDS, 0.02).until(lambda _: self.run(script, *arguments))

    def click(self, selector: str) -> None:
        self.run("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", selector)
        self.driver.find_element("css selector", selector).click()

    def press(self, *keys: str) -> None:
        """Keys to whatever has the focus."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def type(self, selector: str, text: str) -> None:
        self.driver.find_element("css selector", selector).send_keys(text)

    def text(self, selector: str) -> str:
        found: str = self.run("return document.querySelector(arguments[0]).textContent", selector)
        return found

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.run(
            "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)", selector
        )
        return found

    def log(self) -> list[str]:
        """What the console says since it was asked last."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """The addresses that were asked for since it was asked last; what stands in the page itself is none."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith(("data:", "about:"))]
