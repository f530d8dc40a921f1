"""Take the pictures of a report for the README: ``python -m benchmarks.pictures_report
demo/youth``, once evaluated.

Chromium opens ``confidential/report.html`` in light and in dark; the top of it is
``docs/report.png`` and ``docs/report-dark.png``. The examples are public tables: take
no such picture of a confidential one.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

DOCS = Path(__file__).parents[1] / "docs"
WIDTH, HEIGHT = 1180, 1025


def main() -> None:
    """Write both pictures."""
    page_of = Path(sys.argv[1]).resolve() / "confidential" / "report.html"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for scheme, name in (("light", "report.png"), ("dark", "report-dark.png")):
            size = {"width": WIDTH, "height": HEIGHT}
            page = browser.new_page(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
            page.goto(page_of.as_uri())
            page.screenshot(path=DOCS / name)
        browser.close()


if __name__ == "__main__":
    main()
