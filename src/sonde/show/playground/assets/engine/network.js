// A network, embed → blocks → readout, with the parameter names Sonde's models have.
//
// h_{l+1} = s·h_l + f(h_l);  pre: s·h_l + f(LN(h_l));  post: LN(s·h_l + f(h_l));  s = 0 without a skip connection.
// f is φ(W x + b) (`one`), W₂ φ(W₁ x + b₁) + b₂ (`two`) or W₂ φ(W₁ x) (`student`).

const alphaOf = (settings) => settings.scale / (settings.by_depth ? Math.sqrt(settings.depth) : 1);

const skipOf = (settings) => (settings.skip ? settings.skip_scale : 0);

// Whether a linear map stands before and after the blocks; else the width is that of the data.
const hasEnds = (settings, task) => task.classifies || settings.block !== 'one';

// Every parameter: its name, its shape, and how it starts.  `fan` is the bound of PyTorch's default, 1/√inputs.
function parameterList(settings, task) {
  const d = settings.width;
  const alpha = alphaOf(settings);
  const list = [];
  const matrix = (name, rows, columns, start) => list.push({ name, rows, columns, matrix: true, ...start });
  const vector = (name, size, start) => list.push({ name, rows: size, columns: 1, matrix: false, ...start });
  const uniform = (inputs) => ({ draw: 'uniform', std: 1 / Math.sqrt(3 * inputs) });
  const normal = (std) => ({ draw: 'normal', std });
  const constant = (value) => ({ draw: 'constant', value, std: 0 });
  const norm = (name) => {
    vector(`${name}.weight`, d, constant(1));
    vector(`${name}.bias`, d, constant(0));
  };
  if (hasEnds(settings, task)) {
    matrix('embed.linear.weight', d, task.inputs, uniform(task.inputs));
    vector('embed.linear.bias', d, uniform(task.inputs));
  }
  for (let l = 0; l < settings.depth; l += 1) {
    const block = `blocks.${l}`;
    if (settings.norm !== 'none') norm(`${block}.ln`);
    if (settings.block === 'one') {
      matrix(`${block}.linear.weight`, d, d, normal((alpha * ACTIVATIONS[settings.activation].gain) / Math.sqrt(d)));
      vector(`${block}.linear.bias`, d, constant(0));
    } else if (settings.block === 'two') {
      matrix(`${block}.w1.weight`, d, d, uniform(d));
      vector(`${block}.w1.bias`, d, uniform(d));
      matrix(`${block}.w2.weight`, d, d, normal(alpha / Math.sqrt(d)));
      vector(`${block}.w2.bias`, d, constant(0));
    } else {
      matrix(`${block}.w1.weight`, d, d, normal(1 / Math.sqrt(d)));
      matrix(`${block}.w2.weight`, d, d, normal(alpha / Math.sqrt(d)));
    }
  }
  if (settings.out_ln) norm('readout.out_ln');
  if (hasEnds(settings, task)) {
    matrix('readout.out_head.weight', task.outputs, d, uniform(d));
    vector('readout.out_head.bias', task.outputs, uniform(d));
  }
  return list;
}

function startingValues({ name, rows, columns, draw, std, value }, seed) {
  const values = new Float32Array(rows * columns);
  if (draw === 'constant') return values.fill(value);
  const random = randomOf(seed, `init/${name}`);
  const bound = std * Math.sqrt(3);
  for (let i = 0; i < values.length; i += 1) {
    values[i] = draw === 'normal' ? std * random.normal() : bound * (2 * random.uniform() - 1);
  }
  return values;
}

class Network {
  constructor(settings, task, seed) {
    this.settings = settings;
    this.task = task;
    this.d = settings.width;
    this.depth = settings.depth;
    this.skip = skipOf(settings);
    this.ends = hasEnds(settings, task);
    this.activation = ACTIVATIONS[settings.activation];
    this.list = parameterList(settings, task);
    this.values = {};
    this.grads = {};
    for (const parameter of this.list) {
      this.values[parameter.name] = startingValues(parameter, seed);
      this.grads[parameter.name] = new Float32Array(parameter.rows * parameter.columns);
    }
    this.spread = Object.fromEntries(this.list.map(({ name, std }) => [name, std]));
  }

