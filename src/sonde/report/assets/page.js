// Wire the page: theme, choices, slider and play button.

const charts = [];
const LIKED = { 'first-profile': 'hidden_norm', 'second-profile': 'grad_norm', 'third-profile': 'credit_cosine' };

// ── theme ──────────────────────────────────────────────────────────────────────────────────────────
const systemDark = matchMedia('(prefers-color-scheme: dark)');

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === 'dark' : systemDark.matches;
}

function showTheme() {
  const button = byId('theme');
  button.hidden = false;
  button.textContent = isDark() ? 'Light colours' : 'Dark colours';
}

byId('theme').addEventListener('click', () => {
  document.documentElement.dataset.theme = isDark() ? 'light' : 'dark';
  showTheme();
});
systemDark.addEventListener('change', showTheme);
showTheme();

// ── drawing ────────────────────────────────────────────────────────────────────────────────────────
let asked = false;

function redraw() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    charts.forEach(drawChart);
    showKeys();
  });
}

// Which line is which, where the choices are out of sight.
function showKeys() {
  const looks = new Map(visibleRuns().map((run) => [nameOf(run), lookOf(run)]));
  for (const key of document.querySelectorAll('.key')) {
    key.replaceChildren(...[...looks].map(([name, look]) => element('span', {}, swatch(look), name)));
  }
}

// ── choices ────────────────────────────────────────────────────────────────────────────────────────
function checks(id, entries, chosen) {
  const box = byId(id);
  box.querySelectorAll('label').forEach((label) => label.remove());
  box.hidden = entries.length < 2;
  for (const { key, text, look } of entries) {
    const input = element('input', { type: 'checkbox', value: key });
    input.checked = chosen.has(key);
    input.addEventListener('change', () => {
      if (input.checked) chosen.add(key);
      else chosen.delete(key);
      redraw();
    });
    box.append(element('label', {}, input, ...(look ? [swatch(look)] : []), text));
  }
}

function options(select, entries, wanted) {
  select.replaceChildren(...entries.map(([value, text]) => element('option', { value }, text)));
  select.value = entries.some(([value]) => value === wanted) ? wanted : (entries[0] || [''])[0];
  return select.value;
}

function showChoices() {
  const { networks, rules, seeds } = family();
  const several = { networks: networks.length > 1, rules: rules.length > 1 };
  checks('networks', networks.map(({ label }, key) => {
    const look = lookOf({ network: key, rule: 0 });
    return { key, text: label, look: several.rules ? { ...look, colour: 'var(--faint)' } : look };
  }), choice.networks);
  checks('rules', rules.map(({ label }, key) => {
    const look = lookOf({ network: 0, rule: key });
    return { key, text: label, look: several.networks ? { ...look, dash: SOLID } : look };
  }), choice.rules);
  checks('seeds', seeds.map((seed) => ({ key: seed, text: String(seed) })), choice.seeds);
}

function startFamily(place) {
  stop();
  chooseFamily(place);
  showChoices();
  byId('epoch').max = String(Math.max(choice.epochs.length - 1, 0));
  byId('epoch').disabled = choice.epochs.length < 2;
  byId('play').disabled = choice.epochs.length < 2;
  const taken = new Set();
  for (const chart of charts) {
    const metrics = offeredMetrics(chart.kind === 'profile');
    const keys = metrics.map((metric) => metric.key);
    const liked = LIKED[chart.box.id];
    const wanted = keys.includes(liked) ? liked : keys.find((key) => !taken.has(key) && !Object.values(LIKED).includes(key));
    if (chart.kind === 'profile') taken.add(wanted);
    const entries = metrics.map((metric) => [metric.key, metric.label]);
    setMetric(chart, options(chart.select, entries, chart.kind === 'profile' ? wanted : keys[0]));
  }
  setEpoch(choice.epoch);
  redraw();
}

function setMetric(chart, key) {
  const metric = metricOf(key);
  chart.metric = metric ? key : null;
  chart.box.hidden = !metric;
  if (!metric) return;
  chart.log = metric.log;
  chart.logBox.checked = metric.log;
  if (!chart.layerBox) return;
  chart.layerBox.hidden = !metric.layered;
  const layers = metric.layered ? sorted(familyRuns().flatMap((run) => series(run, key)?.layers || [])) : [];
  chart.layer = options(chart.layerBox.querySelector('select'), ['last', ...layers.map(String)].map((layer) => [layer, layer]), 'last');
}

