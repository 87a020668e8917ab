#!/usr/bin/env python3
"""lm-evaluation-harness scores a student as `brine eval --suite ruler` does.

    pip install torch transformers accelerate lm-eval h5py
    python3 tests/peer/lm_eval_task.py build/release/brine EXPORT --tasks passkey,niah_single --length 512

EXPORT is a directory of `brine export --format transformers`. brine writes its prompts (--write-prompts), which
become a task of local JSON lines: nothing is downloaded, and the harness runs unchanged, `--model hf` with
trust_remote_code. Compared is the mean negative log-likelihood of a token of the answers ("nll").
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TOLERANCE = 1e-4
TASK = """\
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: loglikelihood
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: ""
metric_list:
  - metric: acc
  - metric: perplexity
"""


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


def scored_by_suite(options, work):
    """The prompts of the suite by task, and brine's nll of each."""
    file = work / "prompts.jsonl"
    command = [options.brine, "eval", "--suite", "ruler", "--model", options.model, "--tasks", options.tasks]
    command += ["--lengths", options.length, "--samples", options.samples, "--compare", "dense", "--no-generate"]
    out = json.loads(run(*command, "--write-prompts", file, "--json", "--quiet", "--threads", options.threads))
    nll = {row["task"]: row["nll"] for row in out["tasks"] if row["method"] == "student"}
    return by_task(file), nll


def by_task(file):
    tasks = {}
    for line in file.read_text().splitlines():
        prompt = json.loads(line)
        tasks.setdefault(prompt["task"], []).append(prompt)
    return tasks


def scored_by_harness(options, work, tasks):
    """What lm_eval makes of the same prompts: nll, accuracy and lm_eval's perplexity by task."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    for name, prompts in tasks.items():
        file = work / f"{name}.jsonl"
        rows = [{"prompt": p["prompt"], "answer": p["answer"], "tokens": len(p["answer_ids"])} for p in prompts]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        (work / f"brine_{name}.yaml").write_text(TASK.format(name=f"brine_{name}", file=file))
    results = lm_eval.simple_evaluate(
        model="hf",
        model_args=f"pretrained={options.model},trust_remote_code=True,dtype=float32",
        tasks=[f"brine_{name}" for name in tasks],
        task_manager=TaskManager(include_path=str(work), include_defaults=False),
        batch_size=options.batch_size,
        device="cpu",
        log_samples=True,
        bootstrap_iters=0,
    )
    scores = {}
    for name in tasks:
        samples = results["samples"][f"brine_{name}"]
        means = [-sample["filtered_resps"][0][0] / sample["doc"]["tokens"] for sample in samples]
        harness = results["results"][f"brine_{name}"]
        scores[name] = (sum(means) / len(means), harness["acc,none"], harness["perplexity,none"])
    return scores


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("brine")
    parser.add_argument("model", help="directory of brine export --format transformers")
    parser.add_argument("--tasks", default="passkey,niah_single", help="tasks with one reference")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--samples", type=int, default=1, help="for each of five depths")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    # Nothing is fetched: the task is local.
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "apps" / "python"))
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        os.environ.setdefault("HF_DATASETS_CACHE", str(work / "datasets"))
        tasks, nll = scored_by_suite(options, work)
        scores = scored_by_harness(options, work, tasks)
    for name, (harness, accuracy, perplexity) in scores.items():
        good = math.isclose(harness, nll[name], rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        failures += not good
        print(
            f"{name:16} brine nll {nll[name]:.6f}  lm_eval nll {harness:.6f}  acc {accuracy:.3f}  "
            f"perplexity {perplexity:.4g}  {'good' if good else 'BAD'}"
        )
    return failures


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
