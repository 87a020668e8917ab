#!/usr/bin/env python3
"""scripts/run-experiment: steps of a file, rows that are kept, what is run again, what ends it."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Stands for the program: says what it was called with, trains in a moment, and fails as it is told.
PROGRAM = f"#!{sys.executable} -IS" + """
import json, os, signal, sys, time
words = sys.argv[1:]
if words == ["--version"]:
    sys.exit(print("brine 1\\ncommit        " + os.environ.get("COMMIT", "0123456789ab")))
open("calls", "a").write(" ".join(words) + "\\n")
value = dict(zip(words, words[1:]))
if words[0] == "distill":
    os.makedirs(value["--out"] + "/step-00000001", exist_ok=True)
    with open(value["--out"] + "/log.jsonl", "w") as log:
        log.write('{"step": 1, "loss": 2.5}\\n{"step": 2, "loss": 1.5}\\n{"step": 2}\\n{"st')
    if os.path.exists("slow"):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(os.rename("ready", "saved")))
        open("ready", "w")
        time.sleep(600)
elif "dies" in value.get("--k", ""):
    os.kill(os.getpid(), signal.SIGKILL)
elif "fails" in value.get("--k", ""):
    sys.exit("brine: it fails\\n")
else:
    print(json.dumps({"y": len(value["--model"]) + int(value["--k"]), "files": ["a", "b"],
                      "all": [{"z": 1}, {"z": 2, "more": {"~/": 3}}, {"more": {"~/": 4}}]}))
"""

FILE = """
title = "Students by k"
[variables]
rate = 1e-3
seeds = [1, 2]
ks = [4, 8]
[scale.small]
[scale.paper]
seeds = [1, 2, 3]
[files.text]
path = "text.txt"
fetch = "scripts/fetch-data makes it"

[[step]]
id = "student"
name = "student-{kind}-{seed}"
command = "distill --data {text} --rate {rate} {settings...} --seed {seed} --out {out}"
each.seed = "seeds"
each.kind = [{ kind = "a", settings = "" }, { kind = "b", settings = "--wide 3 --deep" }]

[[step]]
id = "value"
name = "value-{kind}-{seed}-k{k}"
command = "eval --model {runs}/student-{kind}-{seed} --k {k} --json"
each = { kind = ["a", "b"], seed = "seeds", k = "ks" }
take = { y = "/y", file = "/files/-1" }

[[step]]
id = "list"
name = "list"
command = "eval --model m --k 1"
rows = "/all"
take = { z = "/z", odd = "/more/~0~1" }

