"""Chromium, driven by a test; skipped with a reason where it cannot be."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

SECONDS = 60


class Browser:
    """One window.

    Args:
        driver: selenium's.
    """

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """Another size of the page, and another color scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives."""
        return self.driver.execute_script(f"return {expression}")

    def wait(self, expression: str) -> None:
        """Wait until a JavaScript expression is true."""
        end = time.monotonic() + SECONDS
        while not self.value(expression):
            assert time.monotonic() < end, (
                f"never true: {expression}; the page says {self.value('document.body.innerText')}"
            )
            time.sleep(0.02)

    def press(self, *keys: str) -> None:
        """Keys, where the focus is."""
        from selenium.webdriver import ActionChains

        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def messages(self) -> list[str]:
        """What the console has since the last call: errors and warnings of the page."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium with its driver."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    program = shutil.which("chromedriver")
    if browser is None or program is None:
        pytest.skip("there is no Chromium with a chromedriver here")
    pytest.importorskip("selenium", reason="selenium is not installed")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(program))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
