#!/usr/bin/env python3
"""Tests of what no other test runs: links of scripts/site, scripts/speed-gate, scripts/fetch-data, subjects of scripts/style,
files that READMEs name."""
import importlib.machinery
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def script(name):
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), str(ROOT / "scripts" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def site():
    return script("site")


class Site(unittest.TestCase):
    def test_every_link_of_a_page_leads_to_a_file(self):
        script = site()
        files = script.copies()
        pages = [path for path in files if path.suffix == ".md"]
        self.assertGreater(len(pages), 20)
        for path in pages:
            script.linked(path, path.read_text(), files)

    def test_a_broken_link_is_named(self):
        script = site()
        with self.assertRaises(SystemExit) as error:
            script.linked(ROOT / "README.md", "[x](docs/missing.md)", script.copies())
        self.assertEqual(str(error.exception), "site: README.md leads to docs/missing.md, which does not exist")

    def test_links_lead_to_copies_and_other_files_become_paths(self):
        script = site()
        text = script.linked(ROOT / "README.md", "[a](docs/guide.md#install) [b](scripts/style)", script.copies())
        self.assertEqual(text, "[a](guide.md#install) b (`scripts/style`)")

    def test_a_notebook_becomes_a_page_with_its_pictures(self):
        with tempfile.TemporaryDirectory() as folder:
            page = script("site").notebook(ROOT / "apps/python/examples/attached_blocks.ipynb",
                                           lambda n: Path(folder, f"x-{n}.png"))
            self.assertEqual(Path(folder, "x-1.png").read_bytes()[1:4], b"PNG")
        self.assertIn("```py\nbrine_sea.attach(model", page)
        self.assertIn("```\nkeys read: ", page)
        self.assertIn('<img src="x-1.png"', page)


class Readmes(unittest.TestCase):
    def missing(self, folder, text):
        """The files in backquotes that are neither in the folder nor in the repository."""
        names = re.findall(r"`([a-z0-9_/.]+\.(?:h|cpp|cu|cuh|py|js))`", text)
        return [name for name in names if not (ROOT / folder / name).exists() and not (ROOT / name).exists()]

    def test_files_that_a_folder_names_exist(self):
        example = ["commands/count.cpp"]  # a command to add, in apps/README.md
        for folder in "apps autograd data distill nn sea tensor".split():
            missing = self.missing(folder, (ROOT / folder / "README.md").read_text())
            self.assertEqual([name for name in missing if name not in example], [], folder)

    def test_a_missing_file_is_found(self):
        self.assertEqual(self.missing("data", "`io/json.h` `json.h` `tensor/tensor.h`"), ["json.h"])


class SpeedGate(unittest.TestCase):
    def test_a_time_a_tenth_above_the_accepted_one_is_named(self):
        accepted = {"flash, 4096": 100, "blocks, 4096": 50, "sea, 4096": 70}
        lines = script("speed-gate").slower(accepted, {"flash, 4096": 109, "blocks, 4096": 56})
        self.assertEqual(lines, ["sea, 4096: not measured", "blocks, 4096: 56.0 ms, accepted 50.0"])


class FetchData(unittest.TestCase):
    def fetch(self, tasks, *names):
        """From local files of these tasks of GLUE."""
        with tempfile.TemporaryDirectory() as folder:
            source, out = Path(folder) / "source", Path(folder) / "out"
            source.mkdir()
            for task in tasks:
                (source / task).mkdir()
                for split in "train dev test".split():
                    (source / task / f"{split}.tsv").write_text(f"{task} {split}\n")
            command = [ROOT / "scripts/fetch-data", "--out", out, "--from", source, *names]
            result = subprocess.run(command, capture_output=True, text=True)
            return result, sorted(path.parent.name for path in out.glob("glue/*/train.tsv"))

    def test_glue_goes_on_behind_a_task_that_is_missing(self):
        result, found = self.fetch(["CoLA", "RTE"], "glue")
        self.assertEqual((result.returncode, found), (0, ["CoLA", "RTE"]))
        last = result.stderr.splitlines()[-1]
        self.assertEqual(last, "of GLUE, these could not be had: sst2 mrpc qqp stsb mnli qnli wnli")

    def test_glue_fails_without_any_task(self):
        result, found = self.fetch([], "glue")
        self.assertEqual((result.returncode, found), (1, []))
        self.assertEqual(result.stderr.splitlines()[-1], "fetch-data: no task of GLUE could be had")

    def test_a_data_set_that_was_named_must_come(self):
        result, found = self.fetch(["CoLA"], "rte", "cola")
        self.assertEqual((result.returncode, found), (1, []))
        self.assertIn("rte: could not be had", result.stderr)


class Subjects(unittest.TestCase):
    def commit(self, folder, subject):
        environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        command = ["git", *who, "commit", "-q", "--allow-empty", "-m", subject]
        subprocess.run(command, cwd=folder, check=True, env=environment)

    def test_a_subject_has_at_most_72_characters(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "scripts").mkdir()
            shutil.copy(ROOT / "scripts/style", Path(folder) / "scripts/style")
            subprocess.run(["git", "init", "-q"], cwd=folder, check=True)

            def check():
                return subprocess.run(["scripts/style", "--subjects"], cwd=folder, capture_output=True, text=True)

            self.commit(folder, "a" * 72)
            self.assertEqual(check().returncode, 0, check().stderr)
            self.commit(folder, "b" * 73)
            self.assertNotEqual(check().returncode, 0)
            self.assertIn("73: " + "b" * 73, check().stderr)
            self.assertNotIn("a" * 72, check().stderr)


if __name__ == "__main__":
    unittest.main()
