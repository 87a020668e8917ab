// Line charts as SVG. Lines differ by colour, dashes and marks, so that they can be told apart in
// grey.
"use strict";

brine.chart = (function () {
  const left = 78, top = 44, plotWidth = 452, plotHeight = 340, bottom = 56;
  // Okabe and Ito's colours, which readers with any colour vision can distinguish.
  const colours = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#777777",
    "#8c6d1f"];
  const dashes = ["", "7 3", "2 3", "9 3 2 3"];
  const maxMarks = 60;  // points of a line with marks; more would hide it

  function svg(tag, attributes, ...children) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }
  const label = (x, y, anchor, text, more = {}) =>
    svg("text", {x, y, "text-anchor": anchor, ...more}, text);
  const short = (x) => String(Number(x.toPrecision(6)));

  // Places of the picture, and round numbers inside the range: 1, 2 or 5 times a power of ten.
  function axis(values, from, to, logarithmic) {
    const scale = logarithmic ? Math.log10 : (x) => x;
    let low = scale(values.reduce((a, b) => Math.min(a, b)));
    let high = scale(values.reduce((a, b) => Math.max(a, b)));
    const room = high > low ? 0.04 * (high - low) : Math.max(0.5, 0.1 * Math.abs(low));
    low -= room;
    high += room;
    const ticks = [];
    if (logarithmic) {
      for (let power = Math.floor(low); power <= high; ++power) {
        const parts = high - low > 3 ? [1] : [1, 2, 5];
        ticks.push(...parts.map((part) => part * 10 ** power)
          .filter((tick) => scale(tick) >= low && scale(tick) <= high));
      }
    } else {
      const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
      const step = Math.max(power * ([1, 2, 5].find((part) => rough <= part * power) || 10),
        values.every(Number.isInteger) ? 1 : 0);
      for (let at = Math.ceil(low / step); at * step <= high; ++at) ticks.push(at * step);
    }
    return {ticks, place: (x) => from + (to - from) * (scale(x) - low) / (high - low)};
  }

  function mark(kind, x, y, fill, ...children) {
    const shapes = [() => svg("circle", {cx: x, cy: y, r: 3.5, fill}, ...children),
      () => svg("rect", {x: x - 3.5, y: y - 3.5, width: 7, height: 7, fill}, ...children),
      () => svg("path", {d: `M${x} ${y - 5}l4.5 8h-9z`, fill}, ...children)];
    return shapes[kind % 3]();
  }

  // A line, its marks with their numbers, its entry in the legend.
  function drawn(line, number, x, y) {
    const stroke = colours[number % 8], dash = dashes[Math.floor(number / 8) % 4];
    const stroked = (d) => svg("path", {class: "line", stroke, "stroke-dasharray": dash, d});
    const places = line.points.map(([a, b]) => [x.place(a), y.place(b)]);
    const legend = top + 10 + 20 * number, side = left + plotWidth + 14;
    const marks = places.length > maxMarks ? [] : places.map(([a, b], i) =>
      mark(number, a, b, stroke, svg("title", {},
        `${line.name}: ${short(line.points[i][1])} at ${short(line.points[i][0])}`)));
    return [stroked("M" + places.map((place) => place.join(" ")).join("L")), ...marks,
      stroked(`M${side} ${legend}h26`), mark(number, side + 13, legend, stroke),
      label(side + 33, legend + 4, "start", line.name)];
  }

  return function (chart) {
    const points = chart.lines.flatMap((line) => line.points), floor = top + plotHeight;
    const x = axis(points.map((point) => point[0]), left, left + plotWidth, chart.log_x);
    const y = axis(points.map((point) => point[1]), floor, top, chart.log_y);
    // A letter takes 7 units, of the title 8.
    const letters = Math.max(...chart.lines.map((line) => line.name.length));
    const width = Math.max(left + plotWidth + 54 + 7 * letters, left + 8 * chart.title.length);
    const height = Math.max(floor + bottom, top + 20 * (chart.lines.length + 1));
    const middle = top + plotHeight / 2;
    return svg("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": chart.title},
      label(left, 24, "start", chart.title, {"font-size": 15}),
      ...x.ticks.flatMap((tick) => [svg("path", {class: "grid", d: `M${x.place(tick)} ${top}V${floor}`}),
        label(x.place(tick), floor + 18, "middle", short(tick))]),
      ...y.ticks.flatMap((tick) => [svg("path", {class: "grid", d: `M${left} ${y.place(tick)}h${plotWidth}`}),
        label(left - 8, y.place(tick) + 4, "end", short(tick))]),
      label(left + plotWidth / 2, floor + 40, "middle", chart.x),
      label(18, middle, "middle", chart.y, {transform: `rotate(-90 18 ${middle})`}),
      // The first lines are the most relevant, so they are above the others.
      ...chart.lines.map((line, number) => drawn(line, number, x, y)).reverse().flat());
  };
})();
