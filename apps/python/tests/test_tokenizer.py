"""Tokenizers that the program wrote, as transformers and dumps read them."""

import os
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("h5py")

import brine_sea  # noqa: E402


def test_an_encoders_tokenizer_has_its_template(tmp_path):
    """That of `brine tokenizer --kind encoder`: transformers and dumps add [CLS] and [SEP], as Brine's tasks do."""
    program = os.environ.get("BRINE", Path(__file__).parents[3] / "build" / "release" / "brine")
    if not Path(program).exists():
        pytest.skip(f"no {program}")
    command = [program, "tokenizer", "--train", __file__, "--kind", "encoder", "--vocab-size", "300"]
    subprocess.run([*command, "--out", tmp_path / "tok"], check=True, capture_output=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "tok")
    first, second = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("a text", "another"))
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    assert (cls, sep, tokenizer.pad_token_id, tokenizer.mask_token_id) == (2, 3, 0, 4)
    assert tokenizer("a text")["input_ids"] == [cls, *first, sep]
    pair = tokenizer("a text", "another")
    assert pair["input_ids"] == [cls, *first, sep, *second, sep]
    assert pair["token_type_ids"] == [0] * (2 + len(first)) + [1] * (1 + len(second))
    padded = tokenizer(["a text", "another text"], padding=True)["input_ids"]
    assert len(padded[0]) == len(padded[1]) and padded[0][-1] == 0
    again = tmp_path / "again"
    tokenizer.save_pretrained(again)
    assert transformers.AutoTokenizer.from_pretrained(again)("a text")["input_ids"] == [cls, *first, sep]
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=300, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    model = transformers.BertForSequenceClassification(config).eval()
    brine_sea.dump(model, tokenizer, ["a text", ("a text", "another")], tmp_path / "dump", progress=False)
    found = brine_sea.Dump(tmp_path / "dump")
    rows = {tuple(found.tokens(sample).tolist()) for sample in range(2)}
    assert rows == {(cls, *first, sep), (cls, *first, sep, *second, sep)}
