// The page: settings → workers → frames → pictures.  Network A is the one of the form; network B may stand beside it.

const REST_AFTER = 5000; // steps after which training waits to be told to go on
const RULE_COLOUR = (rule) => `var(--colour-${rule})`;
const BESIDE = { colour: 'var(--beside)', dash: '6 4' };

const found = fromHash(location.hash);
let settings = location.hash.length > 1 ? found.settings : { ...PRESETS[0].settings };
let { refused } = found;
let playing = !matchMedia('(prefers-reduced-motion: reduce)').matches;
let stepLeft = false; // whether one step was asked for while the worker was busy
let waiting = false; // whether a frame waits to be drawn
let rests = REST_AFTER;
let frames = 0;
let inspected = null;

const first = new Session({ onStarted: started, onFrame: arrived });
let second = null; // the session of network B

// ---- pictures

const charts = {
  signal: new LayerChart('signal', { onInspect: inspect }),
  gradient: new LayerChart('gradient', { onInspect: inspect }),
  cosine: new LayerChart('cosine', { log: false, ends: [-1, 1], onInspect: inspect }),
  update: new LayerChart('update', { onInspect: inspect }),
};

const now = (readings, colour, width = 2.6) => ({ kind: 'now', readings, colour, width });
const atFirst = (readings, colour) => ({ kind: 'first', readings, colour, width: 1.6, dash: '1 4' });
const inTheory = (values) => ({ kind: 'theory', readings: values.map((value) => ({ value })), colour: 'var(--theory)', width: 2, dash: '7 5' });

// The sessions that have something to draw.
const shownSessions = () => [first, second].filter((session) => session?.frame);

function linesOf(key) {
  const { theory, first: start, frame } = first.state;
  const colour = key === 'gradient' ? RULE_COLOUR('bp') : RULE_COLOUR(settings.rule);
  const lines = second?.frame ? [{ kind: 'beside', readings: second.frame.readings[key], width: 2.4, ...BESIDE }] : [];
  if (frame.step > 0 && key !== 'update') lines.push(atFirst(start.readings[key], colour));
  if (theory[key]) lines.push(inTheory(theory[key]));
  if (key === 'cosine' && frame.readings.chance) lines.push({ ...inTheory([]), kind: 'chance', readings: frame.readings.chance });
  if (key === 'signal') lines.push({ ...now(frame.readings.spread, colour, 1.5), kind: 'spread' });
  if (key === 'gradient' && settings.rule !== 'bp') lines.push(now(frame.readings.credit, RULE_COLOUR(settings.rule)));
  return [...lines, now(frame.readings[key], colour)];
}

// What a chart says of network A, and of B where it stands beside.
function wordsOf(key) {
  const words = { signal: signalWords, gradient: gradientWords, cosine: cosineWords, update: updateWords }[key];
  const said = shownSessions().map((session) => words(session.frame.readings, session.settings.rule));
  return said.length === 1 ? said[0] : said.map((text, i) => `${'AB'[i]}: ${text}`).join(' ');
}

function notesOf(key) {
  const { readings } = first.frame;
  const gaps = gapsOf(readings[key]).map((gap) => `× ${gap}`);
  const zeros = charts[key].log ? readings[key].map(({ value }, l) => (value === 0 ? l : null)).filter((l) => l !== null) : [];
  if (zeros.length) gaps.push(`× ${spans(zeros)}: exactly zero in float32, which a log scale cannot show`);
  const said = gaps.length ? `${gaps.join('; ')}.` : '';
  return key === 'gradient' ? `${departureWords(first.state.theory, first.state.first.readings)} ${said}`.trim() : said;
}

function draw() {
  if (!first.frame) return;
  const { frame, history, sizes, theory } = first.state;
  const depth = Math.max(...shownSessions().map((session) => session.settings.depth));
  for (const [key, chart] of Object.entries(charts)) {
    chart.draw(linesOf(key), depth);
    chart.say(wordsOf(key), notesOf(key));
    chart.inspect(inspected);
  }
  const losses = [{ history, colour: RULE_COLOUR(settings.rule) }];
  if (second?.frame) losses.unshift({ history: second.state.history, ...BESIDE });
  drawHistory(byId('loss-plot'), losses, sizes.trivial);
  drawPixels(frame);
  sayStatus(frame, sizes);
  for (const [session, id] of [[first, 'network-a'], [second, 'network-b']]) if (session?.frame) drawCard(byId(id), session);
  setText('theory-said', theory.reason || 'theory: a wide network at initialisation');
  byId('theory-swatch').hidden = Boolean(theory.reason);
  if (inspected !== null) sayInspected();
}

// A network as a card: drawing, and whether it has learned.
function drawCard(card, session) {
  drawNetwork(card.querySelector('.drawing'), session);
  const learning = card.querySelector('.learning');
  const words = `${learningWords(session.frame, session.state.sizes)}.`;
  if (learning.textContent !== words) learning.textContent = words;
}

