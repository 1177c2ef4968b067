// The page: settings → worker → frames → pictures.

const REST_AFTER = 5000; // steps after which training waits to be told to go on
const RULE_COLOUR = (rule) => `var(--colour-${rule})`;

const engine = new Worker(URL.createObjectURL(new Blob([byId('engine').textContent], { type: 'text/javascript' })));

const found = fromHash(location.hash);
let settings = location.hash.length > 1 ? found.settings : { ...PRESETS[0].settings };
let { refused } = found;
let playing = !matchMedia('(prefers-reduced-motion: reduce)').matches;
let run = 0;
let asked = false; // whether the worker has something to do
let stepLeft = false; // whether one step was asked for while it had
let waiting = false; // whether a frame waits to be drawn
let rests = REST_AFTER;
let inspected = null;
let state = null; // of this run: theory, points, sizes, its first and last frame, history, field

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

function linesOf(key) {
  const { theory, first, frame } = state;
  const colour = key === 'gradient' ? RULE_COLOUR('bp') : RULE_COLOUR(settings.rule);
  const lines = frame.step > 0 && key !== 'update' ? [atFirst(first.readings[key], colour)] : [];
  if (theory[key]) lines.push(inTheory(theory[key]));
  if (key === 'cosine' && frame.readings.chance) lines.push({ ...inTheory([]), kind: 'chance', readings: frame.readings.chance });
  if (key === 'signal') lines.push({ ...now(frame.readings.spread, colour, 1.5), kind: 'spread' });
  if (key === 'gradient' && settings.rule !== 'bp') lines.push(now(frame.readings.credit, RULE_COLOUR(settings.rule)));
  return [...lines, now(frame.readings[key], colour)];
}

function wordsOf(key) {
  const { readings } = state.frame;
  return { signal: signalWords, gradient: gradientWords, cosine: cosineWords, update: updateWords }[key](readings, settings.rule);
}

function notesOf(key) {
  const { readings } = state.frame;
  const gaps = gapsOf(readings[key]).map((gap) => `× ${gap}`);
  const zeros = charts[key].log ? readings[key].map(({ value }, l) => (value === 0 ? l : null)).filter((l) => l !== null) : [];
  if (zeros.length) gaps.push(`× ${spans(zeros)}: exactly zero in float32, which has no place on a log scale`);
  const said = gaps.length ? `${gaps.join('; ')}.` : '';
  return key === 'gradient' ? `${departureWords(state.theory, state.first.readings)} ${said}`.trim() : said;
}

function draw() {
  if (!state?.frame) return;
  const { frame, history, sizes, theory } = state;
  for (const [key, chart] of Object.entries(charts)) {
    chart.draw(linesOf(key), settings.depth);
    chart.say(wordsOf(key), notesOf(key));
    chart.inspect(inspected);
  }
  drawHistory(byId('loss-plot'), history, sizes.trivial, RULE_COLOUR(settings.rule));
  drawPixels(frame);
  sayStatus(frame, sizes);
  setText('theory-said', theory.reason || 'theory: a wide network at initialisation');
  byId('theory-swatch').hidden = Boolean(theory.reason);
  if (inspected !== null) sayInspected();
}

function drawPixels(frame) {
  const { points } = state;
  byId('field').hidden = !points;
  byId('one-input').hidden = Boolean(points);
  if (points) paintField(byId('field-canvas'), state.field, points.side);
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
    ? `Dotted: ${briefly(sizes.trivial)}, that of guessing among ${sizes.outputs} classes.`
    : 'Dotted: 1/3, that of always answering zero.';
  setText('loss-words', words);
  const stopped = diverged ? `Diverged at step ${step}: the loss is not a finite number. Lower the learning rate or the initial scale.` : '';
  setText('loss-notes', stopped);
}

// ---- one layer, read off every chart

function inspect(wanted) {
  if (!state?.frame) return;
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
      const { value, reason } = state.frame.readings[key][inspected] || {};
      const credit = key === 'gradient' && settings.rule !== 'bp' ? state.frame.readings.credit[inspected] : null;
      const also = credit ? `, credit ${credit.value === null ? 'undefined' : said(credit.value)}` : '';
      shown.textContent = `layer ${inspected}: ${value === null ? `undefined, ${reason}` : said(value)}${also}`;
    }
  }
}

// ---- frames

function begin() {
  run += 1;
  rests = REST_AFTER;
  stepLeft = false;
  asked = true;
  engine.postMessage({ kind: 'start', run, settings });
}

