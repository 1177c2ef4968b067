// The embedded data, and what the reader has chosen to see.

let data = null;
const known = new Map(); // run and metric → series

function readData() {
  data = JSON.parse(byId('data').textContent);
  data.runs.forEach((run, place) => { run.place = place; });
  for (const packed of data.series) {
    const why = new Map();
    for (const [start, count, reason] of packed.w || []) {
      for (let i = start; i < start + count; i += 1) why.set(i, data.reasons[reason]);
    }
    const epochs = data.grids[packed.e];
    const layers = packed.l === undefined ? [null] : data.grids[packed.l];
    const place = new Map(epochs.map((epoch, i) => [epoch, i]));
    known.set(`${packed.r} ${data.metrics[packed.m].key}`, { epochs, layers, values: packed.v, why, n: packed.n, place });
  }
}

const series = (run, key) => known.get(`${run.place} ${key}`);
const metricOf = (key) => data.metrics.find((metric) => metric.key === key);

// One reading: its value and n, or why there is none; all null where nothing was measured.
function reading(of, epoch, layer) {
  const row = of.place.get(epoch);
  const column = of.layers.indexOf(layer);
  if (row === undefined || column < 0) return { value: null, why: null, n: null };
  const i = row * of.layers.length + column;
  return { value: of.values[i], why: of.why.get(i) ?? null, n: Array.isArray(of.n) ? of.n[i] : of.n };
}

const choice = {
  family: 0,
  networks: new Set(),
  rules: new Set(),
  seeds: new Set(),
  mean: false,
  controls: true,
  epoch: 0,
  epochs: [], // at which some layer was measured
};

const family = () => data.families[choice.family];
const familyRuns = () => data.runs.filter((run) => run.family === choice.family);

// The chosen runs, by network, rule and seed.
function visibleRuns() {
  return familyRuns()
    .filter((run) => choice.networks.has(run.network) && choice.rules.has(run.rule) && choice.seeds.has(run.seed))
    .sort((a, b) => a.network - b.network || a.rule - b.rule || a.seed - b.seed);
}

// Metrics that some run of the family has: all, or those of layers.
function offeredMetrics(layered) {
  const runs = familyRuns();
  return data.metrics
    .filter((metric) => !metric.key.includes('/') && (metric.layered || !layered))
    .filter((metric) => runs.some((run) => series(run, metric.key)));
}

const sorted = (numbers) => [...new Set(numbers)].sort((a, b) => a - b);

function measuredEpochs() {
  const runs = familyRuns();
  return sorted(offeredMetrics(true).flatMap((metric) => runs.flatMap((run) => series(run, metric.key)?.epochs || [])));
}

function chooseFamily(place) {
  choice.family = place;
  const { networks, rules, seeds } = family();
  // Many lines of one colour say little: several networks at once only where a single rule trained them.
  choice.networks = new Set(rules.length === 1 ? networks.keys() : [0]);
  choice.rules = new Set(rules.keys());
  choice.seeds = new Set(seeds);
  choice.epochs = measuredEpochs();
  choice.epoch = choice.epochs.at(-1) ?? 0;
}
