// The charts' data, and what of them the reader has chosen to see.

let data = { runs: [], families: [], pair: [], metrics: [], styles: {}, series: [], grids: [], reasons: [] };
const known = new Map(); // run and metric → series

function readCharts(given) {
  data = given;
  known.clear();
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

// One reading: its value and n, or why there is none; all null where nothing was measured.
function reading(of, epoch, layer) {
  const row = of.place.get(epoch);
  const column = of.layers.indexOf(layer);
  if (row === undefined || column < 0) return { value: null, why: null, n: null };
  const i = row * of.layers.length + column;
  return { value: of.values[i], why: of.why.get(i) ?? null, n: Array.isArray(of.n) ? of.n[i] : of.n };
}

const family = () => data.families.find(({ title }) => title === chosen('charts.recipe')) || data.families[0];
const familyRuns = () => data.runs.filter((run) => run.family === family().place);

// Networks, rules and seeds of the family: all but those that the reader switched off.  An empty word leads the list
// of those, so that a list the reader has emptied is told from one that he has not touched.
const CHECKED = {
  network: { of: () => family().networks.map(({ label }) => label), hidden: hiddenNetworks },
  rule: { of: () => family().rules.map(({ label }) => label), hidden: () => [] },
  seed: { of: () => family().seeds.map(String), hidden: () => [] },
};

// Those that the answer does not speak of.  Many lines of one colour say little: several networks at once only where a
// single rule trained them.
function hiddenNetworks() {
  const { open, rules } = family();
  const wanted = CHECKED.network.of().filter((label) => !open.length || open.includes(label));
  const first = rules.length === 1 ? wanted : wanted.slice(0, 1);
  return CHECKED.network.of().filter((label) => !first.includes(label));
}

function hidden(what) {
  return view.has(`charts.no-${what}`) ? view.getAll(`charts.no-${what}`).slice(1) : CHECKED[what].hidden();
}

function shownOf(what) {
  const off = new Set(hidden(what));
  return CHECKED[what].of().filter((label) => !off.has(label));
}

// The chosen runs, by network, rule and seed.
function visibleRuns() {
  const { networks, rules } = family();
  const [off, offRules, offSeeds] = ['network', 'rule', 'seed'].map((what) => new Set(hidden(what)));
  return familyRuns()
    .filter((run) => !off.has(networks[run.network].label) && !offRules.has(rules[run.rule].label) && !offSeeds.has(String(run.seed)))
    .sort((a, b) => a.network - b.network || a.rule - b.rule || a.seed - b.seed);
}

// Metrics that some of the runs have: all, or those of layers.
function offeredMetrics(layered, runs = familyRuns()) {
  return data.metrics
    .filter((metric) => !metric.key.includes('/') && (metric.layered || !layered))
    .filter((metric) => runs.some((run) => series(run, metric.key)));
}

const sorted = (numbers) => [...new Set(numbers)].sort((a, b) => a - b);

const layersOf = (metric) => sorted(familyRuns().flatMap((run) => series(run, metric.key)?.layers || []));

function measuredEpochs(runs = familyRuns()) {
  return sorted(offeredMetrics(true, runs).flatMap((metric) => runs.flatMap((run) => series(run, metric.key)?.epochs || [])));
}
