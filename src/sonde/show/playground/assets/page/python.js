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

const SAME_TASK = {
  identity: (s) => ({ d: s.width }),
  teacher: () => ({ inputs: 32, d: 32, samples: 4096, test_samples: 512 }),
};

function pythonOf(s) {
  const model = modelOf(s);
  const differs = model.differs.map((words) => `${model.name}: ${words}.`);
  const task = s.task in SAME_TASK ? s.task : 'teacher';
  if (task !== s.task) differs.push(`The line trains on the teacher’s task, here on “${labelOf('task', s.task)}”.`);
  const known = { bp: 'bp', fa: 'fa', dfa: 'dfa', usf: 'usf', kp: 'kp', frozen: 'frozen' }[s.rule];
  if (!known) differs.push(`Sonde has no rule “${labelOf('rule', s.rule)}” by name: the line uses FA, whose feedback is random and stays; yours would be a rule of your own.`);
  if (s.optimiser !== 'adam') differs.push(`The line trains with Adam, here ${labelOf('optimiser', s.optimiser)}.`);
  const set = {
    ...prefixed('model', { d: s.width, L: s.depth, ...model.options }),
    ...prefixed('task', SAME_TASK[task](s)),
    ...((s.rule === 'fa' || s.rule === 'dfa') && s.credit === 'none' ? { 'rule.credit_scale': 'none' } : {}),
    ...(s.rule === 'usf' || s.rule === 'kp' ? { 'rule.credit_scale': 'none' } : {}),
    'optimiser.name': s.decay ? 'adamw' : 'adam',
    'optimiser.lr': s.rate,
    'optimiser.weight_decay': s.decay,
    'optimiser.schedule': 'constant',
    batch_size: s.batch,
  };
  const parts = [`sonde train --model ${model.name} --task ${task} --rule ${known || 'fa'}`, `--seed ${s.seed}`, `--epochs ${EPOCHS}`];
  for (const [key, value] of Object.entries(set)) parts.push(`--set ${quoted(`${key}=${value}`)}`);
  return { line: wrapped(parts), differs };
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
