#!/usr/bin/env python3
"""scripts/quickstart with a decoder that learned next to nothing, and --classifier on a WordNet of a few hundred
glosses. Usage: quickstart_test.py PROGRAM"""
import json
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# The class of a gloss is told by its first word.
KINDS = {"noun": [("05", "beast"), ("06", "tool")], "verb": [("38", "move")], "adj": [("00", "hot")], "adv": [("02", "soon")]}


def write_wordnet(folder):
    draw = random.Random(1)
    words = ["".join(draw.choice("abcdefgh") for _ in range(4)) for _ in range(60)]
    for name, kinds in KINDS.items():
        text = "  licence\n"
        for number in range(600):
            file, head = kinds[number % len(kinds)]
            gloss = " ".join([head, *(draw.choice(words) for _ in range(8))])
            text += f"{len(text):08} {file} n 01 word 0 000 | {gloss}  \n"
        (folder / f"data.{name}").write_text(text)


def quickstart(*words):
    command = [ROOT / "scripts/quickstart", "--brine", PROGRAM, *words]
    return subprocess.run(command, capture_output=True, text=True, errors="replace")


class Decoder(unittest.TestCase):
    def test_every_step_runs_and_a_needle_that_is_not_found_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            draw = random.Random(1)
            words = ["".join(draw.choice("abcdefgh") for _ in range(4)) for _ in range(60)]
            (folder / "text").mkdir()
            for name in ("train", "valid", "test"):
                text = "".join(" ".join(draw.choices(words, k=12)) + ".\n" for _ in range(2000))
                (folder / f"text/{name}.txt").write_text(text)
            train = folder / "text/train.txt"

            def brine(*flags):
                done = subprocess.run([PROGRAM, *flags], capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr)

            brine("tokenizer", "--train", train, "--vocab-size", "400", "--out", folder / "tokenizer")
            brine("train", "--config", ROOT / "configs/quickstart-teacher-short.toml", "--tokenizer", folder / "tokenizer", "--train", train, "--steps", "2",
                  "--model.vocab-size", "400", "--model.max-position-embeddings", "4096", "--threads", "1", "--out", folder / "model")
            done = quickstart("--model", folder / "model", "--text", folder / "text", folder / "out")
            self.assertEqual(done.returncode, 1, done.stderr[-2000:])
            self.assertIn(".9 of the needle", done.stderr)
            table = (folder / "out/table.md").read_text().splitlines()
            self.assertEqual(len(table), 8)
            self.assertIn(table[-1], done.stdout)
            exact, student = (float(line.split("|")[3]) for line in table[2:4])
            self.assertLess(abs(student / exact - 1), 0.02)
            for line in table[2:6]:
                self.assertRegex(line, r"^\|[^|]+\| [\d,]+ \| \d+\.\d\d \| \d\.\d\d \| [\d.]+ \|")
            self.assertTrue((folder / "out/student-hf/config.json").exists())
            self.assertTrue((folder / "out/report.html").exists())


class Classifier(unittest.TestCase):
    def test_table_and_rows(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            write_wordnet(folder)
            done = quickstart("--classifier", "--data", folder, "--steps", "150", folder / "out")
            self.assertEqual(done.returncode, 0, done.stderr[-2000:])
            rows = [json.loads(line) for line in (folder / "out/rows.jsonl").read_text().splitlines()]
            values = {row["axes"]["attention"].split(",")[-1].strip(): row["values"] for row in rows}
            self.assertEqual(len(rows), 5)
            self.assertGreater(values["all keys"]["accuracy"], 0.9)
            self.assertGreater(values["distilled"]["accuracy"], 0.6)
            for keys in ("its largest keys (needs exact scores)", "distilled"):
                self.assertGreater(values[keys]["recall"], values["nearest keys"]["recall"])
            for row in rows:
                self.assertEqual(row["values"].keys(), {"accuracy", "recall"})
                self.assertIn("--steps 150", row["command"])
            table = (folder / "out/table.md").read_text().splitlines()
            self.assertEqual(len(table), 7)
            self.assertIn(f"| SEA, distilled | 4 | {values['distilled']['accuracy']:.3f} |", table[-1])
            self.assertIn(table[-1], done.stdout)
            self.assertTrue((folder / "out/student-hf/config.json").exists())

    def test_a_task_without_its_files_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            done = quickstart("--classifier", "--task", "sst2", "--data", folder, f"{folder}/out")
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"no SST-2 in '{folder}'", done.stderr)
            self.assertEqual(quickstart("--classifier", "--task", "cola", f"{folder}/other").returncode, 1)


if __name__ == "__main__":
    PROGRAM = Path(sys.argv.pop()).resolve()
    unittest.main()
