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
brine.css = (rgb) => `rgb(${rgb.join(", ")})`;

// The planes of a head by their names, a byte for each cell, as apps/report/pack.h says.
brine.planes = async function (head) {
  if (head.unpacked) return head.unpacked;
  const {cells, planes} = brine.data.attention, out = {};
  const packed = Uint8Array.from(atob(head.bytes), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  planes.forEach((id, plane) => {
    out[id] = bytes.subarray(plane * cells * cells, (plane + 1) * cells * cells);
    for (let i = cells; i < cells * cells; ++i) out[id][i] += out[id][i - cells];
  });
  return (head.unpacked = out);
};
// The place on the colours, and the number, of a byte: a mass on a logarithmic scale, 0 at and below
// the least mass; a share for the mask.
brine.place = (id, byte) => (id === "mask" ? byte / 255 : byte === 0 ? 0 : (byte - 1) / 254);
brine.value = (id, byte) => (id === "mask" ? byte / 255
  : byte === 0 ? 0 : Math.pow(brine.data.leastMass, 1 - (byte - 1) / 254));
brine.mass = (x) => (x === 0 ? "< " + brine.data.leastMass : x.toPrecision(3));
brine.share = (x) => (100 * x).toFixed(x > 0 && x < 0.1 ? 1 : 0) + " %";
// White space of a token made visible.
brine.visible = (text) => text.replace(/\n/g, "\u21b5").replace(/\t/g, "\u21e5");

brine.make = function (tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);  // strings become text
  return element;
};
