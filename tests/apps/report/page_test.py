#!/usr/bin/env python3
"""The page of `brine report` in a real browser: what it shows, what its controls do, its requests.

Usage: page_test.py BRINE"""
import base64
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zlib
from pathlib import Path

PROGRAM = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), "")
FLAGS = """--headless --no-sandbox --disable-gpu --remote-debugging-pipe --no-first-run --disable-sync
--disable-extensions --disable-background-networking --disable-component-update --hide-scrollbars
--disable-dev-shm-usage about:blank""".split()
MODEL = """batch_size = 2
sequence_length = 32
steps = 3
[model]
vocab_size = 300
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 4
ffn_dim = 48
max_position_embeddings = 32
"""
# Viridis at multiples of 1/8 (matplotlib).
STOPS = [(68, 1, 84), (71, 44, 122), (59, 81, 139), (44, 113, 142), (33, 144, 141), (39, 173, 129),
         (92, 200, 99), (170, 220, 50), (253, 231, 37)]


class Browser:
    """A headless Chromium, driven by its debugging protocol: JSON over two pipes, a zero byte ends
    each message. It notes what the page complains of and asks the network for."""

    def __init__(self, folder, page, width=1280, height=900):
        (read, self.to), (self.back, write) = os.pipe(), os.pipe()
        command = f'exec "$0" "$@" 3<&{read} 4>&{write} >/dev/null 2>&1'
        self.process = subprocess.Popen(["bash", "-c", command, PROGRAM, *FLAGS,
                                         f"--user-data-dir={folder}/profile"], pass_fds=(read, write))
        os.close(read), os.close(write)
        self.address, self.unread, self.calls = f"file://{folder}/{page}", b"", 0
        self.complaints, self.requests, self.loaded, self.session = [], [], False, {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = {"sessionId": attached["sessionId"]}
        for domain in "Page", "Runtime", "Log", "Network":
            self.call(f"{domain}.enable")
        self.resize(width, height)
        self.loaded = False
        self.call("Page.navigate", url=self.address)
        while not self.loaded:
            self.note(self.message())
        self.evaluate("brine.ready")

    def close(self):
        os.close(self.to), os.close(self.back)  # the end of its input ends the browser
        self.process.wait(60)

    def call(self, method, **parameters):
        self.calls += 1
        message = {"id": self.calls, "method": method, "params": parameters, **self.session}
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        while (answer := self.message()).get("id") != self.calls:
            self.note(answer)
        return answer["result"]

    def message(self):
        while b"\0" not in self.unread:
            new = os.read(self.back, 1 << 16)
            assert new, "the browser has ended"
            self.unread += new
        first, _, self.unread = self.unread.partition(b"\0")
        return json.loads(first)

    def note(self, event):
        method, parameters = event.get("method"), event.get("params", {})
        self.loaded = self.loaded or method == "Page.loadEventFired"
        entry = parameters.get("entry", parameters)
        if method == "Runtime.exceptionThrown" or (
                method in ("Runtime.consoleAPICalled", "Log.entryAdded") and
                entry.get("type", entry.get("level")) in ("error", "warning", "assert")):
            self.complaints.append(entry)
        if method == "Network.requestWillBeSent":
            url = parameters["request"]["url"]
            if url != self.address and not url.startswith(("data:", "blob:")):
                self.requests.append(url)

    def evaluate(self, expression):
        """The value of an expression, which may be a promise."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True,
                           returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def resize(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)

    def press(self, key):
        for kind in "keyDown", "keyUp":
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def keep(self, name, method, **parameters):
        """A picture's bytes, also in a directory that the environment may name, to look at."""
        data = base64.b64decode(self.call(method, **parameters)["data"])
        if "BRINE_SCREENSHOTS" in os.environ:
            Path(os.environ["BRINE_SCREENSHOTS"], name).write_bytes(data)
        return data

    def screenshot(self, name):
        return self.keep(name, "Page.captureScreenshot", captureBeyondViewport=True)


def planes(attention, head):
    """The bytes of a head's maps by their names."""
    side = attention["cells"]
    data = bytearray(zlib.decompress(base64.b64decode(attention["maps"][head]["bytes"])))
    out = {}
    for number, name in enumerate(attention["planes"]):
        plane = data[number * side * side:(number + 1) * side * side]
        for i in range(side, side * side):
            plane[i] = (plane[i] + plane[i - side]) % 256
        out[name] = plane
    return out


def viridis(value):
    low = min(int(8 * value), 7)
    return [a + (8 * value - low) * (b - a) for a, b in zip(STOPS[low], STOPS[low + 1])]


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.root = Path(scratch.name)
        draw = random.Random(1)
        words = "the king said unto his people and went up from place stone city water where".split()
        (cls.root / "text.txt").write_text("".join(
            " ".join(draw.choices(words, k=12)) + ".\n" for _ in range(120)))
        (cls.root / "model.toml").write_text(MODEL)
        cls.brine("tokenizer --train text.txt --vocab-size 300 --out tok")
        cls.brine("train --config model.toml --tokenizer tok --train text.txt --valid text.txt --out teacher")
        cls.brine("distill --teacher teacher --data text.txt --batch-size 2 --steps 2 --columns 12 --k 4"
                  " --attention sea --valid text.txt --out student")
        cls.brine("sweep --model student --teacher teacher --data text.txt --k 2 4 --max-windows 2"
                  " --floors --out sweep.tsv")
        cls.brine("report student teacher sweep.tsv --teacher teacher --out full.html --text",
                  "the king <script>x()</script> said")

    @classmethod
    def brine(cls, words, *more):
        subprocess.run([sys.argv[1], *words.split(), *more, "--quiet"], cwd=cls.root, check=True,
                       stdout=subprocess.DEVNULL)

    def open(self, page, *size):
        browser = Browser(self.root, page, *size)
        self.addCleanup(lambda: browser.close())
        self.addCleanup(lambda: self.assertEqual((browser.complaints, browser.requests), ([], [])))
        return browser

    def test_sections_at_two_widths_in_the_dark_and_on_paper(self):
        browser = self.open("full.html")
        self.assertEqual(browser.evaluate("document.title"), "student, teacher")
        for section in "attention", "health", "curves", "trade", "made":
            self.assertIs(browser.evaluate(f"document.getElementById('{section}').hidden"), False)
        paper = "getComputedStyle(document.body).backgroundColor"
        self.assertGreater(len(browser.screenshot("wide.png")), 50000)
        self.assertEqual(browser.evaluate(paper), "rgb(255, 255, 255)")
        browser.call("Emulation.setEmulatedMedia",
                     features=[{"name": "prefers-color-scheme", "value": "dark"}])
        self.assertGreater(len(browser.screenshot("dark.png")), 50000)
        self.assertEqual(browser.evaluate(paper), "rgb(20, 24, 29)")
        browser.resize(390, 844)
        browser.evaluate("new Promise((done) => setTimeout(done, 300))")
        browser.screenshot("narrow.png")
        # Nothing is wider than a phone's window.
        self.assertLessEqual(browser.evaluate("document.documentElement.scrollWidth"), 390)
        printed = browser.keep("printed.pdf", "Page.printToPDF", printBackground=True)
        self.assertEqual(printed[:5], b"%PDF-")
        self.assertGreater(len(printed), 50000)

    def test_a_layer_and_a_head_show_their_numbers(self):
        browser = self.open("full.html")
        page = (self.root / "full.html").read_text()
        attention = json.loads(page.split('id="data">')[1].split("</script>")[0])["attention"]
        side = attention["cells"]
        for layer, head in (0, 0), (1, 2), (0, 3):
            for name, value in ("layer", layer), ("head", head):
                browser.evaluate(f"""(async () => {{ const s = document.getElementById("{name}");
                    s.value = "{value}"; s.dispatchEvent(new Event("change"));
                    await new Promise((done) => setTimeout(done, 200)); }})()""")
            of_head = planes(attention, 4 * layer + head)
            for name, plane in of_head.items():
                largest = plane.index(max(plane))
                for at in largest, side * side - 1, side * (side - 1), side // 2 * side + 2:
                    # The colour in the middle of the cell, from the pixels that the browser drew.
                    got = browser.evaluate(f"""(() => {{ const m = brine.maps, v = m.views.{name};
                        m.cursor = null; m.zoom(Infinity);
                        const copy = new OffscreenCanvas(1, 1).getContext("2d");
                        copy.drawImage(v.canvas, -Math.floor(74 + v.side() * ({at % side} + 0.5) / {side}),
                            -Math.floor(4 + v.side() * ({at // side} + 0.5) / {side}));
                        return Array.from(copy.getImageData(0, 0, 1, 1).data); }})()""")
                    byte = plane[at]
                    position = byte / 255 if name == "mask" else max(0, byte - 1) / 254
                    for a, b in zip(got, viridis(position)):
                        self.assertLess(abs(a - b), 1.6, f"{name} of {layer}, {head} at {at}")
            # Keys move a cursor, whose numbers are read out.
            browser.evaluate("brine.maps.views.teacher.canvas.focus(); "
                             f"brine.maps.move({{row: {side - 1}, column: 3}})")
            browser.press("ArrowLeft")
            browser.press("ArrowUp")
            said = browser.evaluate("document.getElementById('readout').textContent")
            self.assertIn(f"query {side - 2} ", said)
            self.assertIn("key 2 ", said)
            byte = of_head["teacher"][(side - 2) * side + 2]
            mass = math.pow(1e-5, 1 - (byte - 1) / 254)
            number = re.search("teacher (< )?([0-9.e-]+)", said)
            self.assertEqual(bool(number[1]), byte == 0, said)
            self.assertAlmostEqual(float(number[2]) / max(mass, 1e-5), 1, 2)
        # Tokens of the text are text.
        self.assertEqual(browser.evaluate("document.getElementById('received').textContent"),
                         "the king <script>x()</script> said")
        self.assertEqual(browser.evaluate("typeof x"), "undefined")

    def test_maps_zoom_and_charts_have_whole_layers(self):
        browser = self.open("full.html")
        whole = browser.evaluate("brine.maps.columns")
        browser.evaluate("document.getElementById('zoom-in').click()")
        first, end = browser.evaluate("brine.maps.columns")
        self.assertLess(end - first, whole[1])
        browser.evaluate("document.getElementById('zoom-all').click()")
        self.assertEqual(browser.evaluate("brine.maps.columns"), whole)
        texts = "Array.from(document.querySelectorAll('#health text[y=\"402\"]')).map((x) => x.textContent)"
        self.assertEqual(browser.evaluate(texts), ["0", "1"])
        # Of two of six lines: two points, and a mark in the legend.
        self.assertEqual(browser.evaluate("document.querySelectorAll('#health circle').length"), 6)

    def test_a_chart_of_38_lines_has_whole_names_and_looks_of_their_own(self):
        name = "method {} with a long name that was cut before, k = {}"
        rows = [f"{name.format(i, i)}\t{k}\t{i + k / 2}\n" for i in range(38) for k in (16, 32)]
        (self.root / "many.tsv").write_text("attention\tk\tms\n" + "".join(rows))
        self.brine("report many.tsv --out many.html")
        browser = self.open("many.html", 390, 844)
        texts = "Array.from(document.querySelectorAll('#trade svg text'))"
        named = texts + ".filter((x) => /^method \\d+ with a long .* before, k = \\d+$/.test(x.textContent))"
        self.assertEqual(browser.evaluate(named + ".length"), 38)
        # Every text is inside the picture; on a phone the picture scrolls, not the page.
        self.assertEqual(browser.evaluate(texts + """.filter((x) => {
            const box = x.getBoundingClientRect(), all = x.ownerSVGElement.getBoundingClientRect();
            return box.left < all.left || box.right > all.right || box.top < all.top ||
                box.bottom > all.bottom; }).length"""), 0)
        self.assertLessEqual(browser.evaluate("document.documentElement.scrollWidth"), 390)
        self.assertEqual(browser.evaluate("""new Set(Array.from(document.querySelectorAll("#trade .line"),
            (x) => x.getAttribute("stroke") + x.getAttribute("stroke-dasharray") +
                x.nextElementSibling.tagName)).size"""), 38)
        browser.screenshot("many.png")


if __name__ == "__main__":
    if not PROGRAM:
        print("skipped: chromium is not installed")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
