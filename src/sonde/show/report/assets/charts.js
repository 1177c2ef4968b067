// What the charts show: a metric against epochs, and a metric at every layer of one epoch.

function captionOf(lines, means, metric, extra = []) {
  if (!lines.length) return `No chosen run has ${metric.label}.`;
  const seeds = sorted(lines.map((line) => line.run.seed));
  const gaps = lines.flatMap((line) => line.gaps.filter(Boolean));
  const undefinedOnes = gaps.filter((gap) => gap.startsWith('undefined')).length;
  return [
    `${plural(lines.length, 'run')}, ${seeds.length === 1 ? 'seed' : 'seeds'} ${seeds.join(', ')}.`,
    undefinedOnes ? `${undefinedOnes} undefined, marked ×.` : '',
    gaps.length > undefinedOnes ? `${gaps.length - undefinedOnes} not above 0, marked ×.` : '',
    means.length ? `Thick: arithmetic mean over n = ${sorted(means.map(({ n }) => n)).join(' or ')} complete runs, where all are defined.` : '',
    ticked('mean') && !means.length ? 'No mean: it takes two complete runs that differ in the seed alone.' : '',
    ...extra,
  ].filter(Boolean).join(' ');
}

function lastLayer(run, metric) {
  return series(run, metric.key).layers.at(-1);
}

function overEpochs(chart) {
  const { metric } = chart;
  const runs = visibleRuns().filter((run) => series(run, metric.key));
  const xs = sorted(runs.flatMap((run) => series(run, metric.key).epochs));
  const layerOf = (run) => (chart.layer === 'last' ? lastLayer(run, metric) : Number(chart.layer));
  const lines = runs.map((run) => {
    const layer = metric.layered ? layerOf(run) : null;
    const where = (x) => `epoch ${x}${metric.layered ? `, ${metric.index} ${layer}` : ''}`;
    return lineOf(run, xs, (x) => reading(series(run, metric.key), x, layer), where, chart.log);
  });
  const means = ticked('mean') ? meansOf(lines, (x) => `epoch ${x}`) : [];
  const place = chart.layer === 'last' ? `the last ${metric.index}` : `${metric.index} ${chart.layer}`;
  const label = metric.layered ? `${metric.label}, at ${place}` : metric.label;
  const picture = {
    x: axisOf(xs.length ? [xs[0], xs.at(-1)] : null, { room: 0.015, label: 'epoch' }),
    y: axisOf(endsOf(lines.map((line) => line.ys), chart.log), { log: chart.log, label }),
    lines: [...lines, ...means],
    faded: ticked('mean'),
    epoch: xs.includes(epochs.at()) ? epochs.at() : null,
  };
  return { picture, lines, title: `${label} against epochs`, caption: captionOf(lines, means, metric), head: 'epoch' };
}

function profile(chart) {
  const { metric } = chart;
  const epoch = epochs.at();
  const runs = visibleRuns().filter((run) => series(run, metric.key));
  const xs = sorted(runs.flatMap((run) => series(run, metric.key).layers));
  const where = (x) => `epoch ${epoch}, ${metric.index} ${x}`;
  const line = (run, key) => lineOf(run, xs, (x) => reading(series(run, key), epoch, x), where, chart.log);
  const lines = runs.map((run) => line(run, metric.key));
  const measured = runs.some((run) => series(run, metric.key).place.has(epoch));
  const controls = controlLines(runs, metric, line);
  const means = ticked('mean') ? meansOf(lines, where) : [];
  const extra = [
    measured || !runs.length ? '' : `Not measured at epoch ${epoch}; measured at ${series(runs[0], metric.key).epochs.join(', ')}.`,
    controls.length ? 'Grey, of every run: credit by chance (dots) and BP’s own gradient (dashes).' : '',
  ];
  const x = axisOf(xs.length ? [xs[0], xs.at(-1)] : null, { room: 0.05, label: metric.index });
  if (xs.length <= 14) x.ticks = xs.map((value) => ({ value, text: String(value) }));
  const picture = {
    x,
    y: axisOf(endsOf(everyEpoch(runs, metric), chart.log), { log: chart.log }),
    lines: [...controls, ...lines, ...means],
    faded: ticked('mean'),
    epoch: null,
  };
  return { picture, lines, title: `${metric.label} at every ${metric.index}, epoch ${epoch}`, caption: captionOf(lines, means, metric, extra), head: metric.index };
}

function controlLines(runs, metric, line) {
  if (!ticked('controls')) return [];
  return Object.keys(CONTROLS).flatMap((control) => runs
    .filter((run) => series(run, metric.key + control))
    .map((run) => controlOf(run, control, line(run, metric.key + control))));
}

// The values of all epochs: a range that stays, so that playing shows change and not a moving axis.
function everyEpoch(runs, metric) {
  const keys = ['', ...(ticked('controls') ? Object.keys(CONTROLS) : [])].map((control) => metric.key + control);
  return runs.flatMap((run) => keys.map((key) => series(run, key)?.values || []));
}
