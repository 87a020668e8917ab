// Line charts: pictures that the program drew, with their numbers.
"use strict";

// Makes the charts of a section in its element.
brine.charts = function (section) {
  const place = document.getElementById(section + "-charts");
  for (const chart of brine.data.charts.filter((each) => each.section === section)) {
    const picture = brine.make("div", {class: "picture"});
    picture.innerHTML = chart.svg;
    picture.firstElementChild.setAttribute("aria-label", chart.alt);
    const rows = [["series", chart.x, chart.y, "single values"]];
    for (const line of chart.lines) {
      for (const [x, y, all] of line.points) {
        rows.push([line.name, x, Number(y.toPrecision(7)), all ? all.join(" ") : ""]);
      }
    }
    const save = (type, media, text) => brine.make("button", {type: "button", class: "small",
      "aria-label": `Save ${chart.title} as ${type.toUpperCase()}`,
      onclick: () => brine.save(`${chart.id}.${type}`, new Blob([text], {type: media}))},
    type.toUpperCase());
    const numbers = brine.make("details", {}, brine.make("summary", {}, "Numbers"),
      brine.make("div"));
    numbers.addEventListener("toggle", () => {
      if (!numbers.lastChild.firstChild) numbers.lastChild.append(brine.table(rows, ["series"]));
    });
    place.append(brine.make("figure", {class: "chart", id: "chart-" + chart.id}, picture,
      brine.make("figcaption", {}, brine.make("small", {}, chart.note),
        brine.make("span", {class: "buttons"}, save("svg", "image/svg+xml", chart.svg),
          save("csv", "text/csv", brine.csv(rows)))), numbers));
  }
};
