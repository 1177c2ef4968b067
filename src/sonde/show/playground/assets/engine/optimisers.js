// Optimisers as PyTorch defines them, with decay decoupled from the gradient: w ← (1 − ηλ)w + stride.

const MOMENTUM = 0.9;
const BETAS = [0.9, 0.999];
const ADAM_EPSILON = 1e-8;

// Each writes its stride; `kept` are the arrays it remembers.
const OPTIMISERS = {
  sgd: {
    remembers: 0,
    stride(g, kept, stride, rate) {
      for (let i = 0; i < g.length; i += 1) stride[i] = -rate * g[i];
    },
  },
  momentum: {
    remembers: 1,
    stride(g, [pace], stride, rate) {
      for (let i = 0; i < g.length; i += 1) {
        pace[i] = MOMENTUM * pace[i] + g[i];
        stride[i] = -rate * pace[i];
      }
    },
  },
  adam: {
    remembers: 2,
    stride(g, [first, second], stride, rate, steps) {
      const scale = -rate / (1 - BETAS[0] ** steps);
      const correct = Math.sqrt(1 - BETAS[1] ** steps);
      for (let i = 0; i < g.length; i += 1) {
        first[i] = BETAS[0] * first[i] + (1 - BETAS[0]) * g[i];
        second[i] = BETAS[1] * second[i] + (1 - BETAS[1]) * g[i] * g[i];
        stride[i] = (scale * first[i]) / (Math.sqrt(second[i]) / correct + ADAM_EPSILON);
      }
    },
  },
};

class Optimiser {
  constructor(network, settings, rule, feedback) {
    this.network = network;
    this.kind = OPTIMISERS[settings.optimiser];
    this.rate = settings.rate;
    this.decay = settings.decay;
    this.trained = network.list.map(({ name }) => name).filter((name) => !leaves(rule, name));
    this.followers = rule.follows ? feedback : {};
    this.kept = Object.fromEntries(this.trained.map((name) => [
      name, Array.from({ length: this.kind.remembers }, () => new Float32Array(network.values[name].length))]));
    this.steps = 0;
    this.moved = {}; // of every parameter in the last step: ‖Δw‖² and ‖w‖² before it
  }

  step() {
    this.steps += 1;
    for (const name of this.trained) this.moved[name] = this.move(name);
  }

  move(name) {
    const weight = this.network.values[name];
    const follower = this.followers[name];
    const stride = scratch('stride', weight.length);
    this.kind.stride(this.network.grads[name], this.kept[name], stride, this.rate, this.steps);
    const keep = 1 - this.rate * this.decay;
    let change = 0;
    let size = 0;
    for (let i = 0; i < weight.length; i += 1) {
      const before = weight[i];
      weight[i] = keep * before + stride[i];
      change += (weight[i] - before) ** 2;
      size += before * before;
    }
    if (follower) for (let i = 0; i < weight.length; i += 1) follower[i] = keep * follower[i] + stride[i];
    return { change, size };
  }
}
