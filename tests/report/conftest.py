"""A real browser for the tests of pages, and runs to show in it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hisparse_sim as hs

Opened = Callable[..., Any]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium without a window; skips, with the reason, where there is none."""
    pytest.importorskip("selenium", reason="selenium is not installed")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    binary = next((found for name in names if (found := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no Chromium with its chromedriver here (apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=Service(driver))
    yield opened
    opened.quit()


@pytest.fixture
def show(browser: Any) -> Opened:
    """Opens a page, as wide and as dark as wanted; nothing is remembered from the one before."""

    def show(path: Path, *, width: int = 1200, dark: bool = False) -> Any:
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(path.as_uri())
        browser.execute_script("localStorage.clear()")
        browser.get_log("browser")
        browser.refresh()
        # Two frames: charts have been drawn.
        browser.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()))"
        )
        return browser

    return show


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of small runs of one scenario, by mode."""
    into = tmp_path_factory.mktemp("runs")
    found = {}
    for mode in ("hisparse", "offload"):
        asked = hs.scenario("agentic-13turn-8xh200", mode=mode, concurrency=4, limit=5)
        found[mode] = hs.simulate(asked).save(into / mode)
    return found
