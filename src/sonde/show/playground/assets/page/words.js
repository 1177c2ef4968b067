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
  bp: 'aₗ = gₗ: the gradient itself',
  fa: 'aₗ = aₗ₊₁Bₗᵀ: down through fixed random matrices',
  dfa: 'aₗ = eBₗᵀ: the output error straight to every layer',
  usf: 'backward, each W is replaced by sign(W)·s',
  kp: 'backward, each W is replaced by V, which takes W’s steps',
  frozen: 'blocks stay as drawn; only what is around them learns',
};

// What differs between inputs decides: a stream of biases alone is large and says nothing of its input.
function signalWords({ signal, spread }) {
  const missing = [signal[0], signal.at(-1)].find(({ value }) => value === null);
  if (missing) return `Undefined: ${missing.reason}.`;
  const end = `h${sub(signal.length - 1)}`;
  const [size, varied] = [signal, spread].map((readings) => readings.at(-1).value / readings[0].value);
  if (!Number.isFinite(size)) return 'h₀ is zero.';
  const sized = `${end} is ×${briefly(size)} the size of h₀`;
  if (varied < FACTS.signal_collapsed) return `${sized}, what differs between inputs ×${briefly(varied)}: collapsed.`;
  if (size > FACTS.signal_exploded) return `${sized}: exploded.`;
  return `${sized}, what differs between inputs ×${briefly(varied)}: ${varied < FACTS.signal_fades ? 'it fades' : 'it holds'}.`;
}

function gradientWords({ gradient }) {
  const [first, last] = [gradient[0].value, gradient.at(-1).value];
  const missing = gradient.find(({ value }) => value === null);
  if (missing) return `Undefined: ${missing.reason}.`;
  if (!last) return 'The loss hands no gradient to the last layer.';
  const ratio = first / last;
  const word = ratio < FACTS.gradient_vanished ? 'it vanishes' : ratio > FACTS.gradient_exploded ? 'it explodes' : 'it arrives';
  return `From the last layer to the first ×${briefly(ratio)}: ${word}.`;
}

// By how much the gradient was off the theory before anything was learned, where that is more than half as much again.
function departureWords({ gradient: theory }, { gradient }) {
  if (!theory || gradient[0].value === null || !(theory[0] > 0)) return '';
  const ratio = gradient[0].value / theory[0];
  if (ratio > 1 / 1.5 && ratio < 1.5) return '';
  return `At initialisation ×${briefly(ratio)} of the theory, which is that of a wide network.`;
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
  if (rule === 'bp') return 'BP is what all others are compared with: 1 wherever there is a gradient.';
  const below = cosine.slice(0, -1).filter(({ value }) => value !== null).map(({ value }) => value);
  if (!below.length) return `Undefined at every layer below the last: ${cosine[0].reason || 'there is none'}.`;
  const between = (values) => `from ${briefly(Math.min(...values))} to ${briefly(Math.max(...values))}`;
  const random = (chance || []).slice(0, -1).filter(({ value }) => value !== null).map(({ value }) => value);
  const beside = random.length ? `; backward matrices unrelated to W (dashed) score ${between(random)}, BP 1` : '';
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