[[step]]
id = "curve"
name = "curve-{kind}"
lines = "{runs}/student-{kind}-1/log.jsonl"
each = { kind = ["a", "b"] }
take = { step = "/step", loss = "/loss" }
"""
ALL = 4 + 8 + 1 + 2 * 2  # rows


class Experiments(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = Path(scratch.name)
        (self.root / "brine").write_text(PROGRAM)
        (self.root / "brine").chmod(0o755)
        (self.root / "text.txt").write_text("text")
        (self.root / "study.toml").write_text(FILE)

    def start(self, *options, commit="0123456789ab", **more):
        command = [sys.executable, ROOT / "scripts/run-experiment", "study.toml", "--out", "out", "--brine", "./brine",
                   "--threads", "3", *options]
        environment = {**os.environ, "COMMIT": commit}
        return subprocess.Popen(command, cwd=self.root, env=environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)

    def run_script(self, *options, **more):
        process = self.start(*options, **more)
        out, error = process.communicate()
        return process.returncode, out, error

    def must(self, *options, **more):
        code, out, error = self.run_script(*options, **more)
        self.assertEqual(code, 0, error)
        return out

    def refused(self, *words, options=(), old="", new="", **more):
        """It ends with one line that has these words."""
        self.assertIn(old, FILE)
        (self.root / "study.toml").write_text(FILE.replace(old, new))
        code, _, error = self.run_script(*options, **more)
        self.assertEqual(code, 1, error)
        last = error.splitlines()[-1]
        self.assertTrue(last.startswith("run-experiment: "), error)
        for word in words:
            self.assertIn(word, last)

    def rows(self):
        path = self.root / "out/rows.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def calls(self):
        path = self.root / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    def test_rows_of_every_step_and_nothing_twice(self):
        planned = self.must("--plan").splitlines()
        self.assertEqual(len(planned), 4 + 8 + 1 + 2)
        self.assertFalse((self.root / "out").exists())
        runs = "out/runs/0123456789ab"
        student = f"distill --data text.txt --rate 0.001 --wide 3 --deep --seed 2 --out {runs}/student-b-2"
        self.assertIn(f"     student-b-2: {student}", planned)
        printed = self.must()
        rows = self.rows()
        self.assertEqual([row["step"] for row in rows],
                         ["student"] * 4 + ["value"] * 8 + ["list"] + ["curve"] * 4)
        self.assertEqual(len(self.calls()), 4 + 8 + 1)
        row = rows[3]
        self.assertEqual(row["command"], f"brine {student} --threads 3")
        self.assertEqual((row["name"], row["seed"], row["values"]), ("student-b-2", 2, {}))
        self.assertEqual(row["axes"], {"kind": "b", "seed": "2", "settings": "--wide 3 --deep"})
        for row in rows:
            self.assertEqual((row["experiment"], row["scale"], row["commit"], len(row["definition"])),
                             ("study", "small", "0123456789ab", 64))
            self.assertTrue(row["machine"].endswith(", 3 threads"))
            self.assertRegex(row["date"], r"^\d{4}-\d\d-\d\d$")
        value = len(f"{runs}/student-a-1") + 4
        self.assertEqual((rows[4]["name"], rows[4]["values"]),
                         ("value-a-1-k4", {"file": "b", "y": value}))
        self.assertEqual(rows[12]["values"], {"odd": 3, "z": 2})
        self.assertEqual([row["values"] for row in rows[13:15]],
                         [{"loss": 2.5, "step": 1}, {"loss": 1.5, "step": 2}])
        self.assertIn(f"value-a-1-k4  file b  y {value}\n", printed)
        self.assertEqual(len(printed.splitlines()), ALL - 4)
        self.assertEqual(self.must(), printed)
        self.assertEqual((self.rows(), self.calls()), (rows, []))
        self.assertEqual(self.must("--plan").count("done "), 4 + 8 + 1 + 2)

    def test_scale_set_and_steps(self):
        self.assertEqual(len(self.must("--plan", "--scale", "paper").splitlines()), 6 + 12 + 1 + 2)
        planned = self.must("--plan", "--set", "ks=3 5 7", "--set", "rate=2", "--steps", "value")
        self.assertEqual(len(planned.splitlines()), 12)
        self.must("--steps", "student", "--set", "rate=2", "--jobs", "2")
        self.assertTrue(all("--rate 2 " in call for call in self.calls()))
        self.assertEqual(len(self.rows()), 4)

    def test_another_definition_or_commit_runs_again(self):
        self.must()
        first = self.rows()
        self.calls()
        # Values of the students that changed, too, but not the list, which reads none of them.
        self.must("--set", "rate=2")
        calls = self.calls()
        self.assertEqual(len(calls), 4 + 8)
        self.assertIn("--resume", calls[0])  # the program refuses to continue with other settings
        self.assertEqual(self.rows()[:ALL], first)
        self.must(commit="another")
        self.assertEqual([word for call in self.calls() for word in call.split() if "resume" in word], [])
        self.assertEqual(len(self.rows()), ALL + ALL - 1 + ALL)

    def until(self, path):
        for _ in range(6000):
            if (self.root / path).exists():
                return
            time.sleep(.01)
        self.fail(f"{path} is not there")

    def test_a_matrix_that_was_killed_goes_on(self):
        self.must("--steps", "student", "--set", "seeds=1")
        whole = self.rows()
        self.calls()
        (self.root / "slow").touch()
        for number in signal.SIGTERM, signal.SIGKILL:
            process = self.start()
            self.until("ready")
            process.send_signal(number)
            _, error = process.communicate()
            if number == signal.SIGTERM:
                self.assertEqual(process.returncode, 1)
                self.assertIn("stopped by SIGTERM", error.splitlines()[-1])
            self.until("saved")  # the run gets SIGTERM either way
            (self.root / "saved").unlink()
            self.assertEqual(self.rows(), whole)
            self.assertEqual(len(self.calls()), 1)
        (self.root / "slow").unlink()
        with open(self.root / "out/rows.jsonl", "a") as rows:
            rows.write('{"step": "student", "na')  # a line that was cut off
        self.must()
        calls = self.calls()
        self.assertEqual(len(calls), 2 + 8 + 1)
        self.assertTrue(calls[0].endswith("/student-a-2 --resume --threads 3"))
        self.assertNotIn("--resume", calls[1])
        self.assertEqual(len(self.rows()), ALL)
        self.assertEqual(len({row["name"] for row in self.rows()}), 4 + 8 + 1 + 2)

    def test_a_log_path_that_is_a_directory(self):
        for name in (".json", ".log"):
            path = self.root / "out/logs" / ("student-a-1" + name)
            path.mkdir(parents=True)
            self.refused("Is a directory", str(path.relative_to(self.root)))
            self.assertEqual(self.calls(), [])  # nothing was started
            path.rmdir()
        self.must()

    def test_a_step_that_fails_makes_no_row(self):
        ignored = {"preexec_fn": lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)}
        for more in {}, ignored:
            for k, words in (("fails", ["status 1", "out/logs/value-a-1-kfails.log: brine: it fails"]),
                             ("dies", ["value-a-1-kdies ended with signal 9"])):
                self.refused(*words, options=["--set", f"ks={k}"], **more)
                self.assertEqual([row["step"] for row in self.rows()], ["student"] * 4)
        self.refused("value-a-1-k4: its output has no /x", old='"/y"', new='"/x"', **ignored)
        self.refused("list: no element of /none has all of its values", old='"/all"', new='"/none"',
                     options=["--steps", "list"])
        self.refused("curve-a: no element of ", old='"/loss"', new='"/lost"', options=["--steps", "curve"])
        self.assertEqual(len(self.rows()), 4)

    def test_what_is_wrong_with_a_file_is_one_line(self):
        for new, word in (("titel =", "unknown key titel"), ("", "study.toml: ")):
            self.refused(word, old="title =", new=new)
        self.refused("step student: unknown key cmmand, no", old="name = \"student-{kind}-{seed}\"\ncommand",
                     new="cmmand")
        self.refused("step value", "each must be a table", old="each = { kind = [\"a\", \"b\"], s", new="each = 3 #")
        self.refused("step student", "no variable {rat}", old="{rate}", new="{rat}")
        self.refused("two steps are named value-a-1", old="-k{k}", new="")
        self.refused("refer to each other", old="rate = 1e-3", new='rate = "{rate}"')
        self.refused("each.k", "the name of one", old='"ks"', new='"kss"')
        self.refused("step list: needs command", old='command = "eval --model m --k 1"', new="")
        self.refused("text none.txt is missing; scripts/fetch-data makes it", old="text.txt", new="none.txt")
        self.refused("--set nothing=1: study.toml has no variable nothing", options=["--set", "nothing=1"])
        self.refused("its steps are student value list curve", options=["--steps", "curves"])
        self.refused("has no scale paper", old="[scale.paper]", new="[scale.large]", options=["--scale", "paper"])
        self.refused("No such file", "missing", options=["--brine", "./missing"])
        (self.root / "study.toml").unlink()
        code, _, error = self.run_script()
        self.assertIn("there is no study.toml; known are ablations", error)
        self.assertEqual((code, self.rows(), self.calls()), (1, [], []))


if __name__ == "__main__":
    unittest.main()
