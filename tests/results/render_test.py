#!/usr/bin/env python3
"""scripts/render-results --check passes on the repository and notices what it has to; charts have
the points, marks and room that they need."""
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import line_chart
BLOCKS = "docs/paper/blocks"


class Pages(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = Path(scratch.name)
        shutil.copy(ROOT / "README.md", self.root)
        for path in ROOT.iterdir():  # links lead to folders of sources, too
            if path.is_dir() and path.name not in ("docs", "configs", "build", ".git", "runs"):
                (self.root / path.name).symlink_to(path)
            elif path.suffix == ".md" and path.name != "README.md":
                (self.root / path.name).symlink_to(path)
        for folder in ("docs", "configs"):
            shutil.copytree(ROOT / folder, self.root / folder)

    def run_script(self, *options):
        command = [ROOT / "scripts/render-results", "--root", self.root, *options]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def change(self, name, old, new):
        path = self.root / name
        text = path.read_text()
        self.assertIn(old, text)
        path.write_text(text.replace(old, new, 1))

    def refused(self, *words):
        code, text = self.run_script("--check")
        self.assertEqual(code, 1, text)
        for word in words:
            self.assertIn(word, text)

    def test_the_pages_equal_their_rows(self):
        code, text = self.run_script("--check")
        self.assertEqual(code, 0, text)

    def test_a_number_that_was_changed_by_hand(self):
        self.change(f"{BLOCKS}/README.md", "22.21", "21.21")
        self.refused(f"{BLOCKS}/README.md:", "differs from its rows")
        self.assertEqual(self.run_script()[0], 0)
        self.assertEqual(self.run_script("--check")[0], 0)

    def test_a_new_row_takes_the_place_of_the_old_one(self):
        path = self.root / BLOCKS / "rows.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        row = next(row for row in rows if row["name"] == "masks-block-topk-1004")
        row["values"]["perplexity"] = 12.34
        path.write_text(path.read_text() + json.dumps(row) + "\n")
        self.refused(f"{BLOCKS}/README.md:")
        self.run_script()
        self.assertIn("| 12.34 |", (self.root / BLOCKS / "README.md").read_text())

    def test_tables_without_rows_links_and_length(self):
        with open(self.root / "docs/results.md", "a") as page:
            page.write("| a | b |\n[x](nowhere.md) [y](method.md#no-such)\n" + "\n" * 120)
        self.refused("no rows make", "nowhere.md", "no such heading", "at most 120")

    def test_a_machine_without_a_name(self):
        self.change(f"{BLOCKS}/rows.jsonl", '"machine":"', '"machine":"another ')
        self.refused(f"{BLOCKS}/rows.jsonl:1", "no known machine")

    def test_a_row_without_a_commit(self):
        path = self.root / BLOCKS / "rows.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows[0]["commit"] = "unknown"
        del rows[1]["commit"]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.refused(f"{BLOCKS}/rows.jsonl:1: no commit", f"{BLOCKS}/rows.jsonl:2: no commit")

    def test_an_experiment_describes_its_own_steps(self):
        for path in (ROOT / "configs/experiments").glob("*.toml"):
            file = tomllib.loads(path.read_text())
            steps = {step["id"] for step in file["step"]}
            for spec in file.get("table", []) + file.get("figure", []):
                self.assertIn(spec["step"], steps, path)
                self.assertIn(spec.get("join", spec["step"]), steps, path)

    def test_descriptions_with_other_keys(self):
        self.change("docs/paper/blocks/tables.toml", "columns =", "colums =")
        self.refused("docs/paper/blocks/tables.toml", "table", "unknown key colums")

    def test_an_experiment_without_rows_for_a_table(self):
        (self.root / "tables.toml").write_text('[[table]]\nname = "by-k"\nstep = "other"\n')
        (self.root / "rows.jsonl").write_text('{"step": "s", "values": {"y": 1}}\n')
        code, text = self.run_script(self.root)
        self.assertEqual(code, 1)
        self.assertIn("by-k: no row fits", text)
        self.assertEqual(self.run_script(self.root, "--check")[0], 2)

    def test_values_over_those_of_another_row(self):
        (self.root / "tables.toml").write_text(
            '[[table]]\nname = "t"\nrows = ["kind"]\nvalues = ["y", "z"]\n'
            'step = ["s", "t"]\nwhere = { n = 1 }\nover = { kind = "a" }\nplain = ["z"]\n'
            '[[figure]]\nname = "f"\ntitle = "f"\nx = "z"\ny = "y"\nstep = ["s", "t"]\n'
            'series = ["kind", "n"]\nover = { kind = "a" }\nlabels = { b = "B" }\n')
        (self.root / "rows.jsonl").write_text("".join(
            json.dumps({"step": step, "axes": {"kind": kind, "n": n},
                        "values": {"y": y * n, "z": 3}}) + "\n"
            for n in (1, 2) for step, kind, y in (("s", "a", 2), ("t", "b", 5), ("u", "c", 7))))
        code, text = self.run_script(self.root)
        self.assertEqual(code, 0, text)
        self.assertIn("| a | 1.000 | 3.000 |\n| b | 2.500 | 3.000 |\n\n", text)
        self.assertEqual((self.root / "f.svg").read_text(), line_chart.svg({
            "title": "f", "x_label": "z", "y_label": "y", "log_x": False, "log_y": False,
            "lines": [{"name": name, "points": [[3, y]]} for name, y in
                      [("a, 1", 1), ("B, 1", 2.5), ("a, 2", 1), ("B, 2", 2.5)]]}))

    def test_the_directory_of_an_experiment(self):
        def row(step, kind, k, seed, values, definition="1"):
            return {"step": step, "name": f"{step}-{kind}-{k}-{seed}", "seed": seed,
                    "definition": definition, "axes": {"kind": kind, "k": k}, "values": values}
        (self.root / "tables.toml").write_text("""
[[table]]
name = "by-k"
title = "y by k"
step = "s"
rows = ["k"]
values = ["y"]
[[figure]]
name = "chart"
title = "y over time"
step = "s"
join = "time"
x = "t"
y = "y"
series = "kind"
logarithmic = ["x"]
""")
        rows = [row("time", "a", "4", 1, {"t": 0.5}), row("time", "b", "4", 1, {"t": "2"}),
                row("s", "a", "4", 10, {"y": 10}), row("s", "a", "4", 2, {"y": 9}),
                row("s", "a", "4", 2, {"y": 2}), row("s", "b", "4", 1, {"y": 7}, "old"),
                row("s", "b", "4", 1, {"y": 1}), row("s", "c", "8", 1, {"y": 3})]
        (self.root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        code, text = self.run_script(self.root)
        self.assertEqual(code, 0, text)
        self.assertIn("## y by k\n\n| k | y |\n| --- | --- |\n| 4 | ", text)
        self.assertEqual((self.root / "chart.svg").read_text(), line_chart.svg({
            "title": "y over time", "x_label": "t", "y_label": "y", "log_x": True, "log_y": False,
            "lines": [{"name": "b", "points": [[2.0, 1.0]]},
                      {"name": "a", "points": [[0.5, 2.0], [0.5, 10.0]]}]}))
        rows[0]["values"]["t"] = 0
        (self.root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        code, text = self.run_script(self.root)
        self.assertEqual(code, 1)
        self.assertIn("chart: 0 cannot be shown on a logarithmic axis", text)

    def test_a_figure_that_was_changed_by_hand(self):
        self.change(f"{BLOCKS}/quality-time.svg", "<svg", "<svg ")
        self.refused(f"{BLOCKS}/quality-time.svg: differs from its rows")


class Charts(unittest.TestCase):
    def svg(self, *lines, log_x=False, title="t"):
        return line_chart.svg({"title": title, "x_label": "x", "y_label": "y", "log_x": log_x,
                               "log_y": False, "lines": [{"name": f"line {i}", "points": points}
                                                         for i, points in enumerate(lines)]})

    def ticks(self, svg):
        return re.findall(r'y="402.0" text-anchor="middle">([^<]*)<', svg)

    def test_a_line_is_through_the_means_and_text_is_text(self):
        svg = self.svg([[8, 2], [4, 1.5], [4, 2.5]], [[4, 3]], log_x=True, title='x < "y" & z')
        self.assertIn("<title>x &lt; &quot;y&quot; &amp; z</title>", svg)
        self.assertEqual(svg.count("<circle"), 3)  # two points of the first line, and its legend
        self.assertEqual(svg.count("<rect"), 3)    # the ground, one point, its legend
        # The mean of 1.5 and 2.5 is at the height of 2; the first line is drawn last.
        (x0, y0, x1, y1), = re.findall(r'd="M(\S+) (\S+)L(\S+) (\S+)"', svg)
        self.assertLess(float(x0), float(x1))
        self.assertEqual(y0, y1)
        with self.assertRaisesRegex(ValueError, "0 cannot be shown on a logarithmic axis"):
            self.svg([[0, 1.5]], log_x=True)

    def test_whole_numbers_have_whole_marks_and_a_point_has_a_position(self):
        self.assertEqual(self.ticks(self.svg([[0, 0.5], [1, 0.75]])), ["0", "1"])
        self.assertGreater(len(self.ticks(self.svg([[0.5, 0.5], [1, 0.75]]))), 2)
        self.assertEqual(self.ticks(self.svg([[3, 0.5]])), ["3"])
        self.assertEqual(self.svg([[x, 0.5] for x in range(100)]).count("<circle"), 1)

    def test_many_lines_have_room_and_looks_of_their_own(self):
        self.assertIn('viewBox="0 0 720 440"', self.svg([[0, 1]]))
        svg = self.svg(*([[0, y]] for y in range(38)), title="t" * 200)
        self.assertIn('viewBox="0 0 1678 824"', svg)
        looks = re.findall(r'stroke="(\S+)" stroke-dasharray="([^"]*)" d="[^"]*"/>\n<(\S+)', svg)
        self.assertEqual(len(set(looks)), 38)


if __name__ == "__main__":
    unittest.main()
