"""Line charts as standalone SVG pictures, which scripts/render-results makes of rows.

Lines differ by colour, dashes and marks, so that they can be told apart in grey. A line is through
the mean of all y at an x; one of more than 60 points has no marks."""
import math

WIDTH, HEIGHT = 720, 440
LEFT, RIGHT, TOP, BOTTOM = 78, 190, 44, 56
MAX_MARKS = 60
# Okabe and Ito's colours, which readers with any colour vision can distinguish; they repeat after
# eight, with other dashes.
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d1f"]
DASHES = ["", "7 3", "2 3", "9 3 2 3"]


def escaped(text):
    for letter, name in ("&", "amp"), ("<", "lt"), (">", "gt"), ('"', "quot"):
        text = text.replace(letter, f"&{name};")
    return text


class Axis:
    """From numbers to positions in the picture; `whole`: it counts things."""

    def __init__(self, values, start, end, logarithmic, whole=False):
        low, high = min(values), max(values)
        self.start, self.end, self.logarithmic, self.whole = start, end, logarithmic, whole
        if logarithmic:
            if low <= 0:
                raise ValueError(f"{low:g} cannot be shown on a logarithmic axis")
            low, high = math.log10(low), math.log10(high)
        room = 0.04 * (high - low) if high > low else max(0.5, 0.1 * abs(low))
        self.low, self.high = low - room, high + room

    def position(self, value):
        at = math.log10(value) if self.logarithmic else value
        return self.start + (self.end - self.start) * (at - self.low) / (self.high - self.low)

    def ticks(self):
        """Round numbers inside the range: steps of 1, 2 or 5 times a power of ten."""
        if self.logarithmic:
            parts = (1,) if self.high - self.low > 3 else (1, 2, 5)
            powers = range(math.floor(self.low), math.ceil(self.high) + 1)
            every = [part * 10.0**power for power in powers for part in parts]
            return [value for value in every if self.low <= math.log10(value) <= self.high]
        rough = (self.high - self.low) / 5
        power = 10.0**math.floor(math.log10(rough))
        step = next((part * power for part in (1, 2, 5) if rough <= part * power), 10 * power)
        step = max(step, 1) if self.whole else step
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [at * step for at in range(first, last + 1)]


def mark(kind, x, y, colour):
    if kind % 3 == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>\n'
    if kind % 3 == 1:
        return f'<rect x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7" fill="{colour}"/>\n'
    return f'<path d="M{x:.1f} {y - 5:.1f}l4.5 8h-9z" fill="{colour}"/>\n'


def label(x, y, anchor, text, more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escaped(text)}</text>\n'


def grid(chart, x, y):
    right, bottom, middle = WIDTH - RIGHT, HEIGHT - BOTTOM, (TOP + HEIGHT - BOTTOM) / 2
    out = ""
    for tick in x.ticks():
        at = x.position(tick)
        out += f'<path class="grid" d="M{at:.1f} {TOP:.1f}V{bottom:.1f}"/>\n'
        out += label(at, bottom + 18, "middle", f"{tick:g}")
    for tick in y.ticks():
        at = y.position(tick)
        out += f'<path class="grid" d="M{LEFT:.1f} {at:.1f}H{right:.1f}"/>\n'
        out += label(LEFT - 8, at + 4, "end", f"{tick:g}")
    out += f'<path class="axis" d="M{LEFT:.1f} {TOP:.1f}V{bottom:.1f}H{right:.1f}"/>\n'
    out += label((LEFT + right) / 2, HEIGHT - 16, "middle", chart["x_label"])
    turned = f' transform="rotate(-90 18 {middle:.1f})"'
    return out + label(18, middle, "middle", chart["y_label"], turned)


def drawn(number, name, points, x, y):
    """A line and its entry in the legend."""
    positions = [(x.position(a), y.position(b)) for a, b in points.items()]
    colour, dash = COLOURS[number % 8], DASHES[number // 8 % 4]
    start = f'<path class="line" stroke="{colour}" stroke-dasharray="{dash}" d="'
    out = start + "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in positions) + '"/>\n'
    if len(positions) <= MAX_MARKS:
        out += "".join(mark(number, a, b, colour) for a, b in positions)
    if not name:
        return out
    row, left = TOP + 10 + 20 * number, WIDTH - RIGHT + 14
    return out + start + f'M{left:.1f} {row:.1f}h26"/>\n' + mark(number, left + 13, row, colour) + \
        label(left + 33, row + 4, "start", name)


def means(points):
    cells = {}
    for x, y in points:
        cells.setdefault(x, []).append(y)
    return {x: sum(cells[x]) / len(cells[x]) for x in sorted(cells)}


def svg(chart):
    """`chart` has title, x_label, y_label, log_x, log_y, and lines, each a name and points [x, y]."""
    lines = [(line["name"], means(line["points"])) for line in chart["lines"]]
    every_x = [x for _, points in lines for x in points]
    every_y = [y for _, points in lines for y in points.values()]
    whole = all(x == math.floor(x) for x in every_x)
    x = Axis(every_x, LEFT, WIDTH - RIGHT, chart["log_x"], whole)
    y = Axis(every_y, HEIGHT - BOTTOM, TOP, chart["log_y"])
    letters, title = max(len(name) for name, _ in lines), chart["title"]
    # A letter takes 7 units, of the title 8.
    width = max(WIDTH, WIDTH - RIGHT + 54 + 7 * letters, LEFT + 8 * len(title))
    height = max(HEIGHT, TOP + 20 * (len(lines) + 1))
    out = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" ' \
        f'font-family="sans-serif" font-size="12">\n<title>{escaped(title)}</title>\n' \
        "<style>.grid{stroke:#ddd;fill:none}.axis{stroke:#333;fill:none}" \
        ".line{fill:none;stroke-width:1.8}</style>\n" \
        '<rect width="100%" height="100%" fill="#fff"/>\n'
    out += label(LEFT, 24, "start", title, ' font-size="15"') + grid(chart, x, y)
    # The first lines are the most relevant, so they are above the others.
    for number, (name, points) in reversed(list(enumerate(lines))):
        out += drawn(number, name, points, x, y)
    return out + "</svg>\n"
