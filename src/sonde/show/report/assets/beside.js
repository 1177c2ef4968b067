// Two runs side by side: a metric at every layer and every epoch, in one scale.

let besideChart = null;
const MOST_COLUMNS = 120; // epochs
const HEAT = { left: 44, top: 26, bottom: 40, gap: 34 };

const runNamed = (id, otherwise) => data.runs.find((run) => run.id === id) || data.runs[otherwise] || data.runs[0];
const besidePair = () => [0, 1].map((side) => runNamed(chosen(`beside.${'ab'[side]}`, data.pair?.[side]), side));

function sampledEpochs(epochs) {
  if (epochs.length <= MOST_COLUMNS) return epochs;
  const stride = (epochs.length - 1) / (MOST_COLUMNS - 1);
  return Array.from({ length: MOST_COLUMNS }, (_, i) => epochs[Math.round(i * stride)]);
}

function sideBySide(chart) {
  const { metric } = chart;
  const pair = besidePair();
  const every = sorted(pair.flatMap((run) => series(run, metric.key)?.epochs || []));
  const xs = sampledEpochs(every);
  const lines = pair.flatMap((run, side) => [...(series(run, metric.key)?.layers || [])].map((layer) => {
    const reads = xs.map((epoch) => reading(series(run, metric.key), epoch, layer));
    const gaps = reads.map((read) => gapOf(read, chart.log));
    const name = `${'AB'[side]}, ${metric.index} ${layer}`;
    return {
      kind: 'heat', name, side, layer, xs, run,
      ys: reads.map((read, i) => (gaps[i] === null ? read.value : null)),
      gaps: gaps.map((gap) => (gap === 'not measured' ? null : gap)),
      tell: (i) => [name, `epoch ${xs[i]}`, gaps[i] ?? `${said(reads[i].value)} (n = ${plural(reads[i].n, 'sample')})`, run.id],
    };
  }));
  const undefinedOnes = lines.flatMap((line) => line.gaps.filter(Boolean)).length;
  return {
    picture: { scale: axisOf(endsOf(lines.map((line) => line.ys), chart.log), { log: chart.log, room: 0 }), lines, xs, pair, metric },
    lines,
    title: `${metric.label}, ${metric.index} by ${metric.index} and epoch by epoch, of two runs`,
    caption: [
      differenceOf(...pair),
      `${metric.label}, with one colour scale for both.`,
      undefinedOnes ? `${undefinedOnes} undefined, marked ×.` : '',
      xs.length < every.length ? `${xs.length} of ${every.length} epochs.` : '',
    ].filter(Boolean).join(' '),
    head: 'epoch',
  };
}

// The keys in which the two were told to differ.
function differenceOf(a, b) {
  const [i, j] = [a, b].map((run) => swept.runs?.indexOf(run.id));
  const keys = (swept.keys || []).filter((key) => swept.columns[key][i] !== swept.columns[key][j]);
  const said_ = keys.map((key) => `${key} (A ${wordOf(key, i)}, B ${wordOf(key, j)})`);
  if (a.seed !== b.seed) said_.push(`seed (A ${a.seed}, B ${b.seed})`);
  if (a === b) return 'A and B are the same run.';
  return said_.length ? `They differ in ${said_.join(', ')}.` : 'Their configurations are the same.';
}

// Cells from pale to full; the CSS has both ends.
const shade = (share) => `color-mix(in oklab, var(--heat-low), var(--heat-high) ${Math.round(100 * share)}%)`;

