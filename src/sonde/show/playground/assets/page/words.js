// Words: the network as an equation, and what the readings say, with the number they say it from.

const FACTS = JSON.parse(byId('facts').textContent);

const SUBSCRIPTS = '₀₁₂₃₄₅₆₇₈₉';
const sub = (number) => [...String(number)].map((digit) => SUBSCRIPTS[digit]).join('');

function equationOf(s) {
  const phi = { relu: 'ReLU', tanh: 'tanh', gelu: 'GELU', linear: '' }[s.activation];
  const of = (inside) => (phi ? `${phi}(${inside})` : inside);
  const x = s.norm === 'pre' ? 'LN(h)' : 'h';
  const branch = { one: of(`W${x} + b`), two: `W₂${phi ? of(`W₁${x} + b₁`) : `(W₁${x} + b₁)`} + b₂`, student: `W₂${of(`W₁${x}`)}` }[s.block];
  const skip = s.skip ? `${s.skip_scale === 1 ? '' : `${said(s.skip_scale)}·`}h + ` : '';
  return `h ← ${s.norm === 'post' ? `LN(${skip}${branch})` : skip + branch}`;
}

const RULE_WORDS = {
  bp: 'aₗ = gₗ: the credit is the gradient',
  fa: 'aₗ = aₗ₊₁Bₗᵀ: fixed random matrices send the credit back',
  dfa: 'aₗ = eBₗᵀ: fixed random matrices send the output error to every layer',
  usf: 'the backward pass uses sign(W)·s instead of W',
  kp: 'the backward pass uses V instead of W; V receives the same updates as W',
  pc: 'states descend the sum of prediction errors and the loss; aₗ = −εₗ, the error that is left at layer l',
  pepita: 'a second pass runs on x + Fe; aₗ is the difference it makes at layer l',
  frozen: 'blocks keep their initial weights; only embedding and readout are trained',
};

// Whether the network has learned, from its test loss and that of an answer that needs no learning.
function learningWords({ step, evaluation, diverged }, { trivial, classifies }) {
  if (diverged) return 'Diverged';
  if (!Number.isFinite(evaluation.loss)) return 'Loss undefined';
  const share = evaluation.loss / trivial;
  const than = classifies ? 'guessing' : 'answering zero';
  const times = `test loss ×${briefly(share)} that of ${than}`;
  const reached = evaluation.accuracy === null ? times : `${times}, accuracy ${Math.round(100 * evaluation.accuracy)} %`;
  if (share <= 1 - FACTS.learned) return `Learned: ${reached}`;
  if (share < 1 - FACTS.failed) return `Learned little so far: ${reached}`;
  return `${step ? 'Has not learned' : 'Not trained'}: ${reached}`;
}

// What differs between inputs decides: a stream of biases alone is large and says nothing of its input.
function signalWords({ signal, spread }) {
  const missing = [signal[0], signal.at(-1)].find(({ value }) => value === null);
  if (missing) return `Undefined: ${missing.reason}.`;
  const end = `h${sub(signal.length - 1)}`;
  const [size, varied] = [signal, spread].map((readings) => readings.at(-1).value / readings[0].value);
  if (!Number.isFinite(size)) return 'h₀ is zero.';
  const sized = `${end} is ×${briefly(size)} the size of h₀`;
  if (varied < FACTS.signal_collapsed) return `${sized}; the part that differs between inputs ×${briefly(varied)}: the signal collapses.`;
  if (size > FACTS.grows) return `${sized}: the signal ${size > FACTS.signal_exploded ? 'explodes' : 'grows'}.`;
  return `${sized}; the part that differs between inputs ×${briefly(varied)}: the signal ${varied < FACTS.signal_fades ? 'fades' : 'holds'}.`;
}

function gradientWords({ gradient }) {
  const [first, last] = [gradient[0].value, gradient.at(-1).value];
  const missing = gradient.find(({ value }) => value === null);
  if (missing) return `Undefined: ${missing.reason}.`;
  if (!last) return 'The gradient at the last layer is zero.';
  const ratio = first / last;
  return `From the last layer to the first ×${briefly(ratio)}: the gradient ${gradientWord(ratio)}.`;
}

function gradientWord(ratio) {
  if (ratio < FACTS.gradient_vanished) return 'vanishes';
  if (ratio > FACTS.gradient_exploded) return 'explodes';
  return ratio > FACTS.grows ? 'grows' : 'arrives';
}

// How far the gradient was from the theory at initialisation, where they differ by more than half.
function departureWords({ gradient: theory }, { gradient }) {
  if (!theory || gradient[0].value === null || !(theory[0] > 0)) return '';
  const ratio = gradient[0].value / theory[0];
  if (ratio > 1 / 1.5 && ratio < 1.5) return '';
  return `At initialisation ×${briefly(ratio)} of the theory, which holds for wide networks.`;
}

// Reasons of what is undefined, each with its layers: "layers 0–3: …".
function gapsOf(readings) {
  const layers = new Map();
  readings.forEach(({ value, reason }, l) => {
    if (value === null) layers.set(reason, [...(layers.get(reason) || []), l]);
  });
  return [...layers].map(([reason, found]) => `${spans(found)}: ${reason}`);
}

function spans(layers) {
  const runs = [];
  for (const l of layers) {
    if (runs.length && runs.at(-1)[1] === l - 1) runs.at(-1)[1] = l;
    else runs.push([l, l]);
  }
  const words = runs.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`)).join(', ');
  return `layer${layers.length === 1 ? '' : 's'} ${words}`;
}

function cosineWords({ cosine, chance }, rule) {
  if (rule === 'bp') return 'BP is the reference: its cosine is 1 wherever there is a gradient.';
  const below = cosine.slice(0, -1).filter(({ value }) => value !== null).map(({ value }) => value);
  if (!below.length) return `Undefined at every layer below the last: ${cosine[0].reason || 'there is none'}.`;
  const between = (values) => `from ${briefly(Math.min(...values))} to ${briefly(Math.max(...values))}`;
  const random = (chance || []).slice(0, -1).filter(({ value }) => value !== null).map(({ value }) => value);
  const beside = random.length ? `; random backward matrices unrelated to W (dashed) reach ${between(random)}, BP 1` : '';
  return `Below the last layer ${between(below)}${beside}.`;
}

function updateWords({ update }) {
  const known = update.filter(({ value }) => value !== null).map(({ value }) => value);
  if (!known.length) return `Undefined: ${update.at(-1).reason}.`;
  return `From ${briefly(Math.min(...known))} to ${briefly(Math.max(...known))} of a weight matrix in one step.`;
}

// Two significant digits.
function briefly(value) {
  const far = value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e4);
  const text = far ? value.toExponential(1).replace('e+', 'e').replace('.0e', 'e') : String(Number(value.toPrecision(2)));
  return text.replaceAll('-', '−');
}