// ── epochs ─────────────────────────────────────────────────────────────────────────────────────────
function setEpoch(epoch) {
  if (!choice.epochs.includes(epoch)) return;
  choice.epoch = epoch;
  const text = `${epoch} of ${family().epochs}`;
  byId('epoch').value = String(choice.epochs.indexOf(epoch));
  byId('epoch').setAttribute('aria-valuetext', `epoch ${text}`);
  byId('epoch-said').textContent = text;
  byId('epoch-printed').textContent = `${family().title}; epoch ${text}.`;
  redraw();
}

let playing = null;

function stop() {
  clearTimeout(playing);
  playing = null;
  byId('play').textContent = 'Play';
}

// The whole run in about ten seconds; slower where the reader asked for less motion.
function pause() {
  if (matchMedia('(prefers-reduced-motion: reduce)').matches) return 1000;
  return Math.max(80, Math.min(500, 10000 / choice.epochs.length));
}

function step() {
  const next = choice.epochs[choice.epochs.indexOf(choice.epoch) + 1];
  if (next === undefined) {
    stop();
    return;
  }
  setEpoch(next);
  playing = setTimeout(step, pause());
}

function play() {
  if (choice.epoch === choice.epochs.at(-1)) setEpoch(choice.epochs[0]);
  byId('play').textContent = 'Pause';
  playing = setTimeout(step, pause());
}

// ── start ──────────────────────────────────────────────────────────────────────────────────────────
function wireChart(box) {
  const chart = {
    box,
    kind: box.classList.contains('profile') ? 'profile' : 'epochs',
    plot: box.querySelector('.plot'),
    tip: box.querySelector('.tip'),
    spoken: box.querySelector('.spoken'),
    caption: box.querySelector('figcaption'),
    values: box.querySelector('details.values'),
    select: box.querySelector('.metric'),
    logBox: box.querySelector('.log'),
    layerBox: box.querySelector('.layer'),
    tipped: null,
  };
  chart.select.addEventListener('change', () => {
    setMetric(chart, chart.select.value);
    redraw();
  });
  chart.logBox.addEventListener('change', () => {
    chart.log = chart.logBox.checked;
    redraw();
  });
  chart.layerBox?.querySelector('select').addEventListener('change', (event) => {
    chart.layer = event.target.value;
    redraw();
  });
  chart.values.addEventListener('toggle', () => chart.values.open && fillValues(chart));
  listen(chart, (x) => chart.kind === 'epochs' && setEpoch(x));
  charts.push(chart);
}

function wire() {
  byId('stage').querySelectorAll('.chart').forEach(wireChart);
  options(byId('family'), data.families.map(({ title }, i) => [String(i), title]), '0');
  byId('family-field').hidden = data.families.length < 2;
  byId('family').addEventListener('change', (event) => startFamily(Number(event.target.value)));
  for (const id of ['mean', 'controls']) {
    byId(id).addEventListener('change', (event) => {
      choice[id] = event.target.checked;
      redraw();
    });
  }
  byId('choices').addEventListener('submit', (event) => event.preventDefault());
  byId('epoch').addEventListener('input', (event) => {
    stop();
    setEpoch(choice.epochs[Number(event.target.value)]);
  });
  byId('play').addEventListener('click', () => (playing === null ? play() : stop()));
  new ResizeObserver(redraw).observe(byId('stage'));
}

readData();
if (data.series.length) {
  byId('stage').hidden = false;
  wire();
  startFamily(0);
} else if (byId('nothing')) {
  byId('nothing').hidden = false;
}

// Paper has its own width and no boxes to open; what the findings stand on is part of what they say.
function print(on) {
  onPaper = on;
  document.querySelectorAll('.evidence, .left-out').forEach((box) => { box.open = on || box.matches('.left-out'); });
  charts.forEach(drawChart);
}
window.addEventListener('beforeprint', () => print(true));
window.addEventListener('afterprint', () => print(false));