function drawPixels(frame) {
  const { points, field } = first.state;
  byId('field').hidden = !points;
  byId('one-input').hidden = Boolean(points);
  if (points) paintField(byId('field-canvas'), field, points.side);
  else paintInput(byId('input-canvas'), frame.input, settings.depth, settings.width);
}

const setText = (id, text) => {
  const part = byId(id);
  if (part.textContent !== text) part.textContent = text;
};

function sayStatus({ step, evaluation, diverged }, sizes) {
  setText('step', step.toLocaleString('en'));
  setText('test-loss', Number.isFinite(evaluation.loss) ? briefly(evaluation.loss) : 'undefined');
  setText('accuracy', evaluation.accuracy === null ? '–' : `${Math.round(100 * evaluation.accuracy)} %`);
  byId('accuracy').closest('div').hidden = evaluation.accuracy === null;
  const words = sizes.classifies
    ? `Dotted: ${briefly(sizes.trivial)}, the loss of guessing among ${sizes.outputs} classes.`
    : 'Dotted: 1/3, the loss of always answering zero.';
  setText('loss-words', words);
  const stopped = diverged ? `Diverged at step ${step}: the loss is not a finite number. Lower the learning rate or the initial scale.` : '';
  setText('loss-notes', stopped);
}

// ---- one layer, read off every chart

function inspect(wanted) {
  if (!first.frame) return;
  const held = (layer) => Math.min(settings.depth, Math.max(0, layer));
  if (wanted === null) inspected = null;
  else if ('at' in wanted) inspected = held(wanted.at);
  else inspected = held((inspected ?? (wanted.by > 0 ? -1 : settings.depth + 1)) + wanted.by);
  for (const chart of Object.values(charts)) chart.inspect(inspected);
  sayInspected();
}

function sayInspected() {
  for (const [key, chart] of Object.entries(charts)) {
    const shown = chart.figure.querySelector('.inspected-value');
    if (inspected === null) shown.textContent = '';
    else {
      const { value, reason } = first.frame.readings[key][inspected] || {};
      const credit = key === 'gradient' && settings.rule !== 'bp' ? first.frame.readings.credit[inspected] : null;
      const also = credit ? `, credit ${credit.value === null ? 'undefined' : said(credit.value)}` : '';
      const other = second?.frame?.readings[key][inspected];
      const beside = other ? `; B ${other.value === null ? 'undefined' : said(other.value)}` : '';
      shown.textContent = `layer ${inspected}: ${value === null ? `undefined, ${reason}` : said(value)}${also}${beside}`;
    }
  }
}

// ---- frames

function begin() {
  rests = REST_AFTER;
  stepLeft = false;
  first.begin(settings);
  second?.begin(second.settings);
}

// Both networks take the same number of steps: A waits where B is behind.
const behind = () => Boolean(second) && (!second.frame || (!second.frame.diverged && second.step < first.step));

function askForMore() {
  if (second?.ready && second.step < first.step) second.train(first.step - second.step, playing);
  else if (!playing) second?.makeWhole();
  if (playing && first.ready && !behind()) first.train(settings.pace, true);
}

function oneStep() {
  if (playing) setPlaying(false);
  stepLeft = first.asked;
  if (first.ready) first.train(1);
}

function started(session) {
  for (const chart of Object.values(charts)) chart.forget();
  if (session !== first) return;
  if (session.state.points) drawPoints(byId('field-points'), session.state.points);
  sayPython();
}

function arrived(session) {
  if (session === first) {
    const { frame } = first;
    if (frame.step >= rests || frame.diverged) {
      rests = frame.step + REST_AFTER;
      setPlaying(false);
    }
    if (stepLeft) oneStep();
    if (!playing) first.makeWhole();
  }
  if (waiting) return;
  waiting = true;
  askForMore(); // the worker computes the next frame while this one waits to be drawn
  requestAnimationFrame(() => {
    waiting = false;
    askForMore();
    draw();
    if (!performance.getEntriesByName('first picture').length) performance.mark('first picture');
    document.documentElement.dataset.frames = frames += 1;
  });
}

// ---- a second network

// Put a network beside the one of the form, or take it away.
function setBeside(wanted) {
  second?.end();
  second = wanted ? new Session({ onStarted: started, onFrame: arrived }) : null;
  if (second) second.settings = wanted;
  byId('network-b').hidden = byId('swap').hidden = byId('alone').hidden = byId('beside-legend').hidden = !second;
  byId('name-a').textContent = second ? 'Network A (settings below)' : 'This network';
  byId('compare').textContent = second ? 'Keep as network B instead' : 'Keep as network B to compare';
  if (second) describe(byId('network-b'), wanted);
  for (const chart of Object.values(charts)) chart.forget();
}

function describe(card, of) {
  card.querySelector('.equation').textContent = equationOf(of);
  card.querySelector('.by b').textContent = labelOf('rule', of.rule);
  card.querySelector('.by span').textContent = `${RULE_WORDS[of.rule]}. Depth ${of.depth}, width ${of.width}, ${labelOf('task', of.task)}.`;
}

