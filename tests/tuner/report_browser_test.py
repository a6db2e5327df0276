# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tests report pages in headless Chromium, as wide as a phone and as a screen: nothing sticks out, nothing fails,
each picture is shown once.

usage: report_browser_test.py PROGRAM WRITE_JOURNAL
"""
import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM = WRITE_JOURNAL = ""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
JOURNALS = Path(__file__).resolve().parents[1] / "golden" / "journals"

# The page lies in a frame, since a browser window cannot be as narrow as a phone. The frame's findings are written
# into the document that holds it.
FRAME = """<!DOCTYPE html><meta charset="utf-8"><body style="margin:0">
<iframe id="page" style="border:0;width:%(width)dpx;height:800px"></iframe><pre id="found"></pre>
<script>
const page = document.getElementById('page');
const errors = [];
page.onload = () => {
  const inner = page.contentWindow, content = page.contentDocument;
  inner.addEventListener('error', event => errors.push(String(event.message)));
  for (const details of content.querySelectorAll('details')) details.open = true;
  const scrolls = element => element && element !== content.body &&
    (inner.getComputedStyle(element).overflowX !== 'visible' || scrolls(element.parentElement));
  const outside = [];
  for (const element of content.querySelectorAll('body *')) {
    const box = element.getBoundingClientRect();
    if (box.width > 0 && box.right > %(width)d + 0.5 && !scrolls(element.parentElement)) outside.push(element.tagName + ' ' + box.right);
  }
  const texts = [];
  for (const svg of content.querySelectorAll('svg[role=img]')) {
    const all = svg.getBoundingClientRect();
    if (all.width === 0) continue;
    for (const text of svg.querySelectorAll('text')) {
      const box = text.getBoundingClientRect();
      if (box.right > all.right + 1 || box.left < all.left - 1) texts.push(text.textContent);
    }
  }
  const shown = [...content.querySelectorAll('svg[role=img]')].filter(svg => svg.getBoundingClientRect().width > 0);
  const smallest = Math.min(...shown.flatMap(svg => [...svg.querySelectorAll('text')].map(
    text => parseFloat(inner.getComputedStyle(text).fontSize) * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width)));
  document.getElementById('found').textContent = JSON.stringify({
    errors, outside: outside.slice(0, 10), texts: texts.slice(0, 10), smallest, width: content.documentElement.scrollWidth,
    labels: shown.map(svg => svg.getAttribute('aria-label')), all: content.querySelectorAll('svg[role=img]').length});
};
page.src = %(source)s;
</script>"""


@unittest.skipUnless(CHROMIUM, "Chromium is not installed (Debian package chromium)")
class Browser(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def page(self, journal):
        output = self.folder / f"{journal.stem}.html"
        subprocess.run([PROGRAM, "report", journal, "-o", output], check=True, timeout=100, stdout=subprocess.DEVNULL)
        return output

    def simulated(self, kind):
        journal = self.folder / f"{kind}.jsonl"
        with journal.open("wb") as file:
            subprocess.run([WRITE_JOURNAL, kind], stdout=file, timeout=100, check=True)
        return journal

    def look(self, page, width):
        frame = self.folder / "frame.html"
        frame.write_text(FRAME % {"width": width, "source": json.dumps(page.as_uri())}, encoding="utf-8")
        done = subprocess.run(
            [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files",
             f"--user-data-dir={self.folder / 'profile'}", "--virtual-time-budget=5000", f"--window-size={max(width, 600)},900",
             "--dump-dom", frame.as_uri()],
            capture_output=True, text=True, timeout=240, check=True)
        found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
        self.assertIsNotNone(found, done.stdout[-2000:] + done.stderr[-2000:])
        return json.loads(html.unescape(found.group(1)))

    def test_pages_fit_phones_and_screens(self):
        journals = [JOURNALS / "half_1gbit.jsonl", JOURNALS / "lossy_200mbit.jsonl", self.simulated("changes"), self.simulated("many")]
        for journal in journals:
            page = self.page(journal)
            labels = {}
            for width in [360, 768, 1280]:
                with self.subTest(journal.name, width=width):
                    found = self.look(page, width)
                    self.assertEqual(found["errors"], [])
                    self.assertEqual(found["outside"], [])
                    self.assertEqual(found["texts"], [], "text outside of its picture")
                    self.assertLessEqual(found["width"], width)
                    self.assertGreaterEqual(found["smallest"], 8, "px, of text in pictures")
                    self.assertEqual(2 * len(found["labels"]), found["all"], "each picture is shown for one width")
                    labels[width] = found["labels"]
            self.assertEqual(labels[360], labels[1280])
            self.assertGreaterEqual(len(labels[360]), 3, "steps, buckets, and one step at least")


if __name__ == "__main__":
    WRITE_JOURNAL = sys.argv.pop(2)
    PROGRAM = sys.argv.pop(1)
    unittest.main()
