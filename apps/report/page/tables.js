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

// Shares [layer][head] on their colours.
brine.grid = function (values, caption) {
  const heads = Math.max(...values.map((row) => row.length));
  const header = brine.make("tr", {}, brine.make("th", {scope: "col"}, "layer"),
    ...Array.from({length: heads}, (_, i) => brine.make("th", {scope: "col"}, "head " + i)));
  const body = values.map((row, layer) => brine.make("tr", {},
    brine.make("th", {scope: "row"}, String(layer)), ...row.map((value) => {
      const style = Number.isFinite(value)
        ? `background:${brine.css(brine.colour(value))};color:${brine.inkOn(value)}` : undefined;
      return brine.make("td", {style}, brine.fixed(value, 2).replace(/^0/, ""));
    })));
  return brine.make("table", {class: "grid"}, brine.make("caption", {}, caption),
    brine.make("thead", {}, header), brine.make("tbody", {}, ...body));
};

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

  function fill(student) {
    if (!student || !student.recall) return false;
    const keys = ["mask", "min", "p10", "top_keys", "best_columns", "sinks_recent",
      "most_recent", "random", "top1_hit"];
    const all = student.recall[student.recall.length - 1];
    document.getElementById("health-summary").append(
      brine.make("div", {class: "scroll"}, brine.table([["student", "mask recall", "least head",
        "10th percentile", "top keys", "best columns", "4 sinks + recent", "most recent", "random",
        "top-1 hit", "queries", "keys read"],
      [student.name, ...keys.map((key) => brine.fixed(all[key], 3)), all.rows,
        brine.fixed(all.keys_read, 1)]], ["student"])));
    const select = document.getElementById("health-measure");
    brine.options(select, measures);
    const place = document.getElementById("health-grid");
    const show = () => {
      const [key, text] = measures.find((measure) => measure[0] === select.value);
      const values = student.recall.filter((row) => row.heads).map((row) =>
        row.heads.map((head) => head[key]));
      place.replaceChildren(brine.grid(values, student.name + ": " + text));
    };
    select.addEventListener("change", show);
    show();
    return true;
  }
  return {fill};
})();

brine.made = function () {
  const place = document.getElementById("made-list"), make = brine.make;
  const block = (title, ...content) => make("details", {}, make("summary", {}, title),
    make("div", {}, ...content));
  place.append(make("p", {}, "This page: ", make("code", {}, brine.data.command), ", ",
    brine.data.program, "."));
  const each = brine.data.attention;
  if (each) {
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
