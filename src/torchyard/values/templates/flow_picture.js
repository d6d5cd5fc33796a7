"use strict";
// Draws a view of the flow graph on a canvas and handles panning and zooming.
class FlowPicture {
  static SMALLEST = 0.002;

  static LARGEST = 3;

  static READABLE = 1; // scale at which the smallest letters have 11 pixels

  static MUCH = 33; // percentage of waste from which the outgoing edges of an operator are highlighted

  constructor(canvas, flow, onChoose) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
    this.flow = flow;
    [this.boxWidth, this.boxHeight] = flow.box;
    this.onChoose = onChoose;
    this.view = null;
    this.scale = 1;
    this.left = 0; // screen coordinates of the origin
    this.top = 0;
    this.chosen = -1;
    this.hovered = -1;
    this.found = null; // set of search matches, or null without a search
    this.colours = {};
    this.cuts = new Map();
    this.waiting = false;
    this.readColours();
    for (const query of ["(prefers-color-scheme: dark)", "print"]) {
      window.matchMedia(query).addEventListener("change", () => { this.readColours(); this.draw(); });
    }
    new ResizeObserver(() => this.resize()).observe(canvas);
    this.listen();
    this.resize();
  }

  get width() { return this.canvas.clientWidth; }

  get height() { return this.canvas.clientHeight; }

  get wholeInSight() {
    return this.view.right * this.scale <= this.width && this.view.bottom * this.scale <= this.height;
  }

  static prepare(view, flow) {
    if (view.positions) return;
    const [boxWidth, boxHeight] = flow.box;
    view.positions = new Map(view.members.map((item, position) => [item, position]));
    view.right = Math.max(...view.x, 0) + boxWidth / 2;
    view.bottom = Math.max(...view.y, 0) + boxHeight / 2;
    view.strokes = new Map();
    view.around = new Map();
    for (let index = 0; index < view.edges.length; index += 4) {
      const [writer, reader, bytes, passed] = view.edges.slice(index, index + 4);
      const wasted = flow.items[view.members[writer]].waste >= FlowPicture.MUCH;
      const width = Math.round(Math.max(1, Math.min(5, Math.log2(Math.max(1, bytes)) / 5 - 1)));
      const key = `${Number(wasted)}${passed}${width}`;
      if (!view.strokes.has(key)) view.strokes.set(key, { path: new Path2D(), heads: new Path2D(), wasted, passed, width });
      const stroke = view.strokes.get(key);
      FlowPicture.curve(stroke.path, view, writer, reader, boxWidth, boxHeight);
      const [u, v] = [view.x[reader], view.y[reader] - boxHeight / 2];
      stroke.heads.moveTo(u, v);
      stroke.heads.lineTo(u - 4 - width, v - 7 - width);
      stroke.heads.lineTo(u + 4 + width, v - 7 - width);
      stroke.heads.closePath();
      for (const [here, other, side] of [[writer, reader, "to"], [reader, writer, "from"]]) {
        if (!view.around.has(here)) view.around.set(here, { from: [], to: [] });
        view.around.get(here)[side].push({ other, bytes, passed });
      }
    }
  }

  static curve(path, view, writer, reader, boxWidth, boxHeight) {
    const x = view.x[writer];
    const y = view.y[writer] + boxHeight / 2;
    const u = view.x[reader];
    const v = view.y[reader] - boxHeight / 2;
    path.moveTo(x, y);
    if (v > y) {
      const bend = Math.min(160, (v - y) / 2);
      path.bezierCurveTo(x, y + bend, u, v - bend, u, v);
    } else { // to an earlier layer: curve around the side
      const side = (u >= x ? 1 : -1) * boxWidth * 0.75;
      path.bezierCurveTo(x + side, y + 60, u + side, v - 60, u, v);
    }
  }

  show(view) {
    this.view = view;
    FlowPicture.prepare(view, this.flow);
    this.hovered = -1;
    if (!view.positions.has(this.chosen)) this.chosen = -1;
    this.fit();
    if (this.scale < 0.8) {
      // Too large for one screen: start at the largest waste, else at the first node.
      this.scale = 0;
      this.centre(Math.max(0, this.worst()), FlowPicture.READABLE);
      const [spare, bottom] = [this.boxHeight * this.scale, this.view.bottom * this.scale];
      this.top = Math.min(spare, Math.max(this.top, this.height - bottom - spare));
    }
    if (this.chosen >= 0) this.centre(view.positions.get(this.chosen), 0.7);
  }

  worst() { // position of the node with the most wasted bytes, or -1
    const wasted = this.view.members.map((item) => this.flow.items[item].bytes * this.flow.items[item].waste);
    const most = Math.max(0, ...wasted);
    return most > 0 ? wasted.indexOf(most) : -1;
  }

  choose(item) {
    this.chosen = item;
    this.redraw();
    this.onChoose(item);
  }

  readColours() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["page", "card", "text", "muted", "line", "accent", "waste", "node", "edge", "bad"]) {
      this.colours[name] = style.getPropertyValue(`--${name}`).trim();
    }
  }

  resize() {
    this.ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.max(1, Math.round(this.width * this.ratio));
    this.canvas.height = Math.max(1, Math.round(this.height * this.ratio));
    this.draw();
  }

  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  draw() {
    if (!this.view) return;
    const { pen, view, ratio, scale } = this;
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    pen.setTransform(ratio * scale, 0, 0, ratio * scale, ratio * this.left, ratio * this.top);
    const dim = this.found !== null || this.chosen >= 0;
    for (const stroke of view.strokes.values()) {
      pen.globalAlpha = (dim ? 0.3 : 0.75) * (stroke.passed ? 0.6 : 1) * (scale < 0.1 ? 0.5 : 1);
      pen.strokeStyle = stroke.wasted ? this.colours.waste : this.colours.edge;
      pen.lineWidth = Math.max(stroke.width, 0.6 / scale);
      pen.setLineDash(stroke.passed ? [2, 5] : []);
      pen.stroke(stroke.path);
      pen.fillStyle = pen.strokeStyle;
      if (scale > 0.3) pen.fill(stroke.heads);
    }
    this.drawLinks();
    this.drawChosenEdges();
    pen.setLineDash([]);
    const [low, high] = [[-this.left / scale, -this.top / scale], [(this.width - this.left) / scale, (this.height - this.top) / scale]];
    view.members.forEach((item, position) => {
      const x = view.x[position];
      const y = view.y[position];
      const inside = x > low[0] - this.boxWidth && x < high[0] + this.boxWidth && y > low[1] - this.boxHeight && y < high[1] + this.boxHeight;
      if (inside) this.drawNode(item, x, y);
    });
    pen.globalAlpha = 1;
    if (!this.wholeInSight) this.drawOverview();
  }

  drawLinks() {
    const { pen, view } = this;
    pen.globalAlpha = 0.9;
    pen.strokeStyle = this.colours.bad;
    pen.lineWidth = Math.max(1.5, 1 / this.scale);
    pen.setLineDash([7, 5]);
    for (const [one, other] of this.flow.links) {
      const here = view.positions.get(one);
      const there = view.positions.get(other);
      if (here === undefined || there === undefined) continue;
      pen.beginPath();
      pen.moveTo(view.x[here] + this.boxWidth / 2, view.y[here]);
      const side = Math.max(view.x[here], view.x[there]) + this.boxWidth;
      pen.bezierCurveTo(side, view.y[here], side, view.y[there], view.x[there] + this.boxWidth / 2, view.y[there]);
      pen.stroke();
    }
  }

  drawChosenEdges() {
    const { pen, view } = this;
    const position = view.positions.get(this.chosen);
    const around = position === undefined ? undefined : view.around.get(position);
    if (!around) return;
    pen.globalAlpha = 1;
    pen.strokeStyle = this.colours.accent;
    pen.lineWidth = Math.max(2, 1.5 / this.scale);
    pen.setLineDash([]);
    const path = new Path2D();
    for (const edge of around.from) FlowPicture.curve(path, view, edge.other, position, this.boxWidth, this.boxHeight);
    for (const edge of around.to) FlowPicture.curve(path, view, position, edge.other, this.boxWidth, this.boxHeight);
    pen.stroke(path);
  }

  drawNode(index, x, y) {
    const { pen, colours, boxWidth, boxHeight } = this;
    const item = this.flow.items[index];
    const weak = this.found !== null && !this.found.has(index);
    const chosen = index === this.chosen;
    const [a, b] = [x - boxWidth / 2, y - boxHeight / 2];
    pen.globalAlpha = weak ? 0.25 : 1;
    if (this.scale < 0.22) { // too small for text
      pen.fillStyle = chosen ? colours.accent : item.waste ? colours.waste : colours.edge;
      const grow = item.waste || chosen ? Math.max(0, 4 / this.scale - boxHeight) / 2 : 0;
      pen.fillRect(a - grow, b - grow, boxWidth + 2 * grow, boxHeight + 2 * grow);
      return;
    }
    pen.beginPath();
    pen.roundRect(a, b, boxWidth, boxHeight, 7);
    pen.fillStyle = colours.node;
    pen.fill();
    if (item.waste) {
      pen.save();
      pen.clip();
      pen.globalAlpha *= 0.28;
      pen.fillStyle = colours.waste;
      pen.fillRect(a, b, (boxWidth * item.waste) / 100, boxHeight);
      pen.restore();
    }
    pen.strokeStyle = chosen || index === this.hovered ? colours.accent : item.waste ? colours.waste : colours.edge;
    pen.lineWidth = chosen ? 3 : item.waste ? 2 : 1.2;
    pen.setLineDash(item.backward ? [5, 3] : []);
    pen.stroke();
    pen.setLineDash([]);
    if (this.found !== null && !weak) {
      pen.strokeStyle = colours.accent;
      pen.lineWidth = 2;
      pen.strokeRect(a - 4, b - 4, boxWidth + 8, boxHeight + 8);
    }
    const share = item.waste ? `${item.waste}%` : "";
    pen.textBaseline = "middle";
    pen.fillStyle = colours.text;
    pen.font = "600 13px system-ui, sans-serif";
    pen.textAlign = "right";
    pen.fillText(share, a + boxWidth - 9, b + 16);
    pen.textAlign = "left";
    pen.fillText(this.cut(item.title, boxWidth - (share ? 62 : 18)), a + 9, b + 16);
    pen.fillStyle = colours.muted;
    pen.font = "11px system-ui, sans-serif";
    pen.fillText(this.cut(item.under, boxWidth - 18), a + 9, b + 33);
  }

  cut(text, width) { // the start of the text that fits, in the current font
    const key = `${this.pen.font} ${width} ${text}`;
    if (!this.cuts.has(key)) {
      let most = text.length;
      while (most > 1 && this.pen.measureText(text.slice(0, most)).width > width) most -= 1;
      this.cuts.set(key, most < text.length ? `${text.slice(0, Math.max(1, most - 1))}…` : text);
    }
    return this.cuts.get(key);
  }

  overview() {
    const size = 130;
    const factor = Math.min(size / this.view.right, (1.6 * size) / this.view.bottom);
    const width = Math.max(8, this.view.right * factor);
    const height = Math.max(8, this.view.bottom * factor);
    return { factor, width, height, x: this.width - width - 14, y: this.height - height - 14 };
  }

  drawOverview() {
    const { pen, view, colours, scale } = this;
    const small = this.overview();
    pen.setTransform(this.ratio, 0, 0, this.ratio, this.ratio * small.x, this.ratio * small.y);
    pen.fillStyle = colours.page;
    pen.strokeStyle = colours.line;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.rect(-6, -6, small.width + 12, small.height + 12);
    pen.fill();
    pen.stroke();
    for (const wasted of [false, true]) {
      pen.fillStyle = wasted ? colours.waste : colours.edge;
      const dot = wasted ? 3 : 1.5;
      view.members.forEach((item, position) => {
        if (this.flow.items[item].waste > 0 !== wasted) return;
        pen.fillRect(view.x[position] * small.factor - dot / 2, view.y[position] * small.factor - dot / 2, dot, dot);
      });
    }
    const inside = (value, most) => Math.max(-6, Math.min(most + 6, value * small.factor));
    const from = [inside(-this.left / scale, small.width), inside(-this.top / scale, small.height)];
    const to = [inside((this.width - this.left) / scale, small.width), inside((this.height - this.top) / scale, small.height)];
    pen.strokeStyle = colours.accent;
    pen.lineWidth = 1.5;
    pen.strokeRect(from[0], from[1], Math.max(3, to[0] - from[0]), Math.max(3, to[1] - from[1]));
  }

  jump(x, y) {
    const small = this.overview();
    if (this.wholeInSight || x < small.x - 6 || y < small.y - 6) return false;
    this.left = this.width / 2 - ((x - small.x) / small.factor) * this.scale;
    this.top = this.height / 2 - ((y - small.y) / small.factor) * this.scale;
    this.redraw();
    return true;
  }

  move(x, y) {
    this.left += x;
    this.top += y;
    this.redraw();
  }

  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const next = Math.max(FlowPicture.SMALLEST, Math.min(FlowPicture.LARGEST, this.scale * factor));
    this.left = x - ((x - this.left) * next) / this.scale;
    this.top = y - ((y - this.top) * next) / this.scale;
    this.scale = next;
    this.redraw();
  }

  fit() {
    const wide = this.width / (this.view.right + this.boxWidth);
    const high = this.height / (this.view.bottom + this.boxHeight);
    this.scale = Math.max(FlowPicture.SMALLEST, Math.min(1, wide, high));
    this.left = (this.width - (this.view.right - this.boxWidth / 2) * this.scale) / 2;
    this.top = Math.max((this.boxHeight / 2 + 14) * this.scale, (this.height - (this.view.bottom - this.boxHeight / 2) * this.scale) / 2);
    this.redraw();
  }

  centre(position, least) {
    this.scale = Math.max(this.scale, least);
    this.left = this.width / 2 - this.view.x[position] * this.scale;
    this.top = this.height / 2 - this.view.y[position] * this.scale;
    this.redraw();
  }

  itemAt(x, y) {
    const u = (x - this.left) / this.scale;
    const v = (y - this.top) / this.scale;
    const spare = Math.max(0, 3 / this.scale - this.boxHeight / 2);
    const near = (position) => Math.abs(this.view.x[position] - u) <= this.boxWidth / 2 + spare
      && Math.abs(this.view.y[position] - v) <= this.boxHeight / 2 + spare;
    return this.view.members.find((_, position) => near(position)) ?? -1;
  }

  listen() {
    const { canvas } = this;
    const fingers = new Map();
    let moved = 0;
    let jumping = false;
    const under = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("pointerdown", (event) => {
      const [x, y] = under(event);
      canvas.setPointerCapture(event.pointerId);
      fingers.set(event.pointerId, [x, y]);
      moved = 0;
      jumping = this.jump(x, y);
      canvas.classList.add("moving");
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = under(event);
      const before = fingers.get(event.pointerId);
      if (!before) {
        this.hover(this.itemAt(x, y));
        return;
      }
      fingers.set(event.pointerId, [x, y]);
      moved += Math.abs(x - before[0]) + Math.abs(y - before[1]);
      const other = [...fingers.entries()].find(([id]) => id !== event.pointerId);
      if (jumping) this.jump(x, y);
      else if (other) {
        const [u, v] = other[1];
        const apart = Math.max(1, Math.hypot(before[0] - u, before[1] - v));
        this.zoom(Math.hypot(x - u, y - v) / apart, (x + u) / 2, (y + v) / 2);
      } else this.move(x - before[0], y - before[1]);
    });
    const lift = (event) => {
      const clicked = fingers.delete(event.pointerId) && event.type === "pointerup" && moved < 5 && !jumping;
      canvas.classList.remove("moving");
      if (clicked) this.choose(this.itemAt(...under(event)));
    };
    canvas.addEventListener("pointerup", lift);
    canvas.addEventListener("pointercancel", lift);
    canvas.addEventListener("dblclick", (event) => this.zoom(1.6, ...under(event)));
    canvas.addEventListener("wheel", (event) => {
      // Otherwise the page could not be scrolled past the canvas.
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), ...under(event));
    }, { passive: false });
    const keys = {
      ArrowLeft: () => this.move(60, 0),
      ArrowRight: () => this.move(-60, 0),
      ArrowUp: () => this.move(0, 60),
      ArrowDown: () => this.move(0, -60),
      "+": () => this.zoom(1.25),
      "=": () => this.zoom(1.25),
      "-": () => this.zoom(0.8),
      0: () => this.fit(),
      Escape: () => this.choose(-1),
    };
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(keys, event.key)) return;
      event.preventDefault();
      keys[event.key]();
    });
  }

  hover(item) {
    if (item === this.hovered) return;
    this.hovered = item;
    this.canvas.classList.toggle("over", item >= 0);
    const one = this.flow.items[item];
    this.canvas.title = one ? `${one.path || one.title}\n${one.under}\n${formatSize(one.bytes)} written` : "";
    this.redraw();
  }
}
