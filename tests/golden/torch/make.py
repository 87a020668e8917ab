"""Writes golden files of PyTorch (once, by hand).

    python3 make.py        (torch 2.15, safetensors 0.8)

state.bin, state.safetensors   the same tensors by torch.save and by safetensors
opt_350m/, opt_untied/         the weights of ../models/ as pytorch_model.bin, in shards and alone
old.bin, script.bin, code.bin  what Brine refuses: the format before 1.6, TorchScript, other code
big.bin                        the same bytes as state.bin but for the name of the byte order
"""

import collections
import json
import os
import pathlib
import zipfile

import torch
from safetensors.torch import load_file, save_file

here = pathlib.Path(__file__).parent
ramp = (torch.arange(24, dtype=torch.float32) * 757 - 4001) / 2048
matrix = ramp.reshape(4, 6)

state = collections.OrderedDict(
    f32=matrix.clone(),
    f16=matrix.half(),
    bf16=matrix.bfloat16(),
    f64=matrix.double() / 3,
    i64=torch.tensor([[-(2**63), 2**63 - 1, 5]]),
    i32=torch.tensor([-(2**31), 7], dtype=torch.int32),
    u8=torch.tensor([0, 7, 255], dtype=torch.uint8),
    mask=torch.tensor([True, False, True]),
    scalar=torch.tensor(2.5),
    empty=torch.zeros(0, 5),
    parameter=torch.nn.Parameter(ramp[:5].clone()),
)
state["transposed"] = state["f32"].t()
state["half_transposed"] = state["f16"].t()
state["rows"] = state["f32"][1:3]
state["columns"] = state["f32"][:, 2:5]
state["permuted"] = ramp.clone().reshape(2, 3, 4).permute(2, 0, 1)
state["repeated"] = state["f32"]
state["größe \n"] = ramp[:1].clone()
state._metadata = collections.OrderedDict({"": {"version": 1}})
torch.save(state, here / "state.bin")
save_file(
    {name: tensor.detach().clone().contiguous() for name, tensor in state.items()},
    here / "state.safetensors",
)

torch.save({"a": ramp[:3]}, here / "old.bin", _use_new_zipfile_serialization=False)
torch.jit.save(torch.jit.script(torch.nn.Linear(2, 1)), here / "script.bin")


class Code:
    def __reduce__(self):
        return os.getcwd, ()


torch.save({"a": ramp[:3], "b": Code()}, here / "code.bin")

with zipfile.ZipFile(here / "state.bin") as good, zipfile.ZipFile(here / "big.bin", "w") as big:
    for item in good.infolist():
        content = b"big" if item.filename.endswith("/byteorder") else good.read(item)
        big.writestr(item.filename, content)

models = here.parent / "models"
for name in ("opt_350m", "opt_untied"):
    (here / name).mkdir(exist_ok=True)
    for shard in sorted((models / name).glob("model*.safetensors")):
        out = here / name / shard.name.replace("model", "pytorch_model", 1)
        torch.save(load_file(shard), out.with_suffix(".bin"))
    for index in (models / name).glob("*.index.json"):
        text = json.loads(index.read_text())
        for tensor, shard in text["weight_map"].items():
            renamed = shard.replace("model", "pytorch_model", 1).replace(".safetensors", ".bin")
            text["weight_map"][tensor] = renamed
        out = here / name / "pytorch_model.bin.index.json"
        out.write_text(json.dumps(text, indent=2) + "\n")