function drawHeat(chart, { lines, xs, pair, scale, metric }) {
  const width = onPaper ? 660 : chart.plot.clientWidth || 640;
  const stacked = width < 620;
  const across = stacked ? 1 : 2;
  const each = (width - across * HEAT.left - (across - 1) * HEAT.gap - 8) / across;
  const layers = sorted(lines.map(({ layer }) => layer));
  const high = Math.max(12, Math.min(28, 300 / Math.max(1, layers.length)));
  const block = HEAT.top + high * layers.length + HEAT.bottom;
  const height = (stacked ? 2 : 1) * block + 30;
  const svg = drawn('svg', { viewBox: `0 0 ${width} ${height}`, 'aria-hidden': 'true' });
  const text = (words, attributes) => svg.append(drawn('text', attributes, words));
  const corner = (side) => (stacked ? { x: HEAT.left, y: side * block + HEAT.top } : { x: HEAT.left + side * (each + HEAT.left + HEAT.gap), y: HEAT.top });
  const wide = each / Math.max(1, xs.length);
  pair.forEach((run, side) => {
    const { x, y } = corner(side);
    text(`${'AB'[side]}: ${run.id}`, { x, y: y - 10, class: 'name' });
    const every = Math.ceil((xs.length * 34) / each);
    xs.forEach((epoch, i) => i % every === 0 && text(String(epoch), { x: x + (i + 0.5) * wide, y: y + high * layers.length + 15, 'text-anchor': 'middle' }));
    text('epoch', { x: x + each / 2, y: y + high * layers.length + 31, 'text-anchor': 'middle', class: 'title' });
    const rows = Math.ceil((layers.length * 14) / (high * layers.length));
    layers.forEach((layer, row) => row % rows === 0 && text(String(layer), { x: x - 8, y: y + (layers.length - row - 0.5) * high + 4, 'text-anchor': 'end' }));
    text(metric.index, { x: x - 32, y: y + (high * layers.length) / 2, 'text-anchor': 'middle', class: 'title', transform: `rotate(-90 ${x - 32} ${y + (high * layers.length) / 2})` });
  });
  const place = (line, i) => {
    const { x, y } = corner(line.side);
    return { x: round(x + (i + 0.5) * wide), y: round(y + (layers.length - layers.indexOf(line.layer) - 0.5) * high) };
  };
  const points = lines.map((line) => line.ys.map((value, i) => (value === null ? null : place(line, i))));
  const marks = lines.map((line) => line.gaps.map((gap, i) => (gap ? place(line, i) : null)));
  lines.forEach((line, j) => {
    const group = drawn('g', { class: 'line heat', 'data-name': line.name });
    points[j].forEach((point, i) => {
      if (!point) return;
      const cell = drawn('rect', { x: point.x - wide / 2, y: point.y - high / 2, width: wide + 0.4, height: high - 1 });
      cell.style.fill = shade(scale.place(line.ys[i]));
      group.append(cell);
    });
    const crosses = marks[j].map((mark) => (mark ? SYMBOLS.x(mark.x, mark.y) : '')).join('');
    if (crosses) group.append(coloured(drawn('path', { d: crosses, class: 'undefined', 'stroke-width': 1.2 }), { stroke: 'var(--faint)' }));
    svg.append(group);
  });
  const ends = [scale.from, scale.to].map((end) => said(scale.log ? 10 ** end : end));
  text(ends[0], { x: HEAT.left, y: height - 10 });
  const from = HEAT.left + widest([ends[0]], 400) + 8;
  for (let i = 0; i < 40; i += 1) {
    const cell = drawn('rect', { x: from + 3 * i, y: height - 20, width: 3.4, height: 12 });
    cell.style.fill = shade(i / 39);
    svg.append(cell);
  }
  text(`${ends[1]}${scale.log ? ', log scale' : ''}`, { x: from + 128, y: height - 10 });
  svg.append(drawn('circle', { class: 'focus', r: 6, visibility: 'hidden' }));
  chart.plot.style.height = `${height}px`;
  chart.plot.querySelector('svg')?.remove();
  chart.plot.prepend(svg);
  Object.assign(chart, { picture: { lines }, at: { points, marks, width, height } });
}

const redrawBeside = drawnOnce(() => besideChart && data.runs.length > 1 && drawChart(besideChart));

// Two of the runs of new data, those the reader had chosen.
function showBeside() {
  if (!byId('beside')) return;
  const there = data.runs.length > 1 && offeredMetrics(true, data.runs).length > 0;
  byId('beside').hidden = !there;
  if (!there) return;
  if (!besideChart) {
    besideChart = makeChart(byId('beside-chart'), {
      section: 'beside',
      kind: 'heat',
      offered: () => offeredMetrics(true, besidePair()),
      make: sideBySide,
      draw: drawHeat,
    });
    for (const side of ['a', 'b']) {
      byId(`beside-${side}`).addEventListener('change', (event) => {
        choose(`beside.${side}`, event.target.value);
        redrawBeside();
      });
    }
    new ResizeObserver(redrawBeside).observe(byId('beside-chart'));
  }
  const entries = data.runs.map((run) => [run.id, run.id]);
  besidePair().forEach((run, side) => options(byId(`beside-${'ab'[side]}`), entries, run.id));
  redrawBeside();
}
