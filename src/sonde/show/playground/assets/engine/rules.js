// Learning rules.  Credit a_l stands in for the gradient g_l = ∂ℓ_i/∂h_l of every sample, l = 0 … L.
//
// By layers: the ordinary way back through every unit, with the weight matrices that `back` names.
// By units: the rule names a credit for every state, and no credit crosses a unit.
// By states: the rule makes other states on the second tape, names a credit for each, and units learn there.
// Frozen: the exact gradient crosses the blocks and trains only what stands around them.

const normalMatrix = (rows, columns, std, random) => {
  const values = new Float32Array(rows * columns);
  for (let i = 0; i < values.length; i += 1) values[i] = std * random.normal();
  return values;
};

const blockMatrices = (network) => network.list.filter(({ name, matrix }) => matrix && name.startsWith('blocks.'));

const RULES = {
  bp: { route: 'layers', draw: () => ({}), back: (network) => network.values },

  // a_L = g_L, a_l = a_{l+1} B_lᵀ, B_l ∈ R^{d×d} with entries N(0, 1/d), fixed.
  fa: {
    route: 'units',
    draw: ({ d, depth }, random) => Object.fromEntries(Array.from({ length: depth }, (_, l) => [l, normalMatrix(d, d, 1 / Math.sqrt(d), random)])),
    credits(network, tape, feedback, credits) {
      for (let l = network.depth - 1; l >= 0; l -= 1) rowDots(credits[l + 1], feedback[l], credits[l], tape.samples, network.d, network.d);
    },
  },

  // a_l = e B_lᵀ, B_l ∈ R^{d×C} with entries N(0, 1/C), fixed.
  dfa: {
    route: 'units',
    draw({ d, depth, task }, random) {
      return Object.fromEntries(Array.from({ length: depth + 1 }, (_, l) => [l, normalMatrix(d, task.outputs, 1 / Math.sqrt(task.outputs), random)]));
    },
    credits(network, tape, feedback, credits) {
      for (let l = 0; l <= network.depth; l += 1) rowDots(tape.error, feedback[l], credits[l], tape.samples, network.d, network.task.outputs);
    },
  },

  // V = sign(W)·s, s the standard deviation W was drawn with.
  usf: {
    route: 'layers',
    draw: (network) => Object.fromEntries(blockMatrices(network).map(({ name, rows, columns }) => [name, new Float32Array(rows * columns)])),
    back(network, feedback) {
      for (const [name, signs] of Object.entries(feedback)) {
        const weight = network.values[name];
        for (let i = 0; i < signs.length; i += 1) signs[i] = Math.sign(weight[i]) * network.spread[name];
      }
      return feedback;
    },
  },

  // V starts as an independent draw like W's and takes the steps W takes, so that with decay W − V fades.
  kp: {
    route: 'layers',
    draw: (network, random) => Object.fromEntries(blockMatrices(network).map((parameter) => [
      parameter.name, startingValues(parameter, random.below(2 ** 31))])),
    back: (network, feedback) => feedback,
    follows: true,
  },

  // The states descend E = Σ_l ½‖h_{l+1} − unit_l(h_l)‖² + ℓ; a_l = −ε_l, ε_l = h_l − unit_{l−1}(h_{l−1}), a_0 = J_0ᵀ a_1.
  pc: {
    route: 'states',
    draw: () => ({}),
    move(network, tape, feedback, credits) {
      const errors = relaxed(network, tape, network.settings.inference);
      const size = tape.samples * network.d;
      for (let l = 1; l <= network.depth; l += 1) {
        for (let i = 0; i < size; i += 1) credits[l][i] = -errors[l][i];
      }
      network.blockBack(0, tape.moved, credits[1], { train: false, below: credits[0], back: (name) => network.values[name] });
    },
  },

  // A second pass on x + F e; a_l = h_l − h_l of that pass, whose readout learns from e.  F has entries N(0, σ²).
  pepita: {
    route: 'states',
    draw({ task }, random) {
      return { 0: normalMatrix(task.inputs, task.outputs, 0.1 * Math.sqrt(6 / task.inputs), random) };
    },
    move(network, tape, feedback, credits, train) {
      const { inputs, outputs } = network.task;
      const { samples, moved, error } = tape;
      const size = samples * network.d;
      network.forward(moved, tape.x, samples);
      const free = moved.h.map((h, l) => keptStates('free', l, h, size));
      const x = moved.scratch('inputs and error', samples * inputs);
      rowDots(error, feedback[0], x, samples, inputs, outputs);
      for (let i = 0; i < samples * inputs; i += 1) x[i] += tape.x[i];
      network.forward(moved, x, samples);
      for (let l = 0; l <= network.depth; l += 1) {
        for (let i = 0; i < size; i += 1) credits[l][i] = free[l][i] - moved.h[l][i];
      }
      moved.error.set(error);
      if (train) network.readoutBack(moved, moved.scratch('unused', size), true);
    },
  },

  frozen: { route: 'frozen', draw: () => ({}) },
};

