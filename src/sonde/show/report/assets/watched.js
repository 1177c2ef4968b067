// Watched runs: a tree of modules with a search, profiles over them at a step, and curves over steps.

const MOST_CURVES = SHADES.length;
const MOST_SHOWN = 400; // modules of the tree in the page at once
const seen = { data: { runs: [], reasons: [] }, charts: [] };
let steps = null; // the player

const watchedRun = () => seen.data.runs.find(({ id }) => id === chosen('watched.run')) || seen.data.runs[0];
const searched = () => chosen('watched.search', '');
const stepPlace = () => watchedRun().steps.indexOf(steps.at());

function metricsFor(chart) {
  const run = watchedRun();
  if (chart.of === 'parameters') return run.of_parameters;
  if (chart.of === 'modules') return run.of_modules;
  const loss = run.loss.steps.length ? [{ key: 'loss', label: 'loss', log: true, loss: true }] : [];
  return [...loss, ...run.of_modules, ...run.of_parameters];
}

// Why there is no number at a place and step, by "place step".
function reasonsOf(metric) {
  if (!metric.why) {
    metric.why = new Map((metric.w || []).map(([place, step, reason]) => [`${place} ${step}`, seen.data.reasons[reason]]));
  }
  return metric.why;
}

function matching(names) {
  const words = searched().toLowerCase();
  const wanted = names.map((name, place) => ({ name, place }));
  return words ? wanted.filter(({ name }) => name.toLowerCase().includes(words)) : wanted;
}

// Modules that only hold others repeat the last of them; they are drawn where somebody looks for them.
function leaves(places, names) {
  if (searched()) return places;
  const holders = new Set();
  for (const name of names) {
    const parts = name.split('.');
    for (let i = 1; i < parts.length; i += 1) holders.add(parts.slice(0, i).join('.'));
  }
  const kept = places.filter(({ name }) => !holders.has(name) && name !== '(model)');
  return kept.length ? kept : places;
}

function gapAt(value, why, log) {
  if (why !== undefined) return `undefined: ${why}`;
  if (value === null || value === undefined) return null;
  return log && value <= 0 ? `${said(value)} has no place on a log scale` : null;
}

function watchedProfile(chart) {
  const { metric } = chart;
  const run = watchedRun();
  const names = chart.of === 'parameters' ? run.parameters : run.modules.map(({ name }) => name);
  const here = leaves(matching(names), names).filter(({ place }) => metric.v[place]);
  const xs = here.map((_, i) => i);
  const at = stepPlace();
  const step = run.steps[at];
  const values = here.map(({ place }) => metric.v[place][at]);
  const gaps = here.map(({ place }, i) => gapAt(values[i], reasonsOf(metric).get(`${place} ${at}`), chart.log));
  const line = {
    kind: 'module',
    name: `step ${step}`,
    colour: SHADES[chart.of === 'parameters' ? 3 : 0],
    dash: SOLID,
    symbol: 'circle',
    width: 1.8,
    xs,
    ys: values.map((value, i) => (gaps[i] === null ? value ?? null : null)),
    gaps,
    tell: (i) => [here[i].name, `step ${step}`, gaps[i] ?? said(values[i]), typeOf(here[i].name)].filter(Boolean),
  };
  const x = axisOf(xs.length ? [0, xs.length - 1] : null, { room: 0.03, label: chart.of === 'parameters' ? 'parameters' : 'modules in order of execution' });
  x.ticks = xs.length <= 12 ? here.map(({ name }, i) => ({ value: i, text: shortName(name, xs.length) })) : x.ticks.filter(({ value }) => Number.isInteger(value) && value >= 0 && value < xs.length);
  const ends = endsOf(here.map(({ place }) => metric.v[place]), chart.log);
  const defined = line.ys.filter((value) => value !== null).length;
  const undefinedOnes = gaps.filter((gap) => gap?.startsWith('undefined')).length;
  return {
    picture: { x, y: axisOf(ends, { log: chart.log, label: metric.label }), lines: [line], epoch: null },
    lines: [line],
    here,
    places: here.map(({ name }) => name),
    title: `${metric.label}, step ${step}`,
    caption: [
      `${metric.label} at step ${step}: ${plural(defined, 'value')}.`,
      undefinedOnes ? `${undefinedOnes} undefined, marked ×.` : '',
      defined || undefinedOnes ? '' : 'Not measured at this step.',
      chart.of === 'modules' ? 'Click a module to draw its curves.' : '',
    ].filter(Boolean).join(' '),
    head: 'place',
  };
}

