// Maps on canvases: axes with tokens, a cursor that pointer and keys move, a window that they share.
"use strict";

brine.maps = (function () {
  const margins = {left: 74, right: 8, top: 4, bottom: 62};

  // Letters of a picture that is saved are dark on white, whatever the page is.
  let saving = false;
  function ink() {
    return saving ? "#000"
      : getComputedStyle(document.documentElement).getPropertyValue("--ink");
  }

  // The picture of a plane, one pixel for a cell, as a canvas.
  function pixels(plane) {
    const canvas = document.createElement("canvas");
    canvas.width = plane.columns;
    canvas.height = plane.rows;
    const image = new ImageData(plane.columns, plane.rows);
    const colours = Array.from({length: 256}, (_, byte) => brine.colour(
      plane.shares ? byte / 255 : byte === 0 ? 0 : (byte - 1) / 254));
    for (let i = 0; i < plane.bytes.length; ++i) {
      const [red, green, blue] = colours[plane.bytes[i]];
      image.data.set([red, green, blue, 255], 4 * i);
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  }

  function shortened(context, text, width) {
    text = brine.visible(text);
    if (context.measureText(text).width <= width) return text;
    while (text.length > 1 && context.measureText(text + "\u2026").width > width) {
      text = text.slice(0, -1);
    }
    return text + "\u2026";
  }

  // One map. `axes` has rows and columns: {name, label(i)}; `group` is the window and cursor that
  // several maps share; `linked` says whether its columns are those of the group.
  class View {
    constructor(options) {
      Object.assign(this, {linked: true, square: true}, options);
      this.canvas = brine.make("canvas", {tabindex: "0", role: "application"});
      this.title = brine.make("span", {class: "title"});
      this.figure = brine.make("figure", {},
        brine.make("figcaption", {}, this.title,
          brine.make("button", {type: "button", class: "small", "aria-label": "Save as PNG",
            onclick: () => this.save()}, "PNG")), this.canvas);
      this.group.views.push(this);
      this.listen();
    }

    show(plane, title, alt) {
      this.plane = plane;
      this.picture = pixels(plane);
      this.title.textContent = title;
      this.canvas.setAttribute("aria-label", alt);
      this.draw();
    }

    window() {
      const all = [0, this.plane.columns];
      return {rows: this.group.rows, columns: this.linked ? this.group.columns : all};
    }

    size() {
      const width = Math.max(160, this.canvas.clientWidth || 300);
      const plot = width - margins.left - margins.right;
      return {width, plot, height: this.square ? plot : this.plotHeight};
    }

    draw() {
      if (!this.plane) return;
      const {width, plot, height} = this.size(), ratio = window.devicePixelRatio || 1;
      const full = height + margins.top + margins.bottom;
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(full * ratio);
      this.canvas.style.height = full + "px";
      const context = this.canvas.getContext("2d");
      const {rows, columns} = this.window();
      this.paint(context, ratio, width, plot, height, rows, columns);
    }

    paint(context, ratio, width, plot, height, rows, columns) {
      context.scale(ratio, ratio);
      // Where cells are smaller than pixels these are means: none is left out.
      const smaller = columns[1] - columns[0] > plot * ratio || rows[1] - rows[0] > height * ratio;
      context.imageSmoothingEnabled = smaller;
      context.imageSmoothingQuality = "high";
      context.drawImage(this.picture, columns[0], rows[0], columns[1] - columns[0],
        rows[1] - rows[0], margins.left, margins.top, plot, height);
      this.axes(context, plot, height);
      this.cursor(context, plot, height);
    }

    axes(context, plot, height) {
      const {rows, columns} = this.window();
      context.fillStyle = context.strokeStyle = ink();
      context.font = "11px system-ui, sans-serif";
      context.strokeRect(margins.left + 0.5, margins.top + 0.5, plot - 1, height - 1);
      const ticks = (range, room) => {
        const count = Math.max(1, Math.min(range[1] - range[0], Math.floor(room / 15)));
        return Array.from({length: count}, (_, i) =>
          Math.floor(range[0] + (i + 0.5) * (range[1] - range[0]) / count));
      };
      context.textAlign = "right";
      context.textBaseline = "middle";
      for (const row of ticks(rows, height)) {
        const y = margins.top + height * (row + 0.5 - rows[0]) / (rows[1] - rows[0]);
        context.fillText(shortened(context, this.rowAxis.label(row), margins.left - 20),
          margins.left - 4, y);
      }
      for (const column of ticks(columns, plot)) {
        const x = margins.left + plot * (column + 0.5 - columns[0]) / (columns[1] - columns[0]);
        context.save();
        context.translate(x, margins.top + height + 4);
        context.rotate(-Math.PI / 2);
        context.fillText(shortened(context, this.columnAxis.label(column), margins.bottom - 20),
          0, 0);
        context.restore();
      }
      context.textAlign = "center";
      context.fillText(this.columnAxis.name, margins.left + plot / 2,
        margins.top + height + margins.bottom - 7);
      context.save();
      context.translate(8, margins.top + height / 2);
      context.rotate(-Math.PI / 2);
      context.fillText(this.rowAxis.name, 0, 0);
      context.restore();
    }

    cursor(context, plot, height) {
      const at = this.group.cursor;
      if (!at) return;
      const {rows, columns} = this.window();
      const cell = {w: plot / (columns[1] - columns[0]), h: height / (rows[1] - rows[0])};
      const y = margins.top + (at.row - rows[0]) * cell.h;
      context.strokeStyle = "#fff";
      context.lineWidth = 1.5;
      if (at.row < rows[0] || at.row >= rows[1]) return;
      context.strokeRect(margins.left, y, plot, Math.max(cell.h, 2));
      const column = this.linked ? at.column : at.view === this ? at.column : -1;
      if (column < columns[0] || column >= columns[1]) return;
      const x = margins.left + (column - columns[0]) * cell.w;
      context.strokeRect(x, margins.top, Math.max(cell.w, 2), height);
      context.strokeStyle = "#d55e00";
      context.strokeRect(x - 1, y - 1, Math.max(cell.w, 2) + 2, Math.max(cell.h, 2) + 2);
    }

    // The cell at a place of the canvas, or null.
    cell(event) {
      const box = this.canvas.getBoundingClientRect(), {plot, height} = this.size();
      const x = (event.clientX - box.left) * this.canvas.clientWidth / box.width - margins.left;
      const y = event.clientY - box.top - margins.top;
      if (x < 0 || y < 0 || x >= plot || y >= height) return null;
      const {rows, columns} = this.window();
      return {row: Math.floor(rows[0] + y / height * (rows[1] - rows[0])),
        column: Math.floor(columns[0] + x / plot * (columns[1] - columns[0])), view: this};
    }

    listen() {
      this.canvas.addEventListener("pointermove", (event) => {
        const at = this.plane && this.cell(event);
        if (at) this.group.move(at);
      });
      this.canvas.addEventListener("pointerdown", (event) => {
        const at = this.plane && this.cell(event);
        if (at) this.group.move(at);
      });
      this.canvas.addEventListener("dblclick", (event) => {
        const at = this.plane && this.cell(event);
        if (at) this.group.zoom(0.5, at);
      });
      this.canvas.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && !event.metaKey) return;  // else the page scrolls
        event.preventDefault();
        const at = this.plane && this.cell(event);
        if (at) this.group.zoom(event.deltaY < 0 ? 0.8 : 1.25, at);
      }, {passive: false});
      this.canvas.addEventListener("keydown", (event) => this.key(event));
    }

    key(event) {
      if (!this.plane) return;
      const steps = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]};
      const {rows, columns} = this.window();
      const at = this.group.cursor || {row: rows[1] - 1, column: columns[0]};
      if (steps[event.key]) {
        const far = event.shiftKey ? 8 : 1, [down, right] = steps[event.key];
        const inside = (x, range) => Math.min(range[1] - 1, Math.max(range[0], x));
        this.group.move({row: inside(at.row + far * down, rows),
          column: inside(at.column + far * right, columns), view: this, byKey: true});
      } else if (event.key === "+" || event.key === "=") {
        this.group.zoom(0.5, at);
      } else if (event.key === "-") {
        this.group.zoom(2, at);
      } else if (event.key === "0" || event.key === "Escape") {
        this.group.whole();
      } else {
        return;
      }
      event.preventDefault();
    }

    // The picture on white, with its title, without the cursor.
    save() {
      const title = this.group.name() + ", " + this.title.textContent, head = 22;
      const {width, plot, height} = this.size(), {rows, columns} = this.window();
      const canvas = document.createElement("canvas"), cursor = this.group.cursor;
      canvas.width = 2 * width;
      canvas.height = 2 * (height + margins.top + margins.bottom + head);
      const context = canvas.getContext("2d");
      context.fillStyle = "#fff";
      context.fillRect(0, 0, canvas.width, canvas.height);
      context.fillStyle = "#000";
      context.font = "24px system-ui, sans-serif";
      context.fillText(title, 8, 30, canvas.width - 16);
      context.translate(0, 2 * head);
      saving = true;
      this.group.cursor = null;
      this.paint(context, 2, width, plot, height, rows, columns);
      this.group.cursor = cursor;
      saving = false;
      canvas.toBlob((blob) => brine.save(brine.fileName(title) + ".png", blob));
    }
  }

  // Maps with the same rows, and for those that are linked the same columns.
  class Group {
    constructor(moved, name) {
      Object.assign(this, {views: [], moved, name, cursor: null, rows: [0, 1], columns: [0, 1]});
    }
    reset(rows, columns) {
      this.size = {rows, columns};
      this.cursor = null;
      this.rows = [0, rows];
      this.columns = [0, columns];
    }
    whole() {
      this.rows = [0, this.size.rows];
      this.columns = [0, this.size.columns];
      this.draw();
    }
    move(at) {
      const old = this.cursor;
      if (old && old.row === at.row && old.column === at.column && old.view === at.view) return;
      this.cursor = at;
      this.draw();
      this.moved(at);
    }
    zoom(factor, at) {
      const scaled = (range, size, centre) => {
        const span = Math.round(Math.min(size, Math.max(4, (range[1] - range[0]) * factor)));
        const from = Math.round(centre - span * (centre - range[0]) / (range[1] - range[0]));
        const first = Math.min(Math.max(0, from), Math.max(0, size - span));
        return [first, Math.min(size, first + span)];
      };
      const centre = at || this.cursor || {row: (this.rows[0] + this.rows[1]) / 2,
        column: (this.columns[0] + this.columns[1]) / 2};
      this.rows = scaled(this.rows, this.size.rows, centre.row + 0.5);
      if (!at || !at.view || at.view.linked) {
        this.columns = scaled(this.columns, this.size.columns, centre.column + 0.5);
      }
      this.draw();
    }
    draw() { for (const view of this.views) view.draw(); }
  }

  // The colours with their masses.
  function scale() {
    const canvas = brine.make("canvas", {role: "img",
      "aria-label": "Colours of masses from " + brine.data.leastMass + ", dark, to 1, bright"});
    canvas.width = 704;
    canvas.height = 76;
    const context = canvas.getContext("2d");
    const paint = () => {
      context.clearRect(0, 0, canvas.width, canvas.height);
      for (let x = 0; x < 640; ++x) {
        context.fillStyle = brine.css(brine.colour(x / 639));
        context.fillRect(32 + x, 2, 1, 34);
      }
      context.fillStyle = ink();
      context.font = "22px system-ui, sans-serif";
      context.textAlign = "center";
      for (let mass = 1; mass > brine.data.leastMass / 2; mass /= 10) {
        const power = Math.round(Math.log10(mass));
        context.fillText(power < -3 ? "1e" + power : String(Number(mass.toPrecision(1))),
          32 + 640 * brine.placeOfMass(mass), 64);
      }
    };
    paint();
    return {canvas, paint};
  }

  return {View, Group, scale, pixels};
})();
