// Line charts by Vega: Vega draws axes, legends and pictures; zoom sets the domains of its scales.
"use strict";

brine.charts = (function () {
  // Okabe and Ito's colours; the last but one is that of letters, so that it shows in the dark too.
  const colours = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
    "currentColor", "#8c6d1f"];
  const dashes = [[], [7, 3], [2, 3], [9, 3, 2, 3]];
  const shapes = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down"];
  // The same for the swatches of a legend, in the middle of a line 34 long.
  const outlines = {circle: "M13 7a4 4 0 1 0 8 0a4 4 0 1 0 -8 0", square: "M13 3h8v8h-8z",
    "triangle-up": "M17 2.5l4.5 8h-9z", diamond: "M17 1.5l4.5 5.5l-4.5 5.5l-4.5 -5.5z",
    cross: "M15.5 3h3v2.5h2.5v3h-2.5v2.5h-3v-2.5h-2.5v-3h2.5z", "triangle-down": "M17 11.5l-4.5 -8h9z"};
  // A slot is a look that no other line of the chart has: eight colours, then other dashes, then
  // other marks. Nobody can distinguish more than these: of many lines the first are coloured, the
  // others grey until they are chosen.
  const lookOf = (slot) => ({colour: colours[slot % colours.length],
    dash: dashes[Math.floor(slot / colours.length) % dashes.length],
    shape: shapes[(slot + 2 * Math.floor(slot / (colours.length * dashes.length))) % shapes.length]});
  const grey = {colour: "#888", dash: [], shape: "circle"};
  const height = 240;

  function extent(values, logarithmic) {
    const shown = values.filter((x) => Number.isFinite(x) && (!logarithmic || x > 0));
    let low = Infinity, high = -Infinity;  // a spread of many values would overflow the stack
    for (const x of shown) { low = Math.min(low, x); high = Math.max(high, x); }
    if (logarithmic) {
      const room = Math.pow(high / low || 1, 0.04);
      return high > low ? [low / room, high * room] : [low / 2, high * 2];
    }
    const room = high > low ? 0.04 * (high - low) : Math.max(0.5, 0.1 * Math.abs(low));
    return [low - room, high + room];
  }

  // Less than a decade has too few powers of ten for the numbers of a logarithmic axis.
  function spansDecade(values) {
    return values.every((x) => x > 0) && Math.max(...values) >= 10 * Math.min(...values);
  }
  const isWhole = (values) => values.every((x) => Number.isInteger(x));

  // 16k for large numbers, 3e-7 for small ones, 160 and 0.25 for others.
  const numbers = (values) => (values.some((x) => x >= 1e4) ? "~s"
    : values.some((x) => x > 0 && x < 1e-3) ? "~g" : "~r");
  // The title of an axis in as many lines as it needs along the axis.
  function wrapped(text, letters) {
    const lines = [""];
    for (const word of text.split(" ")) {
      const longer = (lines[lines.length - 1] + " " + word).trim();
      if (longer.length <= letters || !lines[lines.length - 1]) lines[lines.length - 1] = longer;
      else lines.push(word);
    }
    return lines;
  }

  // `slots` says by the name of a line which look it has; lines without one are grey.
  function specification(chart, width, ink, slots) {
    const names = chart.lines.map((line) => line.name), on = names.filter((name) => slots.has(name));
    const points = chart.lines.flatMap((line) => line.points.map(([x, y, all]) => ({
      series: line.name, x, y,
      text: (line.name ? line.name + "\n" : "") + chart.x + ": " + Number(x.toPrecision(6)) +
        "\n" + Number(y.toPrecision(5)) +
        (all ? " (mean of " + all.map((v) => Number(v.toPrecision(5))).join(", ") + ")" : "")})));
    const looks = names.map((name) => (slots.has(name) ? lookOf(slots.get(name)) : grey));
    const axis = {grid: true, gridColor: "#8887", domainColor: ink, tickColor: ink,
      labelColor: ink, titleColor: ink, labelOverlap: true, titleFontWeight: "normal",
      labelFontSize: 11, titleFontSize: 12};
    const encoded = {x: {scale: "x", field: "x"}, y: {scale: "y", field: "y"},
      stroke: {scale: "colour", field: "series"}};
    // The line under the pointer or the legend's focus is thick, the others fade.
    const isLit = "lit === datum.series";
    const opacity = (base) => ({signal: `lit === null ? ${base} : ${isLit} ? 1 : ${base} * 0.25`});
    const layer = (data, many, base) => [
      {type: "group", from: {facet: {name: data + "-line", data, groupby: "series"}},
        marks: [{type: "line", from: {data: data + "-line"},
          encode: {update: {...encoded, strokeDash: {scale: "dash", field: "series"},
            strokeWidth: {signal: `${isLit} ? 3.5 : ${base < 1 ? 1 : 1.8}`},
            strokeOpacity: opacity(base), tooltip: {field: "series"}}}}]},
      {type: "symbol", from: {data},
        encode: {update: {...encoded, shape: {scale: "shape", field: "series"},
          fill: {scale: "colour", field: "series"}, opacity: opacity(base),
          size: {value: base < 1 ? 8 : many ? 12 : 34}, tooltip: {field: "text"}}}}];
    return {
      description: chart.alt, width, height, padding: 4, autosize: "pad",
      signals: [
        {name: "xdom", value: extent(points.map((p) => p.x), chart.logX)},
        {name: "ydom", value: extent(points.map((p) => p.y), chart.logY)},
        {name: "lit", value: null}],
      data: [{name: "off", values: points.filter((p) => !slots.has(p.series))},
        {name: "on", values: points.filter((p) => slots.has(p.series))}],
      scales: [
        {name: "x", type: chart.logX ? "log" : "linear", domain: {signal: "xdom"},
          range: "width", nice: false, zero: false},
        {name: "y", type: chart.logY ? "log" : "linear", domain: {signal: "ydom"},
          range: "height", nice: false, zero: false},
        {name: "colour", type: "ordinal", domain: names,
          range: looks.map((look) => (look.colour === "currentColor" ? ink : look.colour))},
        {name: "dash", type: "ordinal", domain: names, range: looks.map((look) => look.dash)},
        {name: "shape", type: "ordinal", domain: names, range: looks.map((look) => look.shape)}],
      axes: [
        {...axis, orient: "bottom", scale: "x", title: chart.x, tickCount: 6,
          ...(isWhole(points.map((p) => p.x)) && !chart.logX ? {tickMinStep: 1} : {}),
          format: numbers(points.map((p) => p.x))},
        {...axis, orient: "left", scale: "y", title: wrapped(chart.y, height / 6),
          tickCount: 5, titleLimit: 0,
          format: numbers(points.map((p) => p.y))}],
      marks: [{
        type: "group", clip: true,
        encode: {update: {width: {signal: "width"}, height: {signal: "height"}}},
        marks: [...layer("off", true, 0.45), ...layer("on", on.length * points.length > 200 *
          names.length, 1)]}]};
  }

  // The legend of a picture in a file, with whole names in as many columns as have room.
  function legendOfFile(chart, width, ink, slots) {
    const shown = chart.lines.map((line) => line.name).filter((name) => name && slots.has(name));
    if (!shown.length) return [];
    const widest = Math.max(...shown.map((name) => name.length)) * 6.5 + 40;
    return [{stroke: "colour", strokeDash: "dash", shape: "shape", values: shown,
      symbolFillColor: "transparent", orient: "bottom", direction: "vertical", labelColor: ink,
      labelFontSize: 11, labelLimit: 0, columns: Math.max(1, Math.floor(width / widest))}];
  }

  // The look of a name is the same in all charts of the page; the student comes first.
  const slotOfName = new Map(brine.data.attention ? [[brine.data.attention.name, 0]] : []);
  function slotOf(name) {
    if (!slotOfName.has(name)) slotOfName.set(name, slotOfName.size);
    return slotOfName.get(name);
  }

  // The lines that have colours at first: all of a few, the ends and some between of layers, which
  // have an order, and the first of others, which come by relevance.
  function firstSlots(chart) {
    const names = chart.lines.map((line) => line.name), limit = colours.length;
    const ordered = names.length > limit && names.every((name) => /^layer \d+$/.test(name));
    const chosen = ordered
      ? Array.from({length: limit}, (_, i) =>
        names[Math.round(i * (names.length - 1) / (limit - 1))])
      : names.slice(0, limit);
    if (names.length > limit) return new Map(chosen.map((name, i) => [name, i]));
    return new Map(names.map((name) => [name, slotOf(name)]));
  }

  const tip = brine.make("div", {id: "tip", role: "tooltip", hidden: ""});
  function tooltip(handler, event, item, value) {
    tip.hidden = !value;
    if (!value) return;
    tip.textContent = value;
    tip.style.whiteSpace = "pre-line";
    tip.style.left = Math.min(event.clientX + 12, window.innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = event.clientY + 12 + "px";
  }

  class Chart {
    constructor(chart) {
      const values = (i) => chart.lines.flatMap((line) => line.points.map((point) => point[i]));
      this.chart = chart = {...chart, logX: chart.logX && spansDecade(values(0)),
        logY: chart.logY && spansDecade(values(1))};
      this.picture = brine.make("div", {class: "picture", tabindex: "0", role: "group",
        "aria-label": chart.title + ". Plus and minus zoom, arrow keys move, 0 shows all."});
      const button = (name, label, run) =>
        brine.make("button", {type: "button", class: "small", "aria-label": label, onclick: run},
          name);
      this.figure = brine.make("figure", {class: "chart", id: "chart-" + chart.id},
        brine.make("figcaption", {}, brine.make("strong", {}, chart.title),
          brine.make("span", {class: "buttons"},
            button("+", "Enlarge " + chart.title, () => this.zoom(0.6)),
            button("\u2212", "Reduce " + chart.title, () => this.zoom(1 / 0.6)),
            button("all", "Show all of " + chart.title, () => this.whole()),
            button("SVG", "Save as SVG", () => this.saveSvg()),
            button("PNG", "Save as PNG", () => this.savePng()),
            button("CSV", "Save the numbers as CSV", () => this.saveCsv()))),
        this.picture);
      this.slots = firstSlots(chart);
      this.legend = brine.make("ul", {class: "legend", "aria-label": "Lines of " + chart.title});
      if (chart.lines.length > 1 || chart.lines[0].name) this.figure.append(this.legend);
      if (chart.lines.length > colours.length) {
        this.count = brine.make("span");
        this.figure.append(brine.make("p", {class: "note"}, this.count, " ",
          button("colour all", "Colour all lines of " + chart.title, () => this.colourAll(true)),
          " ", button("none", "Colour no line of " + chart.title, () => this.colourAll(false))));
      }
      this.fillLegend();
      if (chart.note) this.figure.append(brine.make("p", {class: "note"}, chart.note));
      const numbers = brine.make("details", {}, brine.make("summary", {}, "Numbers"),
        brine.make("div"));
      numbers.addEventListener("toggle", () => {
        const place = numbers.lastChild;
        if (!place.firstChild) place.append(brine.table(this.rows(), ["series"]));
      });
      this.figure.append(numbers);
      this.listen();
    }

    // A line with its look and its whole name; the box gives it a colour or takes it away.
    fillLegend() {
      this.swatches = new Map();
      for (const {name} of this.chart.lines) {
        if (!name && this.chart.lines.length === 1) continue;
        const box = brine.make("input", {type: "checkbox"}), swatch = brine.make("span");
        box.addEventListener("change", () => this.colour(name, box.checked));
        const label = brine.make("label", {}, box, swatch, brine.make("span", {}, name || "(no name)"));
        const light = (on) => this.view && this.view.signal("lit", on ? name : null).run();
        for (const event of ["pointerenter", "focusin"]) {
          label.addEventListener(event, () => light(true));
        }
        for (const event of ["pointerleave", "focusout"]) {
          label.addEventListener(event, () => light(false));
        }
        this.legend.append(brine.make("li", {}, label));
        this.swatches.set(name, {box, swatch});
      }
      this.paintLegend();
    }
    paintLegend() {
      for (const [name, {box, swatch}] of this.swatches) {
        box.checked = this.slots.has(name);
        const look = box.checked ? lookOf(this.slots.get(name)) : grey;
        swatch.innerHTML = `<svg width="34" height="14" aria-hidden="true"><path d="M0 7h34" ` +
          `fill="none" stroke="${look.colour}" stroke-width="2" stroke-dasharray="${look.dash}"/>` +
          `<path d="${outlines[look.shape]}" fill="${look.colour}"/></svg>`;
      }
      if (!this.count) return;
      this.count.textContent = `${this.slots.size} of ${this.chart.lines.length} lines have ` +
        "colours, the others are grey; a box in the legend changes it, pointing at a name shows its line.";
    }
    colour(name, on) {
      this.slots.delete(name);
      const used = new Set(this.slots.values());
      let slot = 0;
      while (used.has(slot)) ++slot;
      if (on) this.slots.set(name, slot);
      this.paintLegend();
      return this.drawAgain();
    }
    colourAll(on) {
      this.slots = new Map(on ? this.chart.lines.map(({name}, i) => [name, i]) : []);
      this.paintLegend();
      return this.drawAgain();
    }
    async drawAgain() {
      const {x, y} = this.domains();
      this.width = 0;
      await this.draw();
      this.set(x, y);
    }

    rows() {
      const rows = [["series", this.chart.x, this.chart.y, "single values"]];
      for (const line of this.chart.lines) {
        for (const [x, y, all] of line.points) {
          rows.push([line.name, x, Number(y.toPrecision(7)), all ? all.join(" ") : ""]);
        }
      }
      return rows;
    }

    async draw() {
      const width = Math.max(160, Math.min(900, this.figure.clientWidth - 84));
      if (this.view && this.width === width) return;
      this.width = width;
      if (this.view) this.view.finalize();
      const spec = specification(this.chart, width, "currentColor", this.slots);
      this.view = new vega.View(vega.parse(spec), {renderer: "svg", container: this.picture,
        hover: false, tooltip, logLevel: vega.Warn});
      await this.view.runAsync();
    }

    domains() { return {x: this.view.signal("xdom"), y: this.view.signal("ydom")}; }
    set(x, y) { this.view.signal("xdom", x).signal("ydom", y).run(); }
    // A domain that is `factor` as long and moved by `shift` of its length.
    changed(domain, logarithmic, factor, shift) {
      const [a, b] = logarithmic ? domain.map(Math.log) : domain;
      const centre = (a + b) / 2 + shift * (b - a), half = factor * (b - a) / 2;
      const ends = [centre - half, centre + half];
      return logarithmic ? ends.map(Math.exp) : ends;
    }
    zoom(factor, right = 0, up = 0) {
      const {x, y} = this.domains();
      this.set(this.changed(x, this.chart.logX, factor, right),
        this.changed(y, this.chart.logY, factor, up));
    }
    whole() {
      const of = (i, log) => extent(this.chart.lines.flatMap((line) =>
        line.points.map((point) => point[i])), log);
      this.set(of(0, this.chart.logX), of(1, this.chart.logY));
    }

    listen() {
      this.picture.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && !event.metaKey) return;  // else the page scrolls
        event.preventDefault();
        this.zoom(event.deltaY < 0 ? 0.8 : 1.25);
      }, {passive: false});
      let from = null;
      this.picture.addEventListener("pointerdown", (event) => {
        if (event.pointerType === "mouse") from = {x: event.clientX, y: event.clientY};
      });
      window.addEventListener("pointermove", (event) => {
        if (!from || !(event.buttons & 1)) return;
        this.zoom(1, (from.x - event.clientX) / this.width, (event.clientY - from.y) / height);
        from = {x: event.clientX, y: event.clientY};
      });
      window.addEventListener("pointerup", () => { from = null; });
      this.picture.addEventListener("keydown", (event) => {
        const moves = {ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, 0.1],
          ArrowDown: [0, -0.1]};
        if (moves[event.key]) this.zoom(1, ...moves[event.key]);
        else if (event.key === "+" || event.key === "=") this.zoom(0.6);
        else if (event.key === "-") this.zoom(1 / 0.6);
        else if (event.key === "0") this.whole();
        else return;
        event.preventDefault();
      });
    }

    // A view for a file: dark letters on white, with the domains of the page.
    forFile() {
      const width = Math.max(480, this.width);
      const spec = specification(this.chart, width, "#000", this.slots);
      spec.legends = legendOfFile(this.chart, width, "#000", this.slots);
      const {x, y} = this.domains();
      spec.signals[0].value = x;
      spec.signals[1].value = y;
      spec.background = "white";
      spec.title = {text: this.chart.title, anchor: "start"};
      return new vega.View(vega.parse(spec), {renderer: "none"});
    }
    async saveSvg() {
      const text = await this.forFile().toSVG();
      brine.save(this.chart.id + ".svg", new Blob([text], {type: "image/svg+xml"}));
    }
    async savePng() {
      const canvas = await this.forFile().toCanvas(2);
      canvas.toBlob((blob) => brine.save(this.chart.id + ".png", blob));
    }
    saveCsv() {
      brine.save(this.chart.id + ".csv", new Blob([brine.csv(this.rows())], {type: "text/csv"}));
    }
  }

  // Makes the charts of a section in its element; returns them.
  async function fill(section) {
    const inSection = brine.data.charts.filter((chart) => chart.section === section);
    const place = document.getElementById(section + "-charts");
    const charts = inSection.map((chart) => new Chart(chart));
    for (const chart of charts) place.append(chart.figure);
    for (const chart of charts) await chart.draw();
    return charts;
  }

  document.body.append(tip);
  return {fill, Chart};
})();