const typeOf = (name) => watchedRun().modules.find((module) => module.name === name)?.type || '';

function shortName(name, many) {
  const most = Math.max(4, Math.floor(90 / many));
  return name.length <= most ? name : `…${name.slice(1 - most)}`;
}

function watchedCurves(chart) {
  const { metric } = chart;
  const run = watchedRun();
  const label = metric.label;
  const lines = metric.loss ? [lossLine(run, chart)] : curveLines(run, metric, chart);
  const xs = lines.flatMap((line) => line.xs);
  return {
    picture: {
      x: axisOf(xs.length ? [Math.min(...xs), Math.max(...xs)] : null, { room: 0.015, label: 'step' }),
      y: axisOf(endsOf(lines.map((line) => line.ys), chart.log), { log: chart.log, label }),
      lines,
      epoch: run.steps[stepPlace()] ?? null,
    },
    lines,
    title: `${label} over steps`,
    caption: lines.length ? `${label} over steps${metric.loss ? '' : `: ${lines.map((line) => line.name).join(', ')}`}. ${run.steps.length < run.watched ? `${run.steps.length} of ${run.watched} watched steps.` : ''}` : `Choose a module in the tree that has ${label}.`,
    head: 'step',
  };
}

function lossLine(run, chart) {
  const { steps, v } = run.loss;
  const why = new Map(run.loss.w.map(([place, reason]) => [place, seen.data.reasons[reason]]));
  const gaps = v.map((value, i) => gapAt(value, why.get(i), chart.log));
  return curve('loss', 0, steps, v, gaps);
}

function curveLines(run, metric, chart) {
  const isParameter = run.of_parameters.includes(metric);
  const names = isParameter ? run.parameters : run.modules.map(({ name }) => name);
  const of = (name) => (isParameter ? names.filter((one) => one === name || one.startsWith(`${name}.`)) : [name]);
  const wanted = chosenModules().flatMap(of).filter((name) => metric.v[names.indexOf(name)]).slice(0, MOST_CURVES);
  return wanted.map((name, shade) => {
    const place = names.indexOf(name);
    const values = metric.v[place];
    const reasons = reasonsOf(metric);
    const gaps = values.map((value, i) => gapAt(value, reasons.get(`${place} ${i}`), chart.log));
    return curve(name, shade, run.steps, values, gaps);
  });
}

function curve(name, shade, xs, values, gaps) {
  return {
    kind: 'module',
    name,
    colour: SHADES[shade],
    dash: SOLID,
    symbol: 'circle',
    width: 1.8,
    xs,
    ys: values.map((value, i) => (gaps[i] === null ? value : null)),
    gaps,
    tell: (i) => [name, `step ${xs[i]}`, gaps[i] ?? said(values[i])],
  };
}

const redrawWatched = drawnOnce(() => seen.data.runs.length && seen.charts.forEach(drawChart));

// Those of the reader; else the first, the middle and the last module.
function chosenModules() {
  if (view.has('watched.module')) return view.getAll('watched.module').slice(1);
  const names = watchedRun().modules.map(({ name }) => name);
  const first = leaves(matching(names), names);
  return [...new Set([first[0], first[Math.floor(first.length / 2)], first.at(-1)].filter(Boolean).map(({ name }) => name))];
}

// ── tree ───────────────────────────────────────────────────────────────────────────────────────────
// Every module after the one that holds it, in the order in which the first of each is executed.
function treeOf(names) {
  const root = { children: new Map() };
  for (const name of names) {
    const [plain] = name.split('#');
    const parts = plain === '(model)' ? [plain] : plain.split('.');
    let node = root;
    parts.forEach((part, i) => {
      if (!node.children.has(part)) node.children.set(part, { part, depth: i, names: [], children: new Map() });
      node = node.children.get(part);
    });
    node.names.push(name);
  }
  const lines = [];
  const visit = (node) => {
    for (const child of node.children.values()) {
      if (!child.names.length) lines.push({ text: child.part, depth: child.depth, name: null });
      child.names.forEach((name, call) => lines.push({ text: call ? `${child.part}#${name.split('#')[1]}` : child.part, depth: child.depth, name }));
      visit(child);
    }
  };
  visit(root);
  return lines;
}

