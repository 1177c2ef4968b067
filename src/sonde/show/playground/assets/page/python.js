// The `sonde train` line for the network on the page, and in words whatever it cannot say.

const EPOCHS = 10;

// The nearest of Sonde's models, its options, and how it differs.
function modelOf(s) {
  const alpha = s.by_depth ? s.scale / Math.sqrt(s.depth) : s.scale;
  const differs = [];
  const unless = (same, words) => {
    if (!same) differs.push(words);
  };
  const unit = !s.skip || s.skip_scale === 1;
  if (s.block === 'one' && s.norm === 'none') {
    const name = s.skip ? 'res_mlp' : 'plain_mlp';
    const scale = s.by_depth && s.scale === 1 ? '1/sqrt(L)' : exactly(alpha);
    unless(s.activation === 'relu', `its activation is ReLU, here ${labelOf('activation', s.activation)}`);
    unless(unit, `its skip connection is not scaled, here by ${s.skip_scale}`);
    unless(!s.out_ln, 'it has no LayerNorm before the readout');
    return { name, options: scale === '1' ? {} : { weight_scale: scale }, differs };
  }
  if (s.block === 'student' && s.norm === 'none') {
    const named = s.activation === 'tanh' || s.activation === 'linear';
    unless(named, `its activation is tanh, here ${labelOf('activation', s.activation)}`);
    unless(s.skip && unit, 'it always has “+x”, unscaled');
    unless(!s.out_ln, 'it has no LayerNorm before the readout');
    unless(s.by_depth && s.scale === 1, 'its W₂ starts with α = 1/√L');
    return { name: 'student_net', options: s.activation === 'linear' ? { alpha: '0' } : {}, differs };
  }
  unless(s.block === 'two', `its blocks are ${labelOf('block', 'two')}, here ${labelOf('block', s.block)}`);
  unless(s.activation === 'gelu', `its activation is GELU, here ${labelOf('activation', s.activation)}`);
  unless(s.norm === 'pre', `its LayerNorm stands before the branch, here ${s.norm === 'post' ? 'after the addition' : 'there is none'}`);
  unless(unit, `its skip connection is not scaled, here by ${s.skip_scale}`);
  return {
    name: 'residual_mlp',
    options: { w2_std: exactly(alpha / Math.sqrt(s.width)), out_ln: s.out_ln, ...(s.skip ? {} : { residual: false }) },
    differs,
  };
}

// As few digits as say the number to a millionth.
const exactly = (value) => String(Number(value.toPrecision(7)));

// Tasks that Sonde has by name, with the options that make them the same as here.
const NAMED_TASKS = {
  identity: (s) => ({ d: s.width }),
  teacher: () => ({ inputs: 32, d: 32, samples: 4096, test_samples: 512 }),
  parity: () => ({ bits: 10, relevant: 3, samples: 1024, test_samples: 256 }),
};

// Tasks of the plane, as functions of a file.  The formulas are those of the engine; a test compares the samples.
const planeTask = (name, about, radius, angle, noise) => `"""${about}, one class each."""

import numpy as np


def ${name}(seed, samples=512, test_samples=256):
    rng = np.random.default_rng(seed)

    def draw(count):
        label = np.arange(count) % 2
        u = rng.uniform(size=count)
        radius, angle = ${radius}, ${angle}
        x = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
        return (x + ${noise} * rng.normal(size=x.shape)).astype(np.float32), label

    return *draw(samples), *draw(test_samples)
`;

const TASK_FILES = {
  rings: planeTask('rings', 'Two rings', '0.45 + 0.5 * label', '2 * np.pi * u', 0.06),
  spirals: planeTask('spirals', 'Two spirals', '0.1 + 0.95 * u', '3.5 * np.pi * u + np.pi * label', 0.03),
};

function optimiserOf(s) {
  if (s.optimiser === 'adam') return { name: s.decay ? 'adamw' : 'adam' };
  return { name: 'sgd', momentum: s.optimiser === 'momentum' ? 0.9 : 0 };
}

// The command, the file of the task where Sonde has no such task by name, and what differs.
function pythonOf(s) {
  const model = modelOf(s);
  const differs = model.differs.map((words) => `${model.name}: ${words}.`);
  const file = TASK_FILES[s.task] ? { name: `${s.task}.py`, text: TASK_FILES[s.task] } : null;
  const task = file ? `${file.name}:${s.task}` : s.task;
  if (s.optimiser !== 'adam' && s.decay) differs.push('SGD: weight decay is added to the gradient there; here it shrinks the weights directly.');
  const set = {
    ...prefixed('model', { d: s.width, L: s.depth, ...model.options }),
    ...(file ? {} : prefixed('task', NAMED_TASKS[s.task](s))),
    ...((s.rule === 'fa' || s.rule === 'dfa') && s.credit === 'none' ? { 'rule.credit_scale': 'none' } : {}),
    ...(s.rule === 'pc' ? { 'rule.steps': s.inference } : {}),
    ...(s.rule === 'usf' || s.rule === 'kp' ? { 'rule.credit_scale': 'none' } : {}),
    ...prefixed('optimiser', { ...optimiserOf(s), lr: s.rate, weight_decay: s.decay, schedule: 'constant' }),
    batch_size: s.batch,
  };
  const parts = [`sonde train --model ${model.name} --task ${task} --rule ${s.rule}`, `--seed ${s.seed}`, `--epochs ${EPOCHS}`];
  for (const [key, value] of Object.entries(set)) parts.push(`--set ${quoted(`${key}=${value}`)}`);
  return { line: wrapped(parts), file, differs };
}

const prefixed = (part, options) => Object.fromEntries(Object.entries(options).map(([key, value]) => [`${part}.${key}`, value]));

const quoted = (word) => (/^[\w.=+-]*$/.test(word) ? word : `'${word}'`);

// Shell lines of at most 72 signs, joined by backslashes.
function wrapped(parts) {
  const lines = [];
  for (const part of parts) {
    if (lines.length && lines.at(-1).length + part.length + 1 <= 70) lines[lines.length - 1] += ` ${part}`;
    else lines.push(lines.length ? `  ${part}` : part);
  }
  return lines.join(' \\\n');
}