  has(name) {
    return name in this.values;
  }

  // The weight matrices of the unit that makes h_l: the embedding for l = 0, block l − 1 otherwise.
  matricesOf(l) {
    const unit = l === 0 ? 'embed.' : `blocks.${l - 1}.`;
    return this.list.filter(({ name, matrix }) => matrix && name.startsWith(unit)).map(({ name }) => name);
  }

  // h_0 … h_L and the output of `samples` rows of x, kept on the tape for the way back.
  forward(tape, x, samples) {
    const { d, values } = this;
    tape.x = x;
    tape.samples = samples;
    if (this.ends) linear(x, values['embed.linear.weight'], values['embed.linear.bias'], tape.h[0], samples, this.task.inputs, d);
    else tape.h[0].set(x.subarray(0, samples * d));
    for (let l = 0; l < this.depth; l += 1) this.block(l, tape);
    this.readout(tape);
  }

  // The output from h_L.
  readout(tape) {
    const { d, values } = this;
    const { samples } = tape;
    let top = tape.h[this.depth];
    if (this.settings.out_ln) {
      const [gain, shift] = this.normOf('readout.out_ln');
      layerNorm(top, gain, shift, tape.top, tape.topUnit, tape.topScale, samples, d);
      top = tape.top;
    }
    if (this.ends) linear(top, values['readout.out_head.weight'], values['readout.out_head.bias'], tape.output, samples, d, this.task.outputs);
    else tape.output.set(top.subarray(0, samples * d));
  }

  normOf(name, from = this.values) {
    return [from[`${name}.weight`], from[`${name}.bias`]];
  }

  // Block l at the tape's h_l, into `out`.
  block(l, tape, out = tape.h[l + 1]) {
    const { d, values, settings } = this;
    const { samples } = tape;
    const size = samples * d;
    const block = `blocks.${l}`;
    const h = tape.h[l];
    let u = h;
    if (settings.norm === 'pre') {
      u = tape.u[l];
      layerNorm(h, ...this.normOf(`${block}.ln`), u, tape.unit[l], tape.scale[l], samples, d);
    }
    const first = settings.block === 'one' ? `${block}.linear` : `${block}.w1`;
    const z = tape.z[l];
    const a = tape.a[l];
    linear(u, values[`${first}.weight`], values[`${first}.bias`] || null, z, samples, d, d);
    this.activation.up(z, a, size);
    let f = a;
    if (settings.block !== 'one') {
      f = tape.scratch('branch', size);
      linear(a, values[`${block}.w2.weight`], values[`${block}.w2.bias`] || null, f, samples, d, d);
    }
    const next = settings.norm === 'post' ? tape.scratch('sum', size) : out;
    for (let i = 0; i < size; i += 1) next[i] = this.skip * h[i] + f[i];
    if (settings.norm === 'post') {
      layerNorm(next, ...this.normOf(`${block}.ln`), out, tape.unit[l], tape.scale[l], samples, d);
    }
  }

  // The mean loss; leaves the targets and every sample's output error on the tape.
  loss(tape, y) {
    tape.y = y;
    const loss = this.task.classifies ? crossEntropy : meanSquaredError;
    return loss(tape.output, y, tape.error, tape.samples, this.task.outputs);
  }

  // The exact gradient at h_L into `top`; with `train`, readout's parameters get theirs.
  readoutBack(tape, top, train) {
    const { d, values, grads } = this;
    const { samples } = tape;
    const above = this.settings.out_ln ? tape.scratch('above', samples * d) : top;
    if (this.ends) {
      const { outputs } = this.task;
      const seen = this.settings.out_ln ? tape.top : tape.h[this.depth];
      if (train) linearParameters(seen, tape.error, grads['readout.out_head.weight'], grads['readout.out_head.bias'], samples, d, outputs);
      linearInput(tape.error, values['readout.out_head.weight'], above, samples, d, outputs);
    } else above.set(tape.error.subarray(0, samples * d));
    if (!this.settings.out_ln) return;
    if (train) layerNormParameters(above, tape.topUnit, ...this.normOf('readout.out_ln', grads), samples, d);
    layerNormInput(above, values['readout.out_ln.weight'], tape.topUnit, tape.topScale, top, samples, d);
  }