function treeLine({ text, depth, name }) {
  if (name === null) {
    const holder = element('p', { class: 'holder' }, text);
    holder.style.paddingLeft = `${0.4 + depth}rem`;
    return holder;
  }
  const button = element('button', { type: 'button', class: 'module', 'aria-pressed': String(chosenModules().includes(name)), title: name });
  button.style.paddingLeft = `${0.4 + depth}rem`;
  button.append(element('span', {}, text), element('small', {}, typeOf(name.split('#')[0])));
  button.addEventListener('click', () => chooseModule(name));
  return button;
}

function showTree() {
  const names = watchedRun().modules.map(({ name }) => name);
  const found = matching(names);
  const lines = searched() ? found.map(({ name }) => ({ text: name, depth: 0, name })) : treeOf(names);
  const box = byId('watched-tree');
  const drawn = JSON.stringify([lines, chosenModules()]);
  if (seen.tree !== drawn) {
    seen.tree = drawn;
    box.replaceChildren(...lines.slice(0, MOST_SHOWN).map(treeLine));
    if (lines.length > MOST_SHOWN) box.append(element('p', { class: 'note' }, `and ${lines.length - MOST_SHOWN} more: search for them`));
  }
  byId('watched-count').textContent = searched() ? `${found.length} of ${plural(names.length, 'module')}` : plural(names.length, 'module');
}

function chooseModule(name) {
  const before = chosenModules();
  const after = before.includes(name) ? before.filter((one) => one !== name) : [...before, name].slice(-MOST_CURVES);
  choose('watched.module', '', ...after);
  for (const button of byId('watched-tree').querySelectorAll('button')) button.setAttribute('aria-pressed', String(after.includes(button.title)));
  const chart = seen.charts.find(({ of }) => of === 'curve');
  if (chart.metric?.loss) choose(`${chart.key}.metric`, watchedRun().of_modules[0]?.key);
  redrawWatched();
}

// ── wiring ─────────────────────────────────────────────────────────────────────────────────────────
const LIKED_OF_WATCHED = { 'watched-upper': 'out_rms', 'watched-lower': 'grad_rms', 'watched-curve': 'loss', 'watched-weights': 'update_ratio' };

function showWatchedRun() {
  const run = watchedRun();
  if (byId('watched-search').value.trim() !== searched()) byId('watched-search').value = searched();
  steps.show(run.steps, run.steps.at(-1));
  showTree();
  redrawWatched();
}

function wireWatched() {
  for (const box of byId('watched-stage').querySelectorAll('.chart')) {
    const { of } = box.dataset;
    const chart = makeChart(box, {
      section: 'watched',
      kind: 'epochs',
      offered: () => metricsFor(chart),
      liked: () => LIKED_OF_WATCHED[box.id],
      make: of === 'curve' ? watchedCurves : watchedProfile,
      onChoose: (x) => {
        if (of === 'curve') steps.move(x);
        else if (of === 'modules') chooseModule(chart.made.here[x].name);
      },
    });
    seen.charts.push(Object.assign(chart, { of }));
  }
  steps = makePlayer('watched-step', 'watched.step', 'step', redrawWatched);
  byId('watched-run').addEventListener('change', (event) => {
    steps.stop();
    forget('watched.module', 'watched.step');
    choose('watched.run', event.target.value);
    showWatchedRun();
  });
  byId('watched-search').addEventListener('input', (event) => {
    choose('watched.search', ...[event.target.value.trim()].filter(Boolean));
    showTree();
    redrawWatched();
  });
  new ResizeObserver(redrawWatched).observe(byId('watched-stage'));
}

// The watched runs of new data, with what the reader had chosen.
function showWatched(given) {
  if (!byId('watched-stage')) return;
  seen.data = given;
  byId('watched').hidden = !given.runs.length;
  byId('watched-stage').hidden = !given.runs.length;
  if (!given.runs.length) return;
  if (!seen.charts.length) wireWatched();
  options(byId('watched-run'), given.runs.map((run) => [run.id, `${run.label} (${run.id})`]), watchedRun().id);
  byId('watched-run-field').hidden = given.runs.length < 2;
  showWatchedRun();
}
