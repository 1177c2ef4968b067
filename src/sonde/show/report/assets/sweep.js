// A metric at the end of every run against any key in which the runs differ, lines by another; all else held.

let swept = { keys: [] };
let sweepChart = null;
const SHADES = ['var(--accent)', 'var(--colour-dfa)', 'var(--colour-state_bridge)', 'var(--colour-credit_bridge)', 'var(--colour-fa)', 'var(--ink)'];

const within = (key, section) => key === section || key.startsWith(`${section}.`);
const wordOf = (key, run) => String(swept.levels[key][swept.columns[key][run]]);
const isNumeric = (key) => swept.levels[key].every((level) => typeof level === 'number');

const FIRST_HELD = ['task', 'model', 'epochs', 'rule'];
const usual = new WeakMap(); // what is drawn before anybody chooses, by data
const usualLines = new WeakMap();

// The key the reader chose; else the first, numbers before words, that has several values for a held setting.
function sweepKeys() {
  if (!usual.has(swept)) usual.set(swept, [...swept.keys.filter(isNumeric), ...swept.keys].find((x) => held({ x, by: byOf(x) }).levels > 1) || swept.keys[0]);
  const x = swept.keys.includes(chosen('sweep.x')) ? chosen('sweep.x') : usual.get(swept);
  return { x, by: byOf(x) };
}

function byOf(x) {
  const others = swept.keys.filter((key) => key !== x);
  const wanted = chosen('sweep.by') ?? usualBy(x, others);
  return others.includes(wanted) ? wanted : '';
}

// The rule, where the runs of the chart have several; else the first key in which they differ, without keys that
// have options of their own, like the model.
function usualBy(x, others) {
  const simple = others.filter((by) => !others.some((key) => key !== by && within(key, by)));
  const lines = (by) => new Set(held({ x, by }).runs.map((run) => swept.columns[by][run])).size;
  const known = usualLines.get(swept) || usualLines.set(swept, new Map()).get(swept);
  if (!known.has(x)) known.set(x, ['rule', ...simple].find((by) => others.includes(by) && lines(by) > 1) ?? '');
  return known.get(x);
}

// Every other key in which runs differ stays at one value, so that a point compares what it says and nothing else: at
// what the reader chose, and of the rest at what leaves x most values and most runs.  Keys that follow from those
// before them are not said.
function held({ x, by }) {
  const keys = swept.keys.filter((key) => !within(key, x) && !(by && within(key, by)));
  const rank = (key) => (FIRST_HELD.includes(key) ? FIRST_HELD.indexOf(key) : FIRST_HELD.length);
  keys.sort((a, b) => view.has(`sweep.held.${b}`) - view.has(`sweep.held.${a}`) || rank(a) - rank(b));
  let runs = swept.runs.map((_, run) => run).filter((run) => swept.complete[run]);
  const said_ = [];
  for (const key of keys) {
    const column = swept.columns[key];
    const groups = new Map();
    for (const run of runs) {
      if (!groups.has(column[run])) groups.set(column[run], { runs: [], levels: new Set() });
      groups.get(column[run]).runs.push(run);
      groups.get(column[run]).levels.add(swept.columns[x][run]);
    }
    const wanted = [...groups.keys()].find((level) => String(swept.levels[key][level]) === chosen(`sweep.held.${key}`));
    const best = [...groups].sort(([, a], [, b]) => b.levels.size - a.levels.size || b.runs.length - a.runs.length)[0]?.[0];
    const level = wanted ?? best;
    if (groups.size > 1) said_.push({ key, word: String(swept.levels[key][level]), words: [...groups.keys()].map((one) => String(swept.levels[key][one])) });
    runs = groups.get(level)?.runs || [];
  }
  return { held: said_, runs, levels: new Set(runs.map((run) => swept.columns[x][run])).size };
}

function overKey(chart) {
  const { metric } = chart;
  const keys = sweepKeys();
  const { x, by } = keys;
  const { held: fixed, runs } = held(keys);
  const levels = [...new Set(runs.map((run) => swept.columns[x][run]))].map((place) => swept.levels[x][place]);
  const numeric = isNumeric(x);
  if (numeric) levels.sort((a, b) => a - b);
  const at = (run) => (numeric ? swept.levels[x][swept.columns[x][run]] : levels.indexOf(swept.levels[x][swept.columns[x][run]]));
  const groups = new Map();
  for (const run of runs) {
    const name = by ? wordOf(by, run) : 'all runs';
    groups.set(name, [...(groups.get(name) || []), run]);
  }
  const value = (run) => {
    const known = swept.values[metric.key][run];
    return known === null || (chart.log && known <= 0) ? null : known;
  };
  const mixed = new Set();
  const lines = [...groups].flatMap(([name, members], place) => sweepLines(name, members, place, { keys, at, value, levels, numeric, mixed }));
  const log = numeric && levels.length > 2 && levels[0] > 0 && levels.at(-1) / levels[0] >= 30;
  const ends = numeric ? endsOf([levels], log) : [0, Math.max(levels.length - 1, 1)];
  const axis = axisOf(ends, { log, room: 0.06, label: x });
  axis.ticks = levels.map((level, i) => ({ value: numeric ? level : i, text: numeric ? shortly(level) : shortened(String(level)) }));
  const label = metric.layered ? `${metric.label}, at the last ${metric.index}` : metric.label;
  const unfinished = swept.complete.filter((done) => !done).length;
  const missing = runs.filter((run) => value(run) === null).length;
  const fixedWords = fixed.map(({ key, word }) => `${key} = ${word}`);
  const means = lines.filter(({ kind }) => kind === 'mean');
  const n = sorted(means.flatMap((line) => line.counts.filter(Boolean)));
  return {
    picture: { x: axis, y: axisOf(endsOf(lines.map((line) => line.ys), chart.log), { log: chart.log, label }), lines, epoch: null },
    lines: lines.filter(({ kind }) => kind === 'run'),
    title: `${label} at the end of training against ${x}`,
    caption: [
      `${plural(runs.length, 'run')}${fixedWords.length ? `, with ${fixedWords.join(', ')}` : ''}.`,
      n.length ? `Lines: mean over n = ${n.join(' or ')} ${n.length === 1 && n[0] === 1 ? 'seed' : 'seeds'}; every dot is a run.` : '',
      mixed.size ? `No mean where runs of a point differ in more than the seed (${[...mixed].join(', ')}).` : '',
      missing ? `${plural(missing, 'run')} without a value here.` : '',
      unfinished ? `${plural(unfinished, 'run')} not complete and left out.` : '',
    ].filter(Boolean).join(' '),
    head: x,
    places: numeric ? null : levels.map(String),
  };
}