// ---- what the reader does

function setPlaying(wanted) {
  playing = wanted;
  const button = byId('play');
  button.textContent = playing ? 'Pause' : 'Train';
  button.setAttribute('aria-pressed', String(playing));
  askForMore();
  if (!playing) first.makeWhole();
}

function change(key, value) {
  settings = { ...settings, [key]: value };
  refused = [];
  show();
  if (key !== 'pace') begin();
}

function choose(preset) {
  settings = { ...preset.settings, pace: settings.pace };
  refused = [];
  show();
  setPlaying(true);
  begin();
}

function sayPython() {
  const { line, file, differs } = pythonOf(settings);
  setText('python-line', line);
  byId('python-task').hidden = !file;
  setText('python-file', file ? file.text : '');
  setText('python-file-name', file ? file.name : '');
  byId('python-differs').replaceChildren(...differs.map((words) => element('li', {}, words)));
  byId('python-same').hidden = differs.length > 0;
  byId('python-other').hidden = differs.length === 0;
}

function show() {
  for (const field of fields) showField(field, settings);
  const preset = presetOf(settings);
  for (const [i, button] of presetButtons.entries()) button.setAttribute('aria-pressed', String(PRESETS[i] === preset));
  byId('why-title').textContent = preset ? preset.title : 'A network of your own';
  byId('why').textContent = preset ? preset.why : 'Each change restarts the training. The address of this page holds every setting, so you can share the network as a link.';
  describe(byId('network-a'), settings);
  byId('kp-hint').hidden = !(settings.rule === 'kp' && settings.decay === 0);
  byId('credit-legend').hidden = settings.rule === 'bp';
  byId('frozen-hint').hidden = !(settings.rule === 'frozen' && settings.task === 'identity' && settings.block === 'one' && !settings.out_ln);
  document.documentElement.style.setProperty('--rule', RULE_COLOUR(settings.rule));
  byId('refused').hidden = !refused.length;
  byId('refused').textContent = `The link has settings that do not exist: ${refused.join(', ')}. Their defaults are used instead.`;
  sayPython();
  const hash = toHash(settings, second?.settings);
  if (location.hash !== hash) history.replaceState(null, '', hash);
}

const fields = makeForm(byId('settings'), change);
const presetButtons = PRESETS.map((preset) => {
  const button = element('button', { type: 'button', 'data-preset': preset.name }, preset.chip);
  button.addEventListener('click', () => choose(preset));
  byId('presets').append(button);
  return button;
});

byId('play').addEventListener('click', () => setPlaying(!playing));
byId('one-step').addEventListener('click', oneStep);
byId('again').addEventListener('click', begin);
byId('new-seed').addEventListener('click', () => change('seed', (settings.seed + 1) % 1000000));
byId('compare').addEventListener('click', () => {
  setBeside({ ...settings });
  show();
  begin();
});
byId('swap').addEventListener('click', () => {
  const other = second.settings;
  setBeside({ ...settings });
  settings = { ...other };
  show();
  begin();
});
byId('alone').addEventListener('click', () => {
  setBeside(null);
  show();
  draw();
  askForMore();
});
for (const button of document.querySelectorAll('[data-copy]')) {
  button.addEventListener('click', async () => {
    const text = byId(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(text.textContent);
      setText('copied', 'Copied.');
    } catch {
      getSelection().selectAllChildren(text);
      setText('copied', 'Selected: copy it with the keyboard.');
    }
  });
}
addEventListener('hashchange', () => {
  if (location.hash === toHash(settings, second?.settings)) return;
  const wanted = fromHash(location.hash);
  ({ settings, refused } = wanted);
  setBeside(wanted.beside);
  show();
  begin();
});
addEventListener('keydown', (event) => {
  const busy = event.target.closest('input, select, button, summary, a') || event.ctrlKey || event.metaKey || event.altKey;
  const action = { ' ': () => setPlaying(!playing), s: oneStep, r: begin }[event.key];
  if (busy || !action) return;
  event.preventDefault();
  action();
});

// ---- light and dark

const prefersDark = matchMedia('(prefers-color-scheme: dark)');

const isDark = () => (document.documentElement.dataset.theme ? document.documentElement.dataset.theme === 'dark' : prefersDark.matches);

function showTheme() {
  setText('theme', isDark() ? 'Light' : 'Dark');
  draw();
}

byId('theme').addEventListener('click', () => {
  document.documentElement.dataset.theme = isDark() ? 'light' : 'dark';
  showTheme();
});
prefersDark.addEventListener('change', showTheme);
new ResizeObserver(() => draw()).observe(byId('pictures'));
new ResizeObserver(([{ target }]) => document.documentElement.style.setProperty('--header', `${target.offsetHeight}px`)).observe(document.querySelector('header'));

showTheme();
setBeside(found.beside);
show();
setPlaying(playing);
begin();

// For the console of the browser, and for tests.
window.playground = { sessions: () => [first, second], gradientWord, signalWords, learningWords };