function askForMore() {
  if (asked || !playing || !state?.frame || state.frame.diverged) return;
  asked = true;
  engine.postMessage({ kind: 'train', steps: settings.pace, goes_on: true });
}

// Where training rests, test loss and plane are those of the step that is shown.
function makeWhole() {
  if (asked || playing || !state?.frame || state.frame.whole) return;
  asked = true;
  engine.postMessage({ kind: 'train', steps: 0 });
}

function oneStep() {
  if (playing) setPlaying(false);
  stepLeft = asked;
  if (asked || !state?.frame || state.frame.diverged) return;
  asked = true;
  engine.postMessage({ kind: 'train', steps: 1 });
}

engine.onmessage = ({ data }) => {
  if (data.run !== run) return;
  if (data.kind === 'started') started(data);
  else arrived(data);
};

function started({ theory, points, sizes }) {
  const trivial = sizes.classifies ? Math.log(sizes.outputs) : 1 / 3;
  state = { theory, points, sizes: { ...sizes, trivial }, first: null, frame: null, history: new History(), field: null, frames: 0 };
  for (const chart of Object.values(charts)) chart.forget();
  if (points) drawPoints(byId('field-points'), points);
  sayPython();
}

function arrived(frame) {
  asked = false;
  state.frame = frame;
  state.first ||= frame;
  frame.losses.forEach((loss, i) => state.history.add(frame.step - frame.losses.length + i + 1, loss));
  state.field = frame.field || state.field;
  if (frame.step >= rests || frame.diverged) {
    rests = frame.step + REST_AFTER;
    setPlaying(false);
  }
  if (stepLeft) oneStep();
  makeWhole();
  if (waiting) return;
  waiting = true;
  askForMore(); // the worker computes the next frame while this one waits to be drawn
  requestAnimationFrame(() => {
    waiting = false;
    askForMore();
    draw();
    if (!performance.getEntriesByName('first picture').length) performance.mark('first picture');
    document.documentElement.dataset.frames = state.frames += 1;
  });
}

// ---- what the reader does

function setPlaying(wanted) {
  playing = wanted;
  const button = byId('play');
  button.textContent = playing ? 'Pause' : 'Train';
  button.setAttribute('aria-pressed', String(playing));
  askForMore();
  makeWhole();
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
  const { line, differs } = pythonOf(settings);
  setText('python-line', line);
  byId('python-differs').replaceChildren(...differs.map((words) => element('li', {}, words)));
  byId('python-same').hidden = differs.length > 0;
  byId('python-other').hidden = differs.length === 0;
}

function show() {
  for (const field of fields) showField(field, settings);
  const preset = presetOf(settings);
  for (const [i, button] of presetButtons.entries()) button.setAttribute('aria-pressed', String(PRESETS[i] === preset));
  byId('why-title').textContent = preset ? preset.title : 'A network of your own';
  byId('why').textContent = preset ? preset.why : 'Change anything; training starts anew with each change. The address of this page holds every setting, so a link to it is a link to this network.';
  setText('equation', equationOf(settings));
  setText('rule-words', RULE_WORDS[settings.rule]);
  setText('rule-name', labelOf('rule', settings.rule));
  byId('kp-hint').hidden = !(settings.rule === 'kp' && settings.decay === 0);
  byId('credit-legend').hidden = settings.rule === 'bp';
  byId('frozen-hint').hidden = !(settings.rule === 'frozen' && settings.task === 'identity' && settings.block === 'one' && !settings.out_ln);
  document.documentElement.style.setProperty('--rule', RULE_COLOUR(settings.rule));
  byId('refused').hidden = !refused.length;
  byId('refused').textContent = `The link asks for what there is not: ${refused.join(', ')}. The usual value stands there instead.`;
  sayPython();
  const hash = toHash(settings);
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
byId('copy').addEventListener('click', async () => {
  try {
    await navigator.clipboard.writeText(byId('python-line').textContent);
    setText('copied', 'Copied.');
  } catch {
    getSelection().selectAllChildren(byId('python-line'));
    setText('copied', 'Selected: copy it with the keyboard.');
  }
});
addEventListener('hashchange', () => {
  if (location.hash === toHash(settings)) return;
  ({ settings, refused } = fromHash(location.hash));
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
new ResizeObserver(() => draw()).observe(byId('pictures'));
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => draw());

byId('choices').open = matchMedia('(min-width: 56.01rem)').matches;
show();
setPlaying(playing);
begin();
