// The sections of the page and what their controls do.
"use strict";

(function () {
  const {data, maps, make} = brine, student = data.attention;
  const element = (id) => document.getElementById(id);
  const show = (id) => { element(id).hidden = false; };
  const state = {layer: 0, head: 0, planes: {}};
  const titles = {teacher: "Teacher", estimate: "Estimate, widened to keys",
    mask: "Mask (share of keys kept)", student: "Student on the mask"};

  // ---- the maps of one head

  const range = ({starts}, cell) => (starts[cell + 1] - starts[cell] === 1 ? String(starts[cell])
    : starts[cell] + "\u2013" + (starts[cell + 1] - 1));
  const quoted = (cell) =>
    `${range(student, cell)} \u201c${brine.visible(student.texts[cell])}\u201d`;

  maps.moved = function (at) {
    const parts = student.planes.map((id) => {
      const value = brine.value(id, state.planes[id][at.row * student.cells + at.column]);
      return id === "mask" ? `keys kept ${brine.share(value)}` : `${id} ${brine.mass(value)}`;
    });
    // Announce keyboard moves only; pointer moves would flood the screen reader.
    element("readout").setAttribute("aria-live", at.byKey ? "polite" : "off");
    element("readout").textContent =
      `query ${quoted(at.row)} \u2192 key ${quoted(at.column)} \u2014 ${parts.join(", ")}`;
  };

  // The text, coloured by the mass that its tokens receive from the queries that see them.
  function received() {
    const id = state.planes.student ? "student" : "teacher", {cells, starts} = student;
    const masses = student.texts.map((_, key) => {
      let sum = 0, queries = 0;
      for (let row = student.causal ? key : 0; row < cells; ++row) {
        const size = starts[row + 1] - starts[row];
        sum += size * brine.value(id, state.planes[id][row * cells + key]);
        queries += size;
      }
      return sum / queries / (starts[key + 1] - starts[key]);
    });
    const largest = Math.max(...masses, 1e-9);
    element("received").replaceChildren(...student.texts.map((text, i) => {
      const share = Math.max(0, 1 + Math.log10(Math.max(masses[i], 1e-9) / largest) / 3);
      const span = make("span", {title: `${range(student, i)}: ${brine.mass(masses[i])}`}, text);
      span.style.background = `rgba(230, 159, 0, ${(0.75 * share).toFixed(2)})`;
      return span;
    }));
  }

  async function select(layer, head) {
    const found = student.maps.find((each) => each.layer === layer && each.head === head);
    if (!found) return;
    Object.assign(state, {layer, head});
    const planes = await brine.planes(found);
    if (state.layer !== layer || state.head !== head) return;  // another was chosen meanwhile
    state.planes = planes;
    element("head-title").textContent = `Layer ${layer}, head ${head}`;
    element("layer").value = String(layer);
    element("head").value = String(head);
    for (const [id, view] of Object.entries(maps.views)) {
      view.show(planes[id], `${titles[id]}, layer ${layer}, head ${head}: ${student.cells} rows ` +
        "of queries, as many columns of keys. Arrow keys move a cursor whose numbers are read out.");
    }
    thumbnails.mark();
    received();
    const {row, column} = maps.cursor || {row: student.cells - 1, column: 0};
    maps.cursor = null;  // its numbers are those of another head
    maps.move({row, column});
  }

  // ---- all heads

  const thumbnails = (function () {
    const buttons = new Map(), key = (layer, head) => layer + ":" + head;

    async function paint() {
      const kind = element("thumbnail-kind").value, side = 64;
      for (const head of student.maps) {
        const planes = await brine.planes(head), canvas = buttons.get(key(head.layer, head.head)).firstChild;
        if (kind !== element("thumbnail-kind").value) return;  // another kind was chosen
        canvas.width = canvas.height = side;
        const context = canvas.getContext("2d");
        context.imageSmoothingEnabled = maps.cells > side;
        context.drawImage(maps.pixels(kind, planes[kind]), 0, 0, side, side);
      }
    }
    function button(layer, head, layers, heads) {
      const recall = student.recall ? student.recall[layer][head] : null;
      const label = `layer ${layer}, head ${head}` +
        (recall === null ? "" : `, mask recall ${recall.toFixed(3)}`);
      const made = make("button", {type: "button", "aria-label": label, title: label},
        make("canvas", {"aria-hidden": "true"}));
      if (recall !== null) made.style.setProperty("--frame", brine.css(brine.colour(recall)));
      made.addEventListener("click", () => select(layer, head));
      made.addEventListener("keydown", (event) => {
        if (!maps.keys[event.key]) return;
        event.preventDefault();
        const [down, right] = maps.keys[event.key];
        const next = buttons.get(key(layers[layers.indexOf(layer) + down],
          heads[heads.indexOf(head) + right]));
        if (next) next.focus();
      });
      buttons.set(key(layer, head), made);
      return made;
    }
    function fill(layers, heads) {
      const axis = (text) => make("span", {class: "axis"}, String(text)), place = element("thumbnails");
      place.style.gridTemplateColumns = `2.2rem repeat(${heads.length}, minmax(1.9rem, 4.5rem))`;
      place.append(axis(""), ...heads.map(axis), ...layers.flatMap((layer) =>
        [axis(layer), ...heads.map((head) => button(layer, head, layers, heads))]));
    }
    function mark() {
      for (const [name, each] of buttons) {
        const selected = name === key(state.layer, state.head);
        each.setAttribute("aria-pressed", String(selected));
        each.tabIndex = selected ? 0 : -1;
      }
    }
    return {fill, mark, paint};
  })();

  // ---- the sections

  async function attention() {
    const layers = [...new Set(student.maps.map((map) => map.layer))];
    const heads = [...new Set(student.maps.map((map) => map.head))];
    const options = (id, choices) => element(id).append(
      ...choices.map(([value, text]) => make("option", {value}, String(text))));
    const changed = (id, run) => element(id).addEventListener("change", run);
    show("attention");
    options("layer", layers.map((x) => [x, x]));
    options("head", heads.map((x) => [x, x]));
    options("thumbnail-kind", student.planes.map((id) => [id, titles[id]]));
    changed("layer", () => select(Number(element("layer").value), state.head));
    changed("head", () => select(state.layer, Number(element("head").value)));
    changed("thumbnail-kind", thumbnails.paint);
    for (const [id, factor] of [["zoom-in", 0.5], ["zoom-out", 2], ["zoom-all", Infinity]]) {
      element(id).addEventListener("click", () => maps.zoom(factor));
    }
    element("attention-about").textContent = student.about + " Rows are queries, columns keys. " +
      "Pointer or arrow keys read a cell; + and \u2212, a double click or Ctrl and the wheel zoom.";
    element("scale").append("mass " + data.leastMass, make("span", {class: "colours",
      style: `background: linear-gradient(to right, ${brine.stops.map(brine.css)})`}), "1, logarithmic");
    const single = student.cells === student.tokens;
    Object.assign(maps, {cells: student.cells, rows: [0, student.cells],
      columns: [0, student.cells], axis: single ? "token" : "position in tokens",
      label: (cell) => (single ? student.texts[cell].trim() || "\u2423" : String(student.starts[cell]))});
    element("maps").append(...student.planes.map((id) => maps.add(id, titles[id])));
    thumbnails.fill(layers, heads);
    // The middle of the model: in most models the first layer has the least structure.
    const middle = student.maps[Math.floor(student.maps.length / 2)];
    await select(middle.layer, middle.head);
    await thumbnails.paint();
  }

  function charts(section) {
    const some = data.charts.filter((chart) => chart.section === section);
    if (some.length) show(section);
    element(section + "-charts").append(...some.map((chart) => make("figure", {class: "chart"},
      make("div", {class: "picture"}, brine.chart(chart)), make("figcaption", {}, chart.note))));
  }

  async function main() {
    if (student && student.health) {
      show("health");
      element("health-table").textContent = student.health;
    }
    for (const section of ["health", "curves", "trade"]) charts(section);
    element("made-list").append(make("p", {}, make("code", {}, data.command), ", " + data.program),
      ...data.made.map(([title, text]) =>
        make("details", {}, make("summary", {}, title), make("pre", {}, text))));
    if (student && student.maps.length) await attention();
    for (const section of document.querySelectorAll("main section:not([hidden])")) {
      element("contents").append(make("a", {href: "#" + section.id},
        section.querySelector("h2").textContent));
    }
    window.addEventListener("resize", maps.draw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", maps.draw);
  }

  // For programs that read the page: settles when everything is drawn.
  brine.ready = main();
})();
