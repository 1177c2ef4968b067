// What can be chosen, and its place in the address: every setting is in the hash, so a link is a network.

const numbers = (...values) => values.map((value) => [value, shortly(value)]);

const CONTROLS = [
  { group: 'Network' },
  { key: 'depth', label: 'Depth L', kind: 'range', least: 1, most: 60, step: 1, start: 20 },
  { key: 'width', label: 'Width d', kind: 'steps', options: numbers(2, 4, 8, 16, 32, 64, 128), start: 32 },
  {
    key: 'block', label: 'Block f(x)', kind: 'select', start: 'one',
    options: [['one', 'φ(Wx + b)'], ['two', 'W₂φ(W₁x + b₁) + b₂'], ['student', 'W₂φ(W₁x)']],
  },
  {
    key: 'activation', label: 'Activation φ', kind: 'select', start: 'relu',
    options: [['relu', 'ReLU'], ['tanh', 'tanh'], ['gelu', 'GELU'], ['linear', 'none: linear']],
  },
  { key: 'skip', label: 'Skip connection “+x”', kind: 'check', start: false },
  { key: 'skip_scale', label: 'Scale of the skip s', kind: 'range', least: 0.1, most: 1.5, step: 0.05, start: 1, when: (s) => s.skip },
  {
    key: 'norm', label: 'LayerNorm', kind: 'select', start: 'none',
    options: [['none', 'none'], ['pre', 'pre: f(LN(x))'], ['post', 'post: LN(x + f(x))']],
  },
  { key: 'out_ln', label: 'LayerNorm before the readout', kind: 'check', start: false },
  { key: 'scale', label: 'Initial scale α', kind: 'range', least: 0.05, most: 3, step: 0.05, start: 1 },
  { key: 'by_depth', label: 'α divided by √L', kind: 'check', start: false },
  { group: 'Learning' },
  {
    key: 'rule', label: 'Learning rule', kind: 'select', start: 'bp',
    options: [['bp', 'Backprop (BP)'], ['fa', 'Feedback alignment (FA)'], ['dfa', 'Direct feedback (DFA)'], ['usf', 'Sign symmetry'], ['kp', 'Kolen–Pollack'], ['pc', 'Predictive coding'], ['pepita', 'PEPITA'], ['frozen', 'Frozen blocks']],
  },
  {
    key: 'credit', label: 'Credit', kind: 'select', start: 'rms', when: (s) => s.rule === 'fa' || s.rule === 'dfa',
    options: [['rms', 'normalised: a / RMS(a)'], ['none', 'as it is']],
  },
  { key: 'inference', label: 'Inference steps', kind: 'steps', options: numbers(1, 2, 4, 8, 16, 32, 64), start: 8, when: (s) => s.rule === 'pc' },
  {
    key: 'task', label: 'Task', kind: 'select', start: 'identity',
    options: [['identity', 'identity: y = x'], ['rings', 'two rings'], ['spirals', 'two spirals'], ['teacher', 'teacher: 10 classes'], ['parity', 'parity of 3 bits of 10']],
  },
  {
    key: 'optimiser', label: 'Optimiser', kind: 'select', start: 'adam',
    options: [['sgd', 'SGD'], ['momentum', 'SGD, momentum 0.9'], ['adam', 'Adam']],
  },
  { key: 'rate', label: 'Learning rate η', kind: 'steps', options: numbers(0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1), start: 0.001 },
  { key: 'decay', label: 'Weight decay λ', kind: 'steps', options: numbers(0, 0.001, 0.01, 0.1, 1), start: 0 },
  { key: 'batch', label: 'Batch', kind: 'steps', options: numbers(8, 16, 32, 64, 128), start: 32 },
  { key: 'seed', label: 'Seed', kind: 'number', least: 0, most: 999999, start: 1 },
  { key: 'pace', label: 'Steps a frame, at most', kind: 'steps', options: numbers(1, 2, 5, 10, 20, 50), start: 5 },
].map((control) => (control.kind === 'steps' ? { ...control, values: control.options.map(([value]) => value) } : control));

const SETTINGS = CONTROLS.filter(({ key }) => key);

const defaults = () => Object.fromEntries(SETTINGS.map(({ key, start }) => [key, start]));

const written = (settings) => SETTINGS.map(({ key }) => `${key}=${encodeURIComponent(settings[key])}`).join('&');

// The address of a network, with a second one beside it where there is one.
const toHash = (settings, beside = null) => `#${written(settings)}${beside ? `&beside=${encodeURIComponent(written(beside))}` : ''}`;

// A value as written in an address, or undefined where the control cannot take it.
function parsed(control, text) {
  if (control.kind === 'check') return { true: true, false: false }[text];
  if (control.kind === 'select') return control.options.some(([value]) => value === text) ? text : undefined;
  const value = text.trim() === '' ? NaN : Number(text);
  if (control.kind === 'steps') return control.values.includes(value) ? value : undefined;
  const whole = control.kind === 'range' && control.step < 1 ? true : Number.isInteger(value);
  return whole && value >= control.least && value <= control.most ? value : undefined;
}

// Settings from an address, those of the second network or null, and what in it could not be used.
function fromHash(hash) {
  const settings = defaults();
  const refused = [];
  let beside = null;
  for (const part of hash.replace(/^#/, '').split('&').filter(Boolean)) {
    const [key, coded = ''] = part.split('=');
    let text = coded;
    try {
      text = decodeURIComponent(coded);
    } catch {
      // a stray % stands for itself
    }
    if (key === 'beside') {
      const second = fromHash(text);
      beside = second.settings;
      refused.push(...second.refused.map((part) => `${part} (network B)`));
      continue;
    }
    const control = SETTINGS.find((known) => known.key === key);
    const value = control && parsed(control, text);
    if (value === undefined) refused.push(`${key} = ${text}`);
    else settings[key] = value;
  }
  return { settings, beside, refused };
}

const labelOf = (key, value) => SETTINGS.find((control) => control.key === key).options.find(([known]) => known === value)[1];