  // Credit `a` of h_{l+1} into the parameters of block l (with `train`) and, where `below` is given, on to h_l.
  // `back` names the matrices by which credit goes down: the block's own, or what a rule puts in their place.
  blockBack(l, tape, credit, { train, below, back }) {
    const { d, values, grads, settings } = this;
    const { samples } = tape;
    const size = samples * d;
    const block = `blocks.${l}`;
    let df = credit;
    if (settings.norm === 'post') {
      df = tape.scratch('before norm', size);
      if (train) layerNormParameters(credit, tape.unit[l], ...this.normOf(`${block}.ln`, grads), samples, d);
      layerNormInput(credit, values[`${block}.ln.weight`], tape.unit[l], tape.scale[l], df, samples, d);
    }
    const z = tape.z[l];
    const a = tape.a[l];
    const dz = tape.scratch('before activation', size);
    let first = `${block}.linear`;
    let da = df;
    if (settings.block !== 'one') {
      first = `${block}.w1`;
      da = dz;
      if (train) linearParameters(a, df, grads[`${block}.w2.weight`], grads[`${block}.w2.bias`] || null, samples, d, d);
      linearInput(df, back(`${block}.w2.weight`), da, samples, d, d);
    }
    this.activation.back(da, z, a, dz, size);
    const u = settings.norm === 'pre' ? tape.u[l] : tape.h[l];
    if (train) linearParameters(u, dz, grads[`${first}.weight`], grads[`${first}.bias`] || null, samples, d, d);
    const normed = settings.norm === 'pre';
    if (!below && !(normed && train)) return;
    const du = tape.scratch('before linear', size);
    linearInput(dz, back(`${first}.weight`), du, samples, d, d);
    if (normed && train) layerNormParameters(du, tape.unit[l], ...this.normOf(`${block}.ln`, grads), samples, d);
    if (!below) return;
    let dh = du;
    if (normed) {
      dh = tape.scratch('before pre-norm', size);
      layerNormInput(du, values[`${block}.ln.weight`], tape.unit[l], tape.scale[l], dh, samples, d);
    }
    for (let i = 0; i < size; i += 1) below[i] = this.skip * df[i] + dh[i];
  }

  embedBack(tape, credit) {
    if (!this.ends) return;
    linearParameters(tape.x, credit, this.grads['embed.linear.weight'], this.grads['embed.linear.bias'], tape.samples, this.task.inputs, this.d);
  }
}

// What a forward pass leaves for the way back, for up to `capacity` samples, in arrays of one kind.
class Tape {
  constructor(network, capacity, kind = Float32Array) {
    const { depth, d, task, settings } = network;
    const states = (count, kept = true) => Array.from({ length: kept ? count : 0 }, () => new kind(capacity * d));
    this.network = network;
    this.capacity = capacity;
    this.kind = kind;
    this.samples = 0;
    this.x = null;
    this.y = null;
    this.h = states(depth + 1);
    this.z = states(depth);
    this.a = states(depth);
    this.u = states(depth, settings.norm === 'pre');
    this.unit = states(depth, settings.norm !== 'none');
    this.scale = Array.from({ length: depth }, () => new kind(capacity));
    this.top = new kind(capacity * d);
    this.topUnit = new kind(capacity * d);
    this.topScale = new kind(capacity);
    this.output = new kind(capacity * task.outputs);
    this.error = new kind(capacity * task.outputs);
  }
  // A second tape for other states of the same samples, in double: small differences of states are the credit.
  get moved() {
    this.second ||= new Tape(this.network, this.capacity, Float64Array);
    return this.second;
  }

  scratch(purpose, size) {
    return scratch(purpose, size, this.kind);
  }
}
