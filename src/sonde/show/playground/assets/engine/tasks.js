// What there is to learn.  A task says its sizes, and draws x (samples × inputs) and y from a random stream.

const FIELD = 1.25; // the plane of the two-dimensional tasks is [−FIELD, FIELD]²
const PARITY_OF = 3; // bits that count, the others are distraction
const TEACHER_LAYERS = 4;

function plane(samples, random, noise, point) {
  const x = new Float32Array(samples * 2);
  const y = new Int32Array(samples);
  for (let n = 0; n < samples; n += 1) {
    y[n] = n % 2;
    const [across, up] = point(y[n], random.uniform());
    x[2 * n] = across + noise * random.normal();
    x[2 * n + 1] = up + noise * random.normal();
  }
  return { x, y };
}

const polar = (radius, angle) => [radius * Math.cos(angle), radius * Math.sin(angle)];

// Labels of a random residual network like `student`: h_0 = W_e x, h_{l+1} = h_l + W₂ tanh(W₁ h_l), argmax W_h h_L.
function teacherLabels(x, samples, { inputs, outputs }, d, seed) {
  const random = randomOf(seed, 'teacher');
  const uniform = (rows, columns) => Float32Array.from({ length: rows * columns }, () => (2 * random.uniform() - 1) / Math.sqrt(columns));
  let h = new Float32Array(samples * d);
  rowDots(x, uniform(d, inputs), h, samples, d, inputs);
  for (let l = 0; l < TEACHER_LAYERS; l += 1) {
    const z = new Float32Array(samples * d);
    const f = new Float32Array(samples * d);
    rowDots(h, normalMatrix(d, d, 1 / Math.sqrt(d), random), z, samples, d, d);
    rowDots(z.map(Math.tanh), normalMatrix(d, d, 1 / Math.sqrt(d * TEACHER_LAYERS), random), f, samples, d, d);
    h = h.map((value, i) => value + f[i]);
  }
  const logits = new Float32Array(samples * outputs);
  rowDots(h, uniform(outputs, d), logits, samples, outputs, d);
  return Int32Array.from({ length: samples }, (_, n) => largest(logits, n * outputs, outputs));
}

function largest(values, from, count) {
  let best = 0;
  for (let c = 1; c < count; c += 1) if (values[from + c] > values[from + best]) best = c;
  return best;
}

const flat = { inputs: () => 2, outputs: () => 2, classifies: true, train: 512, test: 256, plane: true };

const TASKS = {
  identity: {
    inputs: (d) => d,
    outputs: (d) => d,
    classifies: false,
    train: 1024,
    test: 256,
    draw(samples, random, { inputs }) {
      const x = Float32Array.from({ length: samples * inputs }, () => 2 * random.uniform() - 1);
      return { x, y: x };
    },
  },
  rings: {
    ...flat,
    draw: (samples, random) => plane(samples, random, 0.06, (label, u) => polar(label ? 0.95 : 0.45, 2 * Math.PI * u)),
  },
  spirals: {
    ...flat,
    draw: (samples, random) => plane(samples, random, 0.03, (label, u) => polar(0.1 + 0.95 * u, 3.5 * Math.PI * u + label * Math.PI)),
  },
  teacher: {
    inputs: () => 32,
    outputs: () => 10,
    classifies: true,
    train: 4096,
    test: 512,
    draw(samples, random, sizes, seed) {
      const x = Float32Array.from({ length: samples * sizes.inputs }, random.normal);
      return { x, y: teacherLabels(x, samples, sizes, 32, seed) };
    },
  },
  parity: {
    inputs: () => 10,
    outputs: () => 2,
    classifies: true,
    train: 1024,
    test: 256,
    draw(samples, random, { inputs }) {
      const x = Float32Array.from({ length: samples * inputs }, () => (random.uniform() < 0.5 ? -1 : 1));
      const y = Int32Array.from({ length: samples }, (_, n) => {
        const ones = x.subarray(n * inputs, n * inputs + PARITY_OF).filter((bit) => bit > 0);
        return ones.length % 2;
      });
      return { x, y };
    },
  },
};

// A task's sizes for this width, its samples for training and, drawn apart, for testing.
function taskOf(settings) {
  const kind = TASKS[settings.task];
  const sizes = { inputs: kind.inputs(settings.width), outputs: kind.outputs(settings.width), classifies: kind.classifies };
  const draw = (samples, name) => ({ samples, ...kind.draw(samples, randomOf(settings.seed, `task/${name}`), sizes, settings.seed) });
  return { ...sizes, plane: kind.plane === true, train: draw(kind.train, 'train'), test: draw(kind.test, 'test') };
}

// Batches: of a regression drawn with replacement, of classes a pass over all samples in a new order.
class Batches {
  constructor(task, size, seed) {
    this.task = task;
    this.size = size;
    this.random = randomOf(seed, 'order');
    this.order = new Int32Array(0);
    this.place = 0;
    this.x = new Float32Array(size * task.inputs);
    this.y = task.classifies ? new Int32Array(size) : this.x;
  }

  next() {
    const { task, size } = this;
    const { train, inputs } = task;
    if (this.place >= this.order.length) {
      this.order = shuffled(train.samples, this.random);
      this.place = 0;
    }
    let samples = size;
    if (task.classifies) samples = Math.min(size, this.order.length - this.place);
    for (let n = 0; n < samples; n += 1) {
      const chosen = task.classifies ? this.order[this.place + n] : this.random.below(train.samples);
      this.x.set(train.x.subarray(chosen * inputs, (chosen + 1) * inputs), n * inputs);
      if (task.classifies) this.y[n] = train.y[chosen];
    }
    this.place += samples;
    return { x: this.x, y: this.y, samples };
  }
}
