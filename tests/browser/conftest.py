"""A headless Chromium of the system; no browser is downloaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

BROWSER, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")


@pytest.fixture(scope="module")
def browser() -> Iterator[Callable[..., object]]:
    """Give the browser with a window of a size; it is one for all tests of a module."""
    if os.environ.get("TRUNKLINE_NO_BROWSER") == "1":
        pytest.skip("TRUNKLINE_NO_BROWSER=1")
    assert BROWSER.exists() and DRIVER.exists(), (  # noqa: PT018
        f"{BROWSER} and {DRIVER} are missing: apt-get install chromium chromium-driver, or TRUNKLINE_NO_BROWSER=1"
    )
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"):
        options.add_argument(argument)
    if os.getuid() == 0:
        options.add_argument("--no-sandbox")
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))

    def sized(width: int = 1280, height: int = 900) -> object:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        return driver

    try:
        yield sized
    finally:
        driver.quit()
