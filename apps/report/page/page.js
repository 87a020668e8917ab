// The sections of the page and what their controls do.
"use strict";

(function () {
  const data = brine.data, student = data.attention;
  const element = (id) => document.getElementById(id);
  const show = (id, shown = true) => { element(id).hidden = !shown; };
  const state = {layer: 0, head: 0, value: "mass", planes: {}};
  const headOf = (layer, head) =>
    student.maps.find((each) => each.layer === layer && each.head === head);

  // ---- labels

  const range = (starts, cell) => (starts[cell + 1] - starts[cell] === 1 ? String(starts[cell])
    : starts[cell] + "\u2013" + (starts[cell + 1] - 1));
  // Tokens by their text, or cells of several by the position of the first.
  function tokenAxis(name) {
    const single = student.tokens === student.cells;
    return {name: single ? name : name + ", position in tokens", label: (cell) => {
      const {tokens, cells, texts, starts} = student;
      return tokens === cells ? texts[cell].trim() || "\u2423" : String(starts[cell]);
    }};
  }
  const columnAxis = {name: "column of the estimate", label: (cell) => {
    const cells = state.planes.estimate.columns, all = student.columns;
    const first = Math.floor(cell * all / cells), end = Math.floor((cell + 1) * all / cells);
    return end - first === 1 ? String(first) : first + "\u2013" + (end - 1);
  }};
  const quoted = (cell) => "\u201c" + brine.visible(student.texts[cell]) + "\u201d";

  // ---- the maps of one head

  const titles = {teacher: "Teacher", widened: "Estimate, widened to keys",
    mask: "Mask", student: "Student on the mask", estimate: "1. Estimate, K columns",
    selected: "2. Selected columns"};
  const words = {teacher: "the teacher's attention", widened: "the estimate widened to keys",
    mask: "the share of keys that the mask keeps", student: "the student's attention on the mask",
    estimate: "the estimate in columns", selected: "the share of selected columns"};
  const shownPlane = (id) => (state.value === "most" && state.planes[id + ".most"]) ||
    state.planes[id];

  function readout(at) {
    const {starts} = student, lines = [];
    if (at.view && !at.view.linked && at.view.id !== "mask2") {
      const plane = state.planes[at.view.id];
      lines.push(`query ${range(starts, at.row)} ${quoted(at.row)}, column ` +
        at.view.columnAxis.label(at.column));
      const value = brine.value(plane, at.row, at.column);
      lines.push(`${words[at.view.id]}: ` +
        (at.view.id === "selected" ? brine.share(value) : brine.mass(value)));
    } else {
      lines.push(`query ${range(starts, at.row)} ${quoted(at.row)} \u2192 key ` +
        `${range(starts, at.column)} ${quoted(at.column)}`);
      const parts = [];
      for (const id of ["teacher", "widened", "mask", "student"]) {
        const plane = state.planes[id], largest = state.planes[id + ".most"];
        if (!plane) continue;
        const value = brine.value(plane, at.row, at.column);
        parts.push(id === "mask" ? `keys kept ${brine.share(value)}`
          : `${id === "widened" ? "estimate" : id} ${brine.mass(value)}` +
            (largest ? " (largest entry " +
              brine.mass(brine.value(largest, at.row, at.column)) + ")" : ""));
      }
      lines.push(parts.join(", "));
    }
    // Announce keyboard moves only; pointer moves would flood the screen reader.
    element("readout").setAttribute("aria-live", at.byKey ? "polite" : "off");
    element("readout").textContent = lines.join(" \u2014 ");
  }

  const group = new brine.maps.Group(readout, () =>
    `${student.name} layer ${state.layer} head ${state.head}`);
  const views = {};
  function view(id, place, options) {
    views[id] = new brine.maps.View({group, id, rowAxis: tokenAxis("query"),
      columnAxis: tokenAxis("key"), ...options});
    element(place).append(views[id].figure);
  }

  // Every head has the same kinds of maps, of the same size.
  function makeViews(kinds) {
    const has = (id) => kinds.includes(id);
    for (const id of ["teacher", "widened", "mask", "student"]) if (has(id)) view(id, "maps", {});
    if (has("estimate")) {
      view("estimate", "masking", {linked: false, columnAxis});
      if (has("selected")) view("selected", "masking", {linked: false, columnAxis});
      if (has("mask")) view("mask2", "masking", {});
    }
    for (const id of ["masking-title", "masking-about", "masking"]) show(id, has("estimate"));
    group.reset(student.cells, student.cells);
  }

  function draw() {
    const planes = state.planes, where = `layer ${state.layer}, head ${state.head}`;
    for (const [id, each] of Object.entries(views)) {
      const plane = id === "mask2" ? planes.mask : shownPlane(id);
      if (!plane) continue;
      let title = id === "mask2" ? "3. Their keys, the mask" : titles[id];
      if (plane.shares) title += " (share, bright is all)";
      each.show(plane, title, `Map of ${words[id] || id} in ${where}: ${plane.rows} rows of ` +
        `queries, ${plane.columns} columns. Arrow keys move a cursor whose numbers are read out.`);
    }
  }

  async function select(layer, head) {
    const found = headOf(layer, head) || student.maps[0];
    if (!found) return;
    state.layer = found.layer;
    state.head = found.head;
    const planes = await brine.planes(found);
    if (state.layer !== found.layer || state.head !== found.head) return;  // chosen meanwhile
    state.planes = planes;
    element("head-title").textContent = `Layer ${found.layer}, head ${found.head}`;
    element("layer").value = String(found.layer);
    element("head").value = String(found.head);
    draw();
    thumbnails.mark();
    const {row, column} = group.cursor || {row: student.cells - 1, column: 0};
    group.cursor = null;  // its numbers are those of another head
    group.move({row, column});
  }

  // ---- thumbnails of all heads

  const thumbnails = (function () {
    const place = element("thumbnails");
    const buttons = new Map();
    let turn = 0;
    const key = (layer, head) => layer + ":" + head;

    function recallOf(layer, head) {
      const rows = student.recall;
      return rows && rows[layer] && rows[layer].heads ? rows[layer].heads[head].mask : null;
    }
    function paint(button, planes) {
      const kind = element("thumbnail-kind").value, plane = planes[kind] || planes.teacher;
      const canvas = button.firstChild, side = 64;
      canvas.width = canvas.height = side;
      const context = canvas.getContext("2d");
      context.imageSmoothingEnabled = plane.rows > side;
      context.drawImage(brine.maps.pixels(plane), 0, 0, side, side);
    }
    async function paintAll() {
      const thisTurn = ++turn;
      for (const head of student.maps) {
        const planes = await brine.planes(head);
        if (thisTurn !== turn) return;  // another kind was chosen
        paint(buttons.get(key(head.layer, head.head)), planes);
      }
    }
    function fill() {
      const maps = student.maps, layers = [...new Set(maps.map((m) => m.layer))];
      const heads = [...new Set(maps.map((m) => m.head))];
      place.style.gridTemplateColumns = `2.2rem repeat(${heads.length}, minmax(1.9rem, 4.5rem))`;
      place.append(brine.make("span", {class: "axis"}), ...heads.map((head) =>
        brine.make("span", {class: "axis"}, String(head))));
      for (const layer of layers) {
        place.append(brine.make("span", {class: "axis"}, String(layer)));
        for (const head of heads) {
          const recall = recallOf(layer, head);
          const label = `layer ${layer}, head ${head}` +
            (recall === null ? "" : `, mask recall ${recall.toFixed(3)}`);
          const button = brine.make("button", {type: "button", "aria-label": label, title: label,
            "aria-pressed": "false", tabindex: "-1", onclick: () => select(layer, head)},
          brine.make("canvas", {"aria-hidden": "true"}));
          if (recall !== null) button.style.setProperty("--frame", brine.css(brine.colour(recall)));
          button.addEventListener("keydown", (event) => {
            const moves = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1],
              ArrowRight: [0, 1]};
            if (!moves[event.key]) return;
            event.preventDefault();
            const [down, right] = moves[event.key];
            const next = buttons.get(key(layers[layers.indexOf(layer) + down],
              heads[heads.indexOf(head) + right]));
            if (next) next.focus();
          });
          buttons.set(key(layer, head), button);
          place.append(button);
        }
      }
      mark();
      return paintAll();
    }
    function mark() {
      for (const [name, button] of buttons) {
        const selected = name === key(state.layer, state.head);
        button.setAttribute("aria-pressed", String(selected));
        button.tabIndex = selected ? 0 : -1;
      }
    }
    return {fill, mark, paintAll};
  })();

  // ---- attention that tokens receive

  const heat = (function () {
    const bytes = new Map();
    const textGroup = new brine.maps.Group(read, () => student.name + " tokens");
    let map = null, plane = null;

    async function unpacked(source) {
      if (!bytes.has(source)) {
        bytes.set(source, await Promise.all(student.heat.map((layer) => brine.bytes(layer[source]))));
      }
      return bytes.get(source);
    }
    const wordsOf = (place) => {
      const count = student.words.length, first = Math.floor(place * student.tokens / count);
      const end = Math.floor((place + 1) * student.tokens / count);
      return end - first === 1 ? String(first) : first + "\u2013" + (end - 1);
    };
    function read(at) {
      element("readout-heat").textContent =
        `layer ${at.row}, token ${wordsOf(at.column)} ` +
        `\u201c${brine.visible(student.words[at.column])}\u201d: ` +
        brine.mass(brine.value(plane, at.row, at.column));
    }
    function spans(masses) {
      const text = element("heat-text");
      text.replaceChildren();
      const largest = Math.max(...masses, 1e-9);
      student.words.forEach((word, i) => {
        const share = Math.max(0, 1 + Math.log10(Math.max(masses[i], 1e-9) / largest) / 3);
        const span = brine.make("span", {title: `${wordsOf(i)}: ${brine.mass(masses[i])}`},
          word);
        span.style.background = `rgba(230, 159, 0, ${(0.75 * share).toFixed(2)})`;
        if (share > 0.83) span.style.color = "#000";  // on the brightest, in the dark too
        text.append(span);
      });
    }
    function table(masses) {
      const order = masses.map((mass, i) => [mass, i]).sort((a, b) => b[0] - a[0] || a[1] - b[1]);
      element("heat-table").replaceChildren(brine.table([["token", "text", "mass received"],
        ...order.slice(0, 30).map(([mass, i]) =>
          [wordsOf(i), brine.visible(student.words[i]), brine.mass(mass)])], ["text"]));
    }
    async function draw() {
      const source = element("heat-source").value;
      const layers = await unpacked(source), columns = student.words.length;
      const all = new Uint8Array(layers.length * columns);
      layers.forEach((layer, i) => all.set(layer, i * columns));
      plane = {id: "heat", rows: layers.length, columns, shares: false, bytes: all};
      if (!map) {
        map = new brine.maps.View({group: textGroup, id: "heat", square: false, plotHeight: 200,
          rowAxis: {name: "layer", label: String},
          columnAxis: {name: "token, position in the text", label: (i) => wordsOf(i)}});
        element("heat").append(brine.make("output", {id: "readout-heat", "aria-live": "polite",
          class: "note"}), map.figure);
      }
      textGroup.reset(layers.length, columns);
      map.show(plane, "Attention received, by layer and token", `Attention that each of ${columns} ` +
        `tokens receives in each of ${layers.length} layers. Arrow keys move a cursor.`);
      const chosen = element("heat-layer").value;
      const masses = Array.from({length: columns}, (_, column) => {
        if (chosen !== "all") return brine.value(plane, Number(chosen), column);
        let sum = 0;
        for (let row = 0; row < plane.rows; ++row) sum += brine.value(plane, row, column);
        return sum / plane.rows;
      });
      spans(masses);
      table(masses);
    }
    function fill() {
      brine.options(element("heat-source"), student.heat[0].student
        ? [["student", "the student, on its mask"], ["teacher", "the teacher"]]
        : [["teacher", "the teacher"]]);
      brine.options(element("heat-layer"), [["all", "mean of all"],
        ...student.heat.map((_, i) => [i, String(i)])]);
      return draw();
    }
    return {fill, draw, group: textGroup};
  })();

  // ---- the controls

  async function fillControls() {
    const {maps} = student;
    brine.options(element("layer"), [...new Set(maps.map((m) => m.layer))].map((x) => [x, x]));
    brine.options(element("head"), [...new Set(maps.map((m) => m.head))].map((x) => [x, x]));
    const kinds = maps.length ? maps[0].planes.map((plane) => plane[0]) : [];
    brine.options(element("thumbnail-kind"), ["teacher", "widened", "mask", "student"]
      .filter((id) => kinds.includes(id)).map((id) => [id, titles[id]]));
    show("value-label", kinds.includes("teacher.most"));
    makeViews(kinds);
    element("attention-about").textContent = `${student.name}: ${student.method}, ` +
      (student.k ? `k = ${student.k} keys of a query and head, ` : "all keys, ") +
      `${brine.fixed(student.keys_read, 1)} keys read, ` +
      (student.columns ? `K = ${student.columns} columns, ` : "") + `${student.tokens} tokens` +
      (student.cells < student.tokens ? `, averaged into ${student.cells} x ${student.cells} cells` : "") +
      `. Teacher: ${student.teacher}. Rows are queries, columns keys. Pointer or arrow keys read a ` +
      "cell, + and \u2212, a double click or Ctrl and the wheel zoom.";
    element("masking-about").textContent = "The estimate has K columns for each query, whatever " +
      "its number of keys. The largest are selected; each stands for a block of neighbouring keys. A cell of the mask shows the share of its keys that are kept.";
    await select(state.layer, state.head);
    await Promise.all([thumbnails.fill(), heat.fill()]);
  }

  function connect() {
    const changed = (id, run) => element(id).addEventListener("change", run);
    changed("layer", () => select(Number(element("layer").value), state.head));
    changed("head", () => select(state.layer, Number(element("head").value)));
    changed("value", () => { state.value = element("value").value; draw(); });
    changed("thumbnail-kind", () => thumbnails.paintAll());
    changed("heat-source", () => heat.draw());
    changed("heat-layer", () => heat.draw());
    element("zoom-in").addEventListener("click", () => group.zoom(0.5));
    element("zoom-out").addEventListener("click", () => group.zoom(2));
    element("zoom-all").addEventListener("click", () => group.whole());
    for (const form of document.querySelectorAll("form")) {
      form.addEventListener("submit", (event) => event.preventDefault());
    }
  }

  function contents() {
    const sections = [...document.querySelectorAll("main section")].filter((s) => !s.hidden);
    element("contents").append(...sections.map((section) => brine.make("a",
      {href: "#" + section.id}, section.querySelector("h2").textContent)));
    const all = student && student.recall && student.recall[student.recall.length - 1];
    element("summary").textContent = all
      ? `${student.name} keeps ${brine.share(all.mask)} of the teacher's attention with ` +
        `k = ${student.k} of ${student.tokens} keys; the same number of its top keys has ` +
        `${brine.share(all.top_keys)}, 4 sinks and the most recent ` +
        `${brine.share(all.sinks_recent)}.`
      : "";
  }

  async function main() {
    for (const section of ["curves", "trade"]) {
      show(section, data.charts.some((chart) => chart.section === section));
    }
    const scale = brine.maps.scale();
    connect();
    brine.made();
    show("health", brine.health.fill(student));
    if (student) {
      show("attention");
      show("tokens");
      element("scale").append(scale.canvas, brine.make("span", {},
        "Mass of attention, logarithmic; teacher, estimate and student have this scale."));
    }
    contents();
    if (student) {
      // The middle of the model: in most models the first layer has the least structure.
      const {maps} = student, middle = maps[Math.floor(maps.length / 2)];
      if (middle) Object.assign(state, {layer: middle.layer, head: middle.head});
      await fillControls();
    }
    for (const section of ["health", "curves", "trade"]) {
      if (!element(section).hidden) brine.charts(section);
    }
    const redraw = () => {
      scale.paint();
      group.draw();
      heat.group.draw();
    };
    let waiting = 0;
    window.addEventListener("resize", () => {
      clearTimeout(waiting);
      waiting = setTimeout(redraw, 100);
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    const printing = (on) => {
      document.documentElement.classList.toggle("printing", on);
      redraw();
    };
    window.addEventListener("beforeprint", () => printing(true));
    window.addEventListener("afterprint", () => printing(false));
  }

  // For programs that read the page: `ready` settles when everything is drawn.
  brine.state = state;
  brine.views = views;
  brine.ready = main();
})();
