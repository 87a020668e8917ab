"""Writes the golden safetensors files with Python's safetensors package (once, by hand).

    python3 make.py        (safetensors 0.8)

mixed.safetensors      every dtype of Brine, a 0-d, an empty and a many-axed tensor, odd names
no_metadata.safetensors, empty.safetensors   the small legal files
foreign.safetensors    dtypes that Brine has not: they are listed, but refused on access
"""

import json
import pathlib
import struct

import numpy
from safetensors import TensorSpec, serialize_file
from safetensors.numpy import save_file

here = pathlib.Path(__file__).parent
alive = []
ramp = ((numpy.arange(12) * 757 - 4001) / 2048).astype(numpy.float32)  # exact in f32 only


def bf16(x):
    bits = x.astype(numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


def item(dtype, array):
    alive.append(array)
    return TensorSpec(
        dtype=dtype, shape=array.shape, data_ptr=array.ctypes.data, data_len=array.nbytes
    )


mixed = {
    "f32.matrix": item("float32", ramp.reshape(3, 4)),
    "f64": item("float64", ramp.astype(numpy.float64) / 3),
    "f16": item("float16", ramp.astype(numpy.float16)),
    "bf16": item("bfloat16", bf16(ramp).reshape(2, 6)),
    "i32": item("int32", numpy.array([-2**31, -1, 0, 2**31 - 1], dtype=numpy.int32)),
    "i64": item("int64", numpy.array([[-2**63, 2**63 - 1, 5]], dtype=numpy.int64)),
    "u8": item("uint8", numpy.array([0, 7, 255], dtype=numpy.uint8)),
    "scalar": item("float32", numpy.array(2.5, dtype=numpy.float32)),
    "empty": item("float32", numpy.zeros((0, 5), dtype=numpy.float32)),
    "axes": item("float32", ramp[:8].reshape(2, 1, 2, 1, 2, 1)),
    'größe "q"\\n\n': item("uint8", numpy.array([1], dtype=numpy.uint8)),
}
serialize_file(mixed, here / "mixed.safetensors", metadata={"format": "pt"})
save_file({"a": ramp[:3]}, here / "no_metadata.safetensors")
save_file({}, here / "empty.safetensors")
foreign = {
    "bool": item("bool", numpy.array([True, False, True])),
    "i8": item("int8", numpy.array([-1, 2], dtype=numpy.int8)),
    "f8": item("float8_e4m3fn", numpy.array([1, 2, 3], dtype=numpy.uint8)),
    "u64": item("uint64", numpy.array([2**64 - 1], dtype=numpy.uint64)),
}
serialize_file(foreign, here / "foreign.safetensors", metadata={"format": "pt"})
for path in sorted(here.glob("*.safetensors")):
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    print(path.name, len(raw), json.loads(raw[8 : 8 + size]))
