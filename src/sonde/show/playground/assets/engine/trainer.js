// One network in training: steps, readings by layer, accuracy, and the field of a two-dimensional task.

const PROBED = 64; // test samples on which layers are read

const states = (network, capacity) => Array.from({ length: network.depth + 1 }, () => new Float32Array(capacity * network.d));

class Trainer {
  constructor(settings) {
    this.settings = settings;
    this.task = taskOf(settings);
    this.network = new Network(settings, this.task, settings.seed);
    this.rule = RULES[settings.rule];
    this.feedback = this.rule.draw(this.network, randomOf(settings.seed, 'feedback'));
    this.optimiser = new Optimiser(this.network, settings, this.rule, this.feedback);
    this.batches = new Batches(this.task, settings.batch, settings.seed);
    const capacity = Math.max(settings.batch, PROBED);
    this.tape = new Tape(this.network, capacity);
    this.credits = states(this.network, capacity);
    this.gradients = states(this.network, PROBED);
    this.chance = chanceOf(settings.rule, this.network, randomOf(settings.seed, 'chance'));
    this.byChance = this.chance && states(this.network, PROBED);
    this.diverged = false;
    this.theory = this.expected();
  }

  // One step of training; the batch's loss before it.
  step() {
    const { network, tape, rule, feedback } = this;
    const { x, y, samples } = this.batches.next();
    network.forward(tape, x, samples);
    const loss = network.loss(tape, y);
    this.diverged = !Number.isFinite(loss);
    if (this.diverged) return loss;
    assign(network, tape, rule, feedback, this.credits, { train: true, normalise: this.settings.credit === 'rms' });
    this.optimiser.step();
    return loss;
  }

  // The probed samples on the tape, with g_0 … g_L and the rule's a_0 … a_L.
  probe() {
    const { network, tape, rule, feedback, task } = this;
    const samples = Math.min(PROBED, task.test.samples);
    network.forward(tape, task.test.x, samples);
    network.loss(tape, task.test.y);
    assign(network, tape, RULES.bp, {}, this.gradients, { train: false });
    if (rule !== RULES.bp) assign(network, tape, rule, feedback, this.credits, { train: false });
    if (this.chance) assign(network, tape, this.chance.rule, this.chance.feedback, this.byChance, { train: false });
    return samples;
  }

  measure() {
    const { network, tape, gradients, optimiser } = this;
    const { d } = network;
    const samples = this.probe();
    const credits = this.rule === RULES.bp ? gradients : this.credits;
    const layers = Array.from({ length: network.depth + 1 }, (_, l) => l);
    const byLayer = (reading) => layers.map(reading);
    return {
      samples,
      signal: byLayer((l) => rootMeanSquare(tape.h[l], samples, d, true)),
      spread: byLayer((l) => rootMeanVariance(tape.h[l], samples, d)),
      gradient: byLayer((l) => rootMeanSquare(gradients[l], samples, d, false)),
      credit: byLayer((l) => rootMeanSquare(credits[l], samples, d, false)),
      cosine: byLayer((l) => meanCosine(credits[l], gradients[l], samples, d)),
      chance: this.chance && byLayer((l) => meanCosine(this.byChance[l], gradients[l], samples, d)),
      update: byLayer((l) => updateRatio(network, optimiser, l)),
    };
  }

  // The theory's lines, from the moments of h_0 and the gradient that the readout hands to h_L.
  expected() {
    const samples = this.probe();
    const { d, depth, ends } = this.network;
    const h = this.tape.h[0].subarray(0, samples * d);
    const mean = (of) => h.reduce((sum, value) => sum + of(value), 0) / h.length;
    const [q, m] = ends ? [mean((value) => value * value), mean((value) => value)] : [1 / 3, 0]; // of U(−1, 1)
    const top = rootMeanSquare(this.gradients[depth], samples, d, false).value;
    return theoryOf(this.settings, { q, m, top, parts: alongStream(this.gradients[depth], this.tape.h[depth], samples, d) });
  }

  // One test sample on its way up: h_0 … h_L of sample 0, as probed last.
  oneInput() {
    const { d, depth } = this.network;
    const rows = new Float32Array((depth + 1) * d);
    for (let l = 0; l <= depth; l += 1) rows.set(this.tape.h[l].subarray(0, d), l * d);
    return rows;
  }

  // Mean loss over all test samples and, of classes, the share that is right.
  evaluate() {
    const { network, tape, task } = this;
    const { test, inputs, outputs } = task;
    let loss = 0;
    let right = 0;
    for (let first = 0; first < test.samples; first += tape.capacity) {
      const samples = Math.min(tape.capacity, test.samples - first);
      network.forward(tape, test.x.subarray(first * inputs), samples);
      const y = test.y.subarray(task.classifies ? first : first * outputs);
      loss += (network.loss(tape, y) * samples) / test.samples;
      if (!task.classifies) continue;
      for (let n = 0; n < samples; n += 1) right += largest(tape.output, n * outputs, outputs) === y[n] ? 1 : 0;
    }
    return { loss, accuracy: task.classifies ? right / test.samples : null, samples: test.samples };
  }

  // The probability of class 1 at side × side points of the plane, row by row from the top.
  field(side) {
    const { network, tape } = this;
    const chances = new Float32Array(side * side);
    const x = scratch('field', tape.capacity * 2);
    for (let first = 0; first < chances.length; first += tape.capacity) {
      const samples = Math.min(tape.capacity, chances.length - first);
      for (let n = 0; n < samples; n += 1) {
        x[2 * n] = FIELD * ((2 * (((first + n) % side) + 0.5)) / side - 1);
        x[2 * n + 1] = FIELD * (1 - (2 * (Math.floor((first + n) / side) + 0.5)) / side);
      }
      network.forward(tape, x, samples);
      for (let n = 0; n < samples; n += 1) chances[first + n] = 1 / (1 + Math.exp(tape.output[2 * n] - tape.output[2 * n + 1]));
    }
    return chances;
  }
}
