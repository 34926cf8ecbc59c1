#!/usr/bin/env python3
"""pages.py: takes the pictures of both pages that README.md shows, with chromium. Standard library only.

    python3 docs/figures/pages.py out-text out-talk        writes docs/figures/report.png and talk.png; the folders are those of docs/tutorial.md
"""
import base64
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "tests"))
folders, sys.argv[1:] = [pathlib.Path(a).resolve() for a in sys.argv[1:]], []
import web  # noqa: E402    what drives a browser in the tests; it reads options

LOSS_DRAWN = "document.querySelector('svg path, canvas')"


def keep(page, name):
    picture = base64.b64decode(page.call("Page.captureScreenshot", format="png")["data"])
    (HERE / name).write_bytes(picture)
    print(f"{name}: {len(picture)} bytes")


def main():
    text, talk = folders
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "model").symlink_to(talk)
        browser, server = web.Browser("chromium", folder), web.Server(folder, "-v", "0", "-t", "0")
        report = web.Page(browser, f"file://{text}/report.html", 1320, 740)
        report.call("Emulation.setScrollbarsHidden", hidden=True)
        report.until(LOSS_DRAWN)
        keep(report, "report.png")
        page = web.open_page(browser, server.link, 1320, 640)
        for question in "My name is Clara.", "What is the capital of Italy?", "What is a router?":
            web.send(page, question)
        page.get("document.getElementById('show-experts').click()")
        web.choose(page, "color", "3")
        page.get("[...document.querySelectorAll('.assistant .token')].find(t => t.textContent.includes('chooses') || t.textContent.includes('part')).click()")
        page.until("document.querySelector('.odds')")
        keep(page, "talk.png")
        browser.end()
        server.end()


if __name__ == "__main__":
    main()
