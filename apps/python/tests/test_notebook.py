"""The notebook in examples, its cells in order, on a small random model that reads bytes."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
matplotlib = pytest.importorskip("matplotlib")


def test_the_notebook_runs(tmp_path, monkeypatch, capsys):
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path)
    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=256, max_position_embeddings=520, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)

    matplotlib.use("Agg")
    monkeypatch.setenv("BRINE_MODEL", str(tmp_path))
    path = Path(__file__).parents[1] / "examples" / "attached_blocks.ipynb"
    names = {}
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)  # noqa: S102
    assert "512 tokens" in capsys.readouterr().out
    assert names["kept"].shape == (2, 2, 512, 16)
    assert 32 < names["read"] < 256
    assert len(names["axes"].images) == 1
