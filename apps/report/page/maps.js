// Maps on canvases: axes with tokens, a cursor that pointer and keys move, a window that all share.
"use strict";

brine.maps = (function () {
  const margins = {left: 74, right: 8, top: 4, bottom: 62};
  const keys = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]};
  // `moved` is told of the cursor's cell, `label` names a cell of tokens.
  const maps = {views: {}, keys, cells: 1, cursor: null, rows: [0, 1], columns: [0, 1],
    moved: () => {}, label: String, axis: "token"};

  // The picture of a plane, one pixel for a cell, as a canvas.
  maps.pixels = function (id, bytes) {
    const side = maps.cells, canvas = brine.make("canvas", {width: side, height: side});
    const image = new ImageData(side, side);
    const colours = Array.from({length: 256}, (_, byte) => brine.colour(brine.place(id, byte)));
    bytes.forEach((byte, i) => image.data.set([...colours[byte], 255], 4 * i));
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  };

  function shortened(context, text, width) {
    text = brine.visible(text);
    if (context.measureText(text).width <= width) return text;
    while (text.length > 1 && context.measureText(text + "\u2026").width > width) {
      text = text.slice(0, -1);
    }
    return text + "\u2026";
  }

  class View {
    constructor(id, title) {
      this.id = id;
      this.canvas = brine.make("canvas", {tabindex: "0", role: "application"});
      this.figure = brine.make("figure", {}, brine.make("figcaption", {}, title), this.canvas);
      const pointer = (name, run) => this.canvas.addEventListener(name, (event) => {
        const at = this.picture && this.cell(event);
        if (at) run(at, event);
      }, {passive: false});
      pointer("pointermove", (at) => maps.move(at));
      pointer("pointerdown", (at) => maps.move(at));
      pointer("dblclick", (at) => maps.zoom(0.5, at));
      pointer("wheel", (at, event) => {
        if (!event.ctrlKey && !event.metaKey) return;  // else the page scrolls
        event.preventDefault();
        maps.zoom(event.deltaY < 0 ? 0.8 : 1.25, at);
      });
      this.canvas.addEventListener("keydown", (event) => this.key(event));
    }

    show(bytes, alt) {
      this.picture = maps.pixels(this.id, bytes);
      this.canvas.setAttribute("aria-label", alt);
      this.draw();
    }

    // Of the square picture, in CSS pixels.
    side() { return Math.max(160, this.canvas.clientWidth || 300) - margins.left - margins.right; }

    draw() {
      if (!this.picture) return;
      const side = this.side(), ratio = window.devicePixelRatio || 1, {rows, columns} = maps;
      const width = side + margins.left + margins.right, height = side + margins.top + margins.bottom;
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      const context = this.canvas.getContext("2d");
      context.scale(ratio, ratio);
      // Where cells are smaller than pixels these are means: none is left out.
      context.imageSmoothingEnabled = columns[1] - columns[0] > side * ratio;
      context.imageSmoothingQuality = "high";
      context.drawImage(this.picture, columns[0], rows[0], columns[1] - columns[0],
        rows[1] - rows[0], margins.left, margins.top, side, side);
      this.axes(context, side);
      this.drawCursor(context, side);
    }

    axes(context, side) {
      context.fillStyle = context.strokeStyle = getComputedStyle(this.canvas).color;
      context.font = "11px system-ui, sans-serif";
      context.strokeRect(margins.left + 0.5, margins.top + 0.5, side - 1, side - 1);
      const turned = (x, y, text) => {
        context.save();
        context.translate(x, y);
        context.rotate(-Math.PI / 2);
        context.fillText(text, 0, 0);
        context.restore();
      };
      const count = Math.max(1, Math.min(maps.rows[1] - maps.rows[0], Math.floor(side / 15)));
      context.textBaseline = "middle";
      for (let i = 0; i < count; ++i) {
        const at = side * (i + 0.5) / count, cell = ([from, end]) =>
          shortened(context, maps.label(Math.floor(from + (i + 0.5) * (end - from) / count)), 50);
        context.textAlign = "right";
        context.fillText(cell(maps.rows), margins.left - 4, margins.top + at);
        turned(margins.left + at, margins.top + side + 4, cell(maps.columns));
      }
      context.textAlign = "center";
      context.fillText("key: " + maps.axis, margins.left + side / 2, side + margins.bottom - 3);
      turned(8, margins.top + side / 2, "query: " + maps.axis);
    }

    drawCursor(context, side) {
      const {cursor, rows, columns} = maps, cell = side / (rows[1] - rows[0]);
      if (!cursor || cursor.row < rows[0] || cursor.row >= rows[1]) return;
      if (cursor.column < columns[0] || cursor.column >= columns[1]) return;
      const y = margins.top + (cursor.row - rows[0]) * cell, span = Math.max(cell, 2);
      const x = margins.left + (cursor.column - columns[0]) * cell;
      context.strokeStyle = "#fff";
      context.lineWidth = 1.5;
      context.strokeRect(margins.left, y, side, span);
      context.strokeRect(x, margins.top, span, side);
      context.strokeStyle = "#d55e00";
      context.strokeRect(x - 1, y - 1, span + 2, span + 2);
    }

    // The cell at a place of the canvas, or null.
    cell(event) {
      const box = this.canvas.getBoundingClientRect(), side = this.side(), {rows, columns} = maps;
      const x = (event.clientX - box.left - margins.left) / side;
      const y = (event.clientY - box.top - margins.top) / side;
      if (x < 0 || y < 0 || x >= 1 || y >= 1) return null;
      return {row: Math.floor(rows[0] + y * (rows[1] - rows[0])),
        column: Math.floor(columns[0] + x * (columns[1] - columns[0]))};
    }

    key(event) {
      const {rows, columns} = maps, at = maps.cursor || {row: rows[1] - 1, column: columns[0]};
      if (keys[event.key]) {
        const far = event.shiftKey ? 8 : 1, [down, right] = keys[event.key];
        const inside = (x, range) => Math.min(range[1] - 1, Math.max(range[0], x));
        maps.move({row: inside(at.row + far * down, rows),
          column: inside(at.column + far * right, columns), byKey: true});
      } else if (event.key === "+" || event.key === "=") {
        maps.zoom(0.5);
      } else if (event.key === "-") {
        maps.zoom(2);
      } else if (event.key === "0" || event.key === "Escape") {
        maps.zoom(Infinity);
      } else {
        return;
      }
      event.preventDefault();
    }
  }

  maps.add = (id, title) => (maps.views[id] = new View(id, title)).figure;
  maps.draw = () => Object.values(maps.views).forEach((view) => view.draw());
  maps.move = function (at) {
    const old = maps.cursor;
    if (old && old.row === at.row && old.column === at.column) return;
    maps.cursor = at;
    maps.draw();
    maps.moved(at);
  };
  // A window of `factor` times the size around a cell; Infinity: the whole maps.
  maps.zoom = function (factor, at) {
    const scaled = ([from, end], centre) => {
      const span = Math.round(Math.min(maps.cells, Math.max(4, (end - from) * factor)));
      const first = Math.round(centre - span * (centre - from) / (end - from));
      const inside = Math.min(Math.max(0, first), Math.max(0, maps.cells - span));
      return [inside, Math.min(maps.cells, inside + span)];
    };
    const {row, column} = at || maps.cursor || {row: (maps.rows[0] + maps.rows[1]) / 2,
      column: (maps.columns[0] + maps.columns[1]) / 2};
    maps.rows = scaled(maps.rows, row + 0.5);
    maps.columns = scaled(maps.columns, column + 0.5);
    maps.draw();
  };
  return maps;
})();
