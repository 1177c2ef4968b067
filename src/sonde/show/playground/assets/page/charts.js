// A chart of readings by layer: what is measured, what was there at initialisation, and the theory's line.

const EDGE = { top: 10, right: 14, bottom: 34 };
const TICK_HEIGHT = 15; // pixels of a label
const FOOT = 7; // pixels from the axis to the marks of undefined values

const place = (pixel) => Math.round(pixel * 10) / 10;

class LayerChart {
  // `log` axes grow with what was seen since the start; others keep their `ends`.
  constructor(id, { log = true, ends = null, onInspect }) {
    this.figure = byId(id);
    this.plot = this.figure.querySelector('.plot');
    this.words = this.figure.querySelector('.words');
    this.notes = this.figure.querySelector('.notes');
    this.log = log;
    this.fixed = ends;
    this.svg = drawn('svg', { 'aria-hidden': 'true' });
    [this.axes, this.cursor, this.lines] = ['axes', 'cursor', 'lines'].map((name) => drawn('g', { class: name }));
    this.svg.append(this.axes, this.cursor, this.lines);
    this.plot.append(this.svg);
    this.plot.addEventListener('pointermove', (event) => onInspect(this.layerAt(event.clientX)));
    this.plot.addEventListener('pointerleave', () => onInspect(null));
    this.plot.addEventListener('keydown', (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity, Escape: null }[event.key];
      if (move === undefined) return;
      event.preventDefault();
      onInspect(move === null ? null : { by: move });
    });
    this.plot.addEventListener('blur', () => onInspect(null));
    this.forget();
  }

  forget() {
    this.seen = null;
    this.shown = '';
  }

  layerAt(x) {
    if (!this.across) return null;
    const inside = x - this.plot.getBoundingClientRect().left;
    const layer = Math.round((inside - this.across(0)) / ((this.across(this.depth) - this.across(0)) / this.depth));
    return { at: layer };
  }

  // `lines`: { name, kind, colour, dash, width, readings }, readings of layers 0 … L.
  draw(lines, depth) {
    this.depth = depth;
    const [width, height] = [this.plot.clientWidth || 320, this.plot.clientHeight || 220];
    if (!this.fixed) this.grow(lines);
    const y = axisOf(this.fixed || this.seen, { log: this.log, room: this.log ? 0.08 : 0.04 });
    const left = 12 + Math.max(26, ...y.ticks.map(({ text }) => 7 * text.length));
    this.across = (l) => place(left + 8 + (l / Math.max(depth, 1)) * (width - left - EDGE.right - 8));
    this.up = (value) => place(height - EDGE.bottom - y.place(value) * (height - EDGE.bottom - EDGE.top));
    const shown = `${width} ${height} ${depth} ${y.from} ${y.to}`;
    if (shown !== this.shown) this.drawAxes(y, left, width, height);
    this.shown = shown;
    this.lines.replaceChildren(...lines.map((line) => this.drawLine(line, height)));
  }

  grow(lines) {
    const ends = endsOf([...lines.map(({ readings }) => readings.map(({ value }) => value)), this.seen || []], this.log);
    this.seen = ends;
  }

  drawAxes(y, left, width, height) {
    const floor = height - EDGE.bottom;
    this.svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    const parts = [];
    for (const tick of spaced(y.ticks, (value) => this.up(value))) {
      const at = this.up(tick.value);
      const kind = !this.log && tick.value === 0 ? 'rule zero' : 'rule';
      parts.push(drawn('line', { x1: left, y1: at, x2: width - EDGE.right, y2: at, class: kind }));
      parts.push(drawn('text', { x: left - 7, y: at + 4.5, 'text-anchor': 'end' }, tick.text));
    }
    const every = [1, 2, 5, 10, 20].find((step) => this.depth / step <= (width < 330 ? 6 : 10));
    for (let l = 0; l <= this.depth; l += every) {
      const at = this.across(l);
      parts.push(drawn('line', { x1: at, y1: floor, x2: at, y2: floor + 4, class: 'axis' }));
      parts.push(drawn('text', { x: at, y: floor + 18, 'text-anchor': 'middle' }, String(l)));
    }
    parts.push(drawn('line', { x1: left, y1: floor, x2: width - EDGE.right, y2: floor, class: 'axis' }));
    parts.push(drawn('text', { x: width - EDGE.right, y: height - 3, 'text-anchor': 'end', class: 'title' }, 'layer'));
    this.axes.replaceChildren(...parts);
  }

  drawLine(line, height) {
    const group = drawn('g', { class: `line ${line.kind}` });
    const drawable = (value) => value !== null && (!this.log || value > 0);
    let path = '';
    let dots = '';
    let marks = '';
    line.readings.forEach(({ value }, l) => {
      const x = this.across(l);
      if (!drawable(value)) {
        if (line.kind === 'now') marks += crossAt(x, height - EDGE.bottom - FOOT);
        return;
      }
      const y = this.up(value);
      const before = l > 0 && drawable(line.readings[l - 1].value);
      path += `${before ? 'L' : 'M'}${x} ${y}`;
      const after = l + 1 < line.readings.length && drawable(line.readings[l + 1].value);
      if (line.kind === 'now' && (this.depth <= 30 || (!before && !after))) dots += dotAt(x, y, 3.2);
    });
    const look = { 'stroke-width': line.width, 'stroke-dasharray': line.dash || 'none', 'stroke-linejoin': 'round' };
    group.append(coloured(drawn('path', { d: path, class: 'stroke', ...look }), { stroke: line.colour }));
    if (dots) group.append(coloured(drawn('path', { d: dots }), { stroke: 'none', fill: line.colour }));
    if (marks) group.append(coloured(drawn('path', { d: marks, class: 'undefined', 'stroke-width': 1.6 }), { stroke: line.colour }));
    return group;
  }

  inspect(layer, height = this.plot.clientHeight) {
    if (layer === null || !this.across) this.cursor.replaceChildren();
    else {
      const x = this.across(layer);
      this.cursor.replaceChildren(drawn('line', { x1: x, y1: EDGE.top, x2: x, y2: height - EDGE.bottom }));
    }
  }

  say(words, notes) {
    if (this.words.textContent !== words) this.words.textContent = words;
    if (this.notes.textContent !== notes) this.notes.textContent = notes;
  }
}

// Of the ticks of a y axis, every second, third … so that their labels do not overlap.
function spaced(ticks, up) {
  if (ticks.length < 2) return ticks;
  const every = Math.ceil(TICK_HEIGHT / Math.abs(up(ticks[0].value) - up(ticks[1].value)));
  return ticks.filter((_, i) => i % every === 0);
}

const crossAt = (x, y) => `M${place(x - 3)} ${place(y - 3)}l6 6m0 -6l-6 6`;
const dotAt = (x, y, r) => `M${place(x - r)} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`;
