// Tables: numbers by layer and head as colours, settings, commands.
"use strict";

// Rows of cells, the first is the header; columns named in `texts` are aligned as text.
brine.table = function (rows, texts = []) {
  const kinds = rows[0].map((name) => (texts.includes(name) ? "text-cell" : undefined));
  const line = (cells, tag) => brine.make("tr", {}, ...cells.map((cell, i) =>
    brine.make(tag, {class: kinds[i], scope: tag === "th" ? "col" : undefined}, String(cell))));
  return brine.make("table", {}, brine.make("thead", {}, line(rows[0], "th")),
    brine.make("tbody", {}, ...rows.slice(1).map((cells) => line(cells, "td"))));
};

// values[layer][head] with the colour of place(value) as [red, green, blue] and its ink.
brine.grid = function (values, caption, shown, paint) {
  const heads = Math.max(...values.map((row) => row.length));
  const header = brine.make("tr", {}, brine.make("th", {scope: "col"}, "layer"),
    ...Array.from({length: heads}, (_, i) => brine.make("th", {scope: "col"}, "head " + i)));
  const body = values.map((row, layer) => brine.make("tr", {},
    brine.make("th", {scope: "row"}, String(layer)), ...row.map((value) => {
      const {colour, ink} = paint(value);
      return brine.make("td", {style: `background:${colour};color:${ink}`}, shown(value));
    })));
  return brine.make("table", {class: "grid"}, brine.make("caption", {}, caption),
    brine.make("thead", {}, header), brine.make("tbody", {}, ...body));
};

brine.paintShare = (value) => (Number.isFinite(value)
  ? {colour: brine.css(brine.colour(value)), ink: brine.inkOn(value)}
  : {colour: "transparent", ink: "inherit"});
brine.paintDifference = (scale) => (value) =>
  ({colour: brine.css(brine.difference(value / scale)), ink: "#000"});

brine.options = function (select, choices) {
  for (const [value, text] of choices) {
    select.append(brine.make("option", {value: String(value)}, text));
  }
};

brine.health = (function () {
  const measures = [["mask", "mask recall"], ["top_keys", "top keys (ceiling)"],
    ["best_columns", "best columns (ceiling)"], ["sinks_recent", "4 sinks + most recent (floor)"],
    ["most_recent", "most recent (floor)"], ["random", "random (floor)"],
    ["top1_hit", "share of queries whose heaviest key is kept"],
    ["teacher_recent_64", "teacher's mass on the 64 most recent keys"],
    ["teacher_first_4", "teacher's mass on the 4 first keys"]];

  function fill(students) {
    const known = students.filter((each) => each.recall);
    if (!known.length) return false;
    const rows = [["student", "mask recall", "least head", "10th percentile", "top keys",
      "best columns", "4 sinks + recent", "most recent", "random", "top-1 hit", "queries"]];
    for (const each of known) {
      const all = each.recall[each.recall.length - 1];
      const keys = ["mask", "min", "p10", "top_keys", "best_columns", "sinks_recent",
        "most_recent", "random", "top1_hit"];
      rows.push([each.name, ...keys.map((key) => brine.fixed(all[key], 3)), all.rows]);
    }
    document.getElementById("health-summary").append(
      brine.make("div", {class: "scroll"}, brine.table(rows, ["student"])));
    const select = document.getElementById("health-measure");
    known.forEach((each, i) => brine.options(select, measures.map(([key, text]) =>
      [i + ":" + key, (known.length > 1 ? each.name + ": " : "") + text])));
    const place = document.getElementById("health-grid");
    const show = () => {
      const [i, key] = select.value.split(":"), each = known[i];
      const text = measures.find((measure) => measure[0] === key)[1];
      const values = each.recall.filter((row) => row.heads).map((row) =>
        row.heads.map((head) => head[key]));
      place.replaceChildren(brine.grid(values, each.name + ": " + text,
        (x) => brine.fixed(x, 2).replace(/^0/, ""), brine.paintShare));
    };
    select.addEventListener("change", show);
    show();
    return true;
  }
  return {fill};
})();

brine.comparison = function (students) {
  const [about] = brine.data.comparisons;
  if (!about || students.length < 2 || !students[0].recall || !students[1].recall) return false;
  const mask = (student) => student.recall.filter((row) => row.heads).map((row) =>
    row.heads.map((head) => head.mask));
  const a = mask(students[0]), b = mask(students[1]);
  const difference = a.map((row, layer) => row.map((x, head) => x - b[layer][head]));
  const flat = (rows) => rows.flat().filter(Number.isFinite), mean = (list) => list.reduce((s, x) => s + x, 0) / list.length;
  const better = flat(difference).filter((x) => x > 0).length;
  document.getElementById("comparison-about").textContent =
    `Mask recall ${brine.fixed(mean(flat(a)), 3)} of ${about.first}, ${brine.fixed(mean(flat(b)), 3)} of ` +
    `${about.second}; the first is ahead in ${better} of ${flat(a).length} heads. Of the keys that ` +
    `one of them keeps, both keep ${brine.share(mean(flat(about.overlap)))}.`;
  const select = document.getElementById("comparison-measure");
  const place = document.getElementById("comparison-grid");
  const largest = Math.max(0.01, ...flat(difference).map(Math.abs));
  const show = () => place.replaceChildren(select.value === "difference"
    ? brine.grid(difference, `${about.first} minus ${about.second}`,
      (x) => brine.signed(x, 3), brine.paintDifference(largest))
    : brine.grid(about.overlap, "Share of keys in common",
      (x) => x.toFixed(2).replace(/^0/, ""), brine.paintShare));
  select.addEventListener("change", show);
  show();
  return true;
};

brine.made = function () {
  const place = document.getElementById("made-list"), make = brine.make;
  const block = (title, ...content) => make("details", {}, make("summary", {}, title),
    make("div", {}, ...content));
  place.append(make("p", {}, "This page: ", make("code", {}, brine.data.command), ", ",
    brine.data.program, "."));
  for (const each of brine.data.attention) {
    const rows = [["setting", "value"], ...Object.entries(each.settings).map(([key, value]) =>
      [key, typeof value === "string" ? value : JSON.stringify(value)])];
    place.append(block("Attention of " + each.name,
      make("p", {}, `${each.method} of ${each.source}, teacher: ${each.teacher}, ${each.tokens} ` +
        `tokens, k = ${each.k || "all keys"}. Recall counts the queries that see more than k keys.`),
      brine.table(rows, ["setting", "value"])));
  }
  for (const run of brine.data.runs) {
    const parts = [make("p", {}, `${run.path}, ${run.lines} lines of log. `)];
    if (run.command) parts.push(make("p", {}, make("code", {}, run.command)));
    if (run.events.length) {
      parts.push(brine.table([["step", "event"], ...run.events.map((e) => [e.step, e.text])],
        ["event"]));
    }
    if (run.configuration) parts.push(make("pre", {}, run.configuration));
    place.append(block("Run " + run.name, ...parts));
  }
};