const shortened = (text) => (text.length > 16 ? `${text.slice(0, 15)}…` : text);

// A dot for every run, and a line through the means of those that differ in the seed alone.
function sweepLines(name, members, place, { keys, at, value, levels, numeric, mixed }) {
  const style = keys.by === 'rule' && data.styles[name] ? name : null;
  const look = {
    colour: style ? `var(--colour-${style})` : SHADES[place % SHADES.length],
    symbol: style ? data.styles[style].symbol : 'circle',
    dash: style ? data.styles[style].dash : NETWORK_DASHES[Math.floor(place / SHADES.length) % NETWORK_DASHES.length],
  };
  const xs = levels.map((level, i) => (numeric ? level : i));
  const here = xs.map((x) => members.filter((run) => at(run) === x));
  const said_ = (x, i) => `${keys.x} = ${levels[i]}`;
  const counts = here.map(() => 0);
  const ys = here.map((runs, i) => {
    const differing = swept.keys.filter((key) => new Set(runs.map((run) => swept.columns[key][run])).size > 1);
    if (differing.length || new Set(runs.map((run) => swept.seeds[run])).size < runs.length) {
      (differing.length ? differing : ['one seed counts twice']).forEach((key) => mixed.add(key));
      return null;
    }
    const values = runs.map(value).filter((one) => one !== null);
    counts[i] = values.length;
    return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
  });
  const mean = {
    ...look, kind: 'mean', name, width: 2, symbol: null, xs, ys, counts, gaps: [],
    tell: (i) => [name, said_(xs[i], i), `${said(ys[i])}, mean of n = ${counts[i]}`],
  };
  const dots = members.map((run) => ({
    ...look, kind: 'run', run: { id: swept.runs[run], seed: swept.seeds[run] }, facts: { run: swept.runs[run] }, name: `${name}, seed ${swept.seeds[run]}`, width: 0, xs, gaps: [],
    ys: xs.map((x) => (at(run) === x ? value(run) : null)),
    tell: (i) => [`${name}, seed ${swept.seeds[run]}`, said_(xs[i], i), said(value(run)), swept.runs[run]],
  }));
  return [mean, ...dots];
}

function showSweepChoices() {
  const keys = sweepKeys();
  options(byId('sweep-x'), swept.keys.map((key) => [key, key]), keys.x);
  options(byId('sweep-by'), [['', 'nothing'], ...swept.keys.filter((key) => key !== keys.x).map((key) => [key, key])], keys.by);
  const { held: fixed } = held(keys);
  const box = byId('sweep-held');
  const there = new Map([...box.querySelectorAll('label')].map((label) => [label.dataset.key, label]));
  for (const { key, word, words } of fixed) {
    const label = there.get(key) || heldField(key);
    there.delete(key);
    if (!label.isConnected) box.append(label);
    options(label.querySelector('select'), words.map((one) => [one, shortened(one)]), word);
  }
  there.forEach((label) => label.remove());
  box.hidden = !fixed.length;
}

function heldField(key) {
  const select = element('select');
  select.addEventListener('change', () => {
    choose(`sweep.held.${key}`, select.value);
    redrawSweep();
  });
  return element('label', { class: 'field', 'data-key': key }, `${key} `, select);
}

const redrawSweep = drawnOnce(() => {
  if (!swept.keys.length) return;
  showSweepChoices();
  drawChart(sweepChart);
  const means = (sweepChart.made?.picture.lines || []).filter(({ kind }) => kind === 'mean');
  byId('sweep-key').replaceChildren(...(sweepKeys().by ? means : []).map((one) => element('span', {}, swatch(one), `${sweepKeys().by} = ${one.name}`)));
});

// The sweep of new data, with what the reader had chosen.
function showSweep(given) {
  if (!byId('sweep')) return;
  swept = given;
  const there = given.keys.length > 0 && given.metrics.length > 0;
  byId('sweep').hidden = !there;
  if (!there) return;
  if (!sweepChart) {
    sweepChart = makeChart(byId('sweep-chart'), {
      section: 'sweep',
      kind: 'epochs',
      offered: () => swept.metrics.filter(({ key }) => held(sweepKeys()).runs.some((run) => swept.values[key][run] !== null)),
      make: overKey,
    });
    for (const axis of ['x', 'by']) {
      byId(`sweep-${axis}`).addEventListener('change', (event) => {
        forget(...[...view.keys()].filter((key) => key.startsWith('sweep.held.')));
        choose(`sweep.${axis}`, event.target.value);
        redrawSweep();
      });
    }
    new ResizeObserver(redrawSweep).observe(byId('sweep-chart'));
  }
  redrawSweep();
}
