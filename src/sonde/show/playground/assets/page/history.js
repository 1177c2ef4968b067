// The loss over steps.  Long histories are kept in at most MOST bins, each the mean over the steps it covers.

const MOST = 400;

class History {
  constructor() {
    this.bins = []; // { from, to, sum, count }: steps from … to
    this.size = 1;
  }

  add(step, loss) {
    const last = this.bins.at(-1);
    if (last && last.count < this.size) Object.assign(last, { to: step, sum: last.sum + loss, count: last.count + 1 });
    else this.bins.push({ from: step, to: step, sum: loss, count: 1 });
    if (this.bins.length <= MOST) return;
    this.size *= 2;
    const halved = [];
    for (let i = 0; i < this.bins.length; i += 2) {
      const [one, other] = [this.bins[i], this.bins[i + 1]];
      halved.push(other ? { from: one.from, to: other.to, sum: one.sum + other.sum, count: one.count + other.count } : one);
    }
    this.bins = halved;
  }

  get points() {
    return this.bins.map(({ to, sum, count }) => ({ x: to, y: sum / count }));
  }
}

// `lines`: { history, colour, dash }; the trivial loss is that of the first.
function drawHistory(plot, lines, trivial) {
  const drawable = lines.map((line) => ({ ...line, points: line.history.points.filter(({ y }) => Number.isFinite(y) && y > 0) }));
  const last = Math.max(50, ...lines.map(({ history }) => history.bins.at(-1)?.to || 0));
  const [width, height] = [plot.clientWidth || 320, plot.clientHeight || 220];
  const y = axisOf(endsOf([...drawable.map(({ points }) => points.map((point) => point.y)), [trivial / 2, trivial * 2]], true), { log: true, room: 0.06 });
  const x = axisOf([0, last], { room: 0 });
  const left = 12 + Math.max(26, ...y.ticks.map(({ text }) => 7 * text.length));
  const across = (step) => place(left + x.place(step) * (width - left - EDGE.right));
  const up = (value) => place(height - EDGE.bottom - y.place(value) * (height - EDGE.bottom - EDGE.top));
  const floor = height - EDGE.bottom;
  const axes = drawn('g', { class: 'axes' });
  for (const tick of spaced(y.ticks, up)) {
    const at = up(tick.value);
    axes.append(drawn('line', { x1: left, y1: at, x2: width - EDGE.right, y2: at, class: 'rule' }));
    axes.append(drawn('text', { x: left - 7, y: at + 4.5, 'text-anchor': 'end' }, tick.text));
  }
  for (const tick of x.ticks) axes.append(drawn('text', { x: across(tick.value), y: floor + 18, 'text-anchor': 'middle' }, tick.text));
  axes.append(drawn('line', { x1: left, y1: floor, x2: width - EDGE.right, y2: floor, class: 'axis' }));
  axes.append(drawn('text', { x: width - EDGE.right, y: height - 3, 'text-anchor': 'end', class: 'title' }, 'step'));
  const at = up(trivial);
  const line = drawn('line', { x1: left, y1: at, x2: width - EDGE.right, y2: at, class: 'trivial' });
  const strokes = drawable.map(({ points, colour, dash = 'none' }) => {
    const path = points.map((point, i) => `${i ? 'L' : 'M'}${across(point.x)} ${up(point.y)}`).join('');
    const look = { d: path, 'stroke-width': 2.4, 'stroke-linejoin': 'round', 'stroke-dasharray': dash, class: 'loss' };
    return coloured(drawn('path', look), { stroke: colour });
  });
  plot.replaceChildren(drawn('svg', { viewBox: `0 0 ${width} ${height}`, 'aria-hidden': 'true' }, axes, line, ...strokes));
}