function keptStates(purpose, l, h, size) {
  const kept = scratch(`${purpose} ${l}`, size, Float64Array);
  kept.set(h.subarray(0, size));
  return kept;
}

const INFERENCE_RATE = 0.2;

// ε_1 … ε_L after `steps` of h_l ← h_l − rate·∂E/∂h_l from the forward pass, all states at once; h_0 is fixed.  An error
// descends one block at each step.
function relaxed(network, tape, steps) {
  const { depth: top, d } = network;
  const { moved } = tape;
  const size = tape.samples * d;
  network.forward(moved, tape.x, tape.samples);
  const free = moved.h.map((h, l) => keptStates('free', l, h, size));
  const [moves, errors, slopes] = ['moves', 'errors', 'slopes'].map((name) => free.map((_, l) => moved.scratch(`${name} ${l}`, size).fill(0)));
  const out = moved.scratch('predicted', size);
  for (let step = 0; step < steps; step += 1) {
    const low = Math.max(1, top - step);
    network.readout(moved);
    network.loss(moved, tape.y);
    network.readoutBack(moved, slopes[top], false);
    for (let l = low; l < top; l += 1) {
      network.blockBack(l, moved, errors[l + 1], { train: false, below: slopes[l], back: (name) => network.values[name] });
      for (let i = 0; i < size; i += 1) slopes[l][i] = -slopes[l][i];
    }
    for (let l = low; l <= top; l += 1) {
      for (let i = 0; i < size; i += 1) {
        moves[l][i] -= INFERENCE_RATE * (slopes[l][i] + errors[l][i]);
        moved.h[l][i] = free[l][i] + moves[l][i];
      }
    }
    for (let l = low; l <= top; l += 1) {
      network.block(l - 1, moved, out);
      for (let i = 0; i < size; i += 1) errors[l][i] = moves[l][i] - (out[i] - free[l][i]);
    }
  }
  return errors;
}

// The same way back with matrices that have nothing to do with W: what a rule's cosine is by chance.  A skip connection
// hands part of the gradient on whatever the matrices are, so by layers that is far from 0.
function chanceOf(name, network, random) {
  const rule = { fa: RULES.fa, dfa: RULES.dfa, usf: RULES.kp, kp: RULES.kp, pepita: RULES.pepita }[name];
  return rule ? { rule, feedback: rule.draw(network, random) } : null;
}

// a_0 … a_L of the batch on the tape into `credits`; with `train`, the gradient of every parameter the rule trains.
function assign(network, tape, rule, feedback, credits, { train, normalise }) {
  const { depth } = network;
  const { route } = rule;
  network.readoutBack(tape, credits[depth], train);
  if (route === 'units') {
    rule.credits(network, tape, feedback, credits);
    if (train) trainUnits(network, tape, credits, normalise);
    return;
  }
  if (route === 'states') {
    rule.move(network, tape, feedback, credits, train);
    if (train) trainUnits(network, tape.moved, credits, false);
    return;
  }
  const matrices = route === 'layers' ? rule.back(network, feedback) : network.values;
  const back = (name) => matrices[name];
  for (let l = depth - 1; l >= 0; l -= 1) {
    network.blockBack(l, tape, credits[l + 1], { train: train && route === 'layers', below: credits[l], back });
  }
  if (train) network.embedBack(tape, credits[0]);
  if (route === 'frozen') for (let l = 1; l <= depth; l += 1) credits[l].fill(0);
}

// Every unit gets the gradient of ⟨its output, â_l⟩/N, with â = a/(RMS(a) + 1e-6) where credit is normalised.
function trainUnits(network, tape, credits, normalise) {
  const size = tape.samples * network.d;
  const back = (name) => network.values[name];
  const delivered = scratch('delivered', size);
  for (let l = 0; l <= network.depth; l += 1) {
    let divisor = 1;
    if (normalise) {
      let sum = 0;
      for (let i = 0; i < size; i += 1) sum += credits[l][i] ** 2;
      divisor = Math.sqrt(sum / size) + 1e-6;
    }
    for (let i = 0; i < size; i += 1) delivered[i] = credits[l][i] / divisor;
    if (l === 0) network.embedBack(tape, delivered);
    else network.blockBack(l - 1, tape, delivered, { train: true, below: null, back });
  }
}

// The parameters that a rule leaves as they were drawn.
const leaves = (rule, name) => rule.route === 'frozen' && name.startsWith('blocks.');
