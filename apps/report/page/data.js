// The data of the page: bytes of maps, colours, numbers as text.
"use strict";
const brine = {};

brine.data = JSON.parse(document.getElementById("data").textContent);

// Viridis at multiples of 1/8 (matplotlib; public domain).
brine.stops = [[68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141],
  [39, 173, 129], [92, 200, 99], [170, 220, 50], [253, 231, 37]];

brine.colour = function (place) {
  const at = Math.min(1, Math.max(0, place)) * (brine.stops.length - 1);
  const low = Math.min(Math.floor(at), brine.stops.length - 2), share = at - low;
  return brine.stops[low].map((from, i) =>
    Math.round(from + (brine.stops[low + 1][i] - from) * share));
};
brine.css = (rgb) => `rgb(${rgb[0]}, ${rgb[1]}, ${rgb[2]})`;
// Letters on a colour of the scale.
brine.inkOn = (place) => (place > 0.43 ? "#000" : "#fff");

// Masses are bytes on a logarithmic scale, 0 at and below the least mass.
brine.massOfByte = (byte) =>
  byte === 0 ? 0 : Math.pow(brine.data.leastMass, 1 - (byte - 1) / 254);
brine.placeOfMass = (mass) => (mass <= brine.data.leastMass
  ? 0 : Math.min(1, 1 - Math.log10(mass) / Math.log10(brine.data.leastMass)));

brine.bytes = async function (base64) {
  const text = atob(base64), packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
};

// The planes of a head by their names; bytes are differences, as apps/report/pack.h says.
brine.planes = async function (head) {
  if (head.unpacked) return head.unpacked;
  const bytes = await brine.bytes(head.bytes);
  const planes = {};
  let at = 0;
  for (const [id, rows, columns, shares] of head.planes) {
    const values = bytes.subarray(at, at + rows * columns);
    const mass = id.endsWith(".most") ? planes[id.slice(0, -5)].bytes : null;
    for (let i = mass ? 0 : columns; i < values.length; ++i) {
      values[i] = (values[i] + (mass ? mass[i] : values[i - columns])) & 255;
    }
    planes[id] = {id, rows, columns, shares: shares === 1, bytes: values};
    at += rows * columns;
  }
  head.unpacked = planes;
  return planes;
};
brine.value = function (plane, row, column) {
  const byte = plane.bytes[row * plane.columns + column];
  return plane.shares ? byte / 255 : brine.massOfByte(byte);
};
brine.mass = (x) => (x === 0 ? "< " + brine.data.leastMass : x.toPrecision(3));
// A number that a student which diverged may lack.
brine.fixed = (x, digits) => (Number.isFinite(x) ? x.toFixed(digits) : "\u2013");
brine.share = (x) => (100 * x).toFixed(x > 0 && x < 0.1 ? 1 : 0) + " %";
// White space of a token made visible.
brine.visible = (text) => text.replace(/\n/g, "\u21b5").replace(/\t/g, "\u21e5");

brine.make = function (tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") element.addEventListener("click", value);
    else if (value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);  // strings become text
  return element;
};

brine.save = function (name, blob) {
  const address = URL.createObjectURL(blob);
  brine.make("a", {href: address, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
};
brine.csv = (rows) => rows.map((row) => row.map((cell) => {
  const text = String(cell);
  return /[",\r\n]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
}).join(",")).join("\r\n") + "\r\n";
brine.fileName = (text) => text.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
