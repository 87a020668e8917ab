"""Pretty-printers of brine::Tensor and brine::Shape for gdb.

An installed libbrine.so brings them along (gdb loads them by its name); otherwise:
    (gdb) source scripts/gdb/brine.py
    (gdb) print x
    $1 = Tensor [2, 3] f32 cpu: 0 1 2 3 4 5
"""

import itertools
import struct

import gdb
import gdb.printing

MOST_VALUES = 16

FORMATS = {'f32': 'f', 'f64': 'd', 'f16': 'e', 'bf16': 'H', 'i32': 'i', 'i64': 'q', 'u8': 'B'}


def shape_of(value):
    """The sizes in a brine::Shape."""
    return [int(value['sizes_'][i]) for i in range(int(value['rank_']))]


def name_of(enumerator):
    """The last part of "brine::Dtype::f32"."""
    return str(enumerator).rsplit('::', 1)[-1]


def number(kind, data):
    """The element in these bytes as text."""
    (x,) = struct.unpack('=' + FORMATS[kind], data)
    if kind == 'bf16':
        (x,) = struct.unpack('=f', struct.pack('=I', x << 16))
    return '%.5g' % x if kind.startswith(('f', 'b')) else str(x)


def first_values(impl, kind, shape):
    """The first elements in row-major order, read from the process at their strides."""
    size = struct.calcsize('=' + FORMATS[kind])
    strides = shape_of(impl['strides'])
    base = int(impl['storage']['_M_ptr']['bytes']) + int(impl['offset'])
    inferior = gdb.selected_inferior()
    for index in itertools.product(*map(range, shape)):
        at = base + size * sum(i * s for i, s in zip(index, strides))
        yield number(kind, inferior.read_memory(at, size).tobytes())


class ShapePrinter:
    """[2, 3]"""

    def __init__(self, value):
        self.value = value

    def to_string(self):
        return str(shape_of(self.value))


class TensorPrinter:
    """Tensor [2, 3] f32 cpu: 0 1 2 3 4 5"""

    def __init__(self, value):
        self.value = value

    def to_string(self):
        pointer = self.value['impl_']['_M_ptr']
        if int(pointer) == 0:
            return 'Tensor (undefined)'
        impl = pointer.dereference()
        shape = shape_of(impl['shape'])
        kind = name_of(impl['dtype'])
        device = name_of(impl['storage']['_M_ptr']['device']['type'])
        text = 'Tensor %s %s %s' % (shape, kind, device)
        if device != 'cpu':
            return text
        try:
            some = list(itertools.islice(first_values(impl, kind, shape), MOST_VALUES + 1))
        except gdb.MemoryError:
            return text + ': memory that cannot be read'
        rest = ['...'] if len(some) > MOST_VALUES else []
        return text + (': ' + ' '.join(some[:MOST_VALUES] + rest) if some else '')


def printers():
    """Both, for gdb's list."""
    out = gdb.printing.RegexpCollectionPrettyPrinter('brine')
    out.add_printer('Tensor', '^brine::Tensor$', TensorPrinter)
    out.add_printer('Shape', '^brine::Shape$', ShapePrinter)
    return out


gdb.printing.register_pretty_printer(gdb.current_objfile(), printers(), replace=True)
