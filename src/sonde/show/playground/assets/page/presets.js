// Examples, each explained in two sentences.  Tests check the numbers behind every claim.

const dfaHidden = { depth: 8, block: 'two', activation: 'gelu', skip: true, norm: 'pre', out_ln: true, scale: 0.1, rule: 'dfa', task: 'teacher', rate: 0.003 };

const PRESETS = [
  {
    name: 'plain',
    chip: '20 plain layers',
    title: '20 plain layers do not learn',
    why: 'Each layer multiplies the signal by α = 1/√20, so less than a billionth of it is left at layer 20, and the gradient shrinks as fast on its way back. The first layers receive no usable gradient: the loss stays at 1/3, that of answering zero.',
    settings: { by_depth: true },
  },
  {
    name: 'skip',
    chip: '+ x',
    title: 'With “+x” they learn',
    why: 'The weights are the same, but each layer adds to its input instead of replacing it, so one path multiplies nothing. Signal and gradient reach every layer, and the loss falls below half of the loss of answering zero.',
    settings: { by_depth: true, skip: true },
  },
  {
    name: 'raw',
    chip: 'Raw weights',
    title: 'Raw weights explode',
    why: 'Each of fifty blocks adds a branch as large as the stream, which grows by more than √2 per layer because ReLU branches have a positive mean. The first loss is above 10¹⁶, and the gradient grows as fast on its way back.',
    settings: { depth: 50, skip: true },
  },
  {
    name: 'scaled',
    chip: '1/√L',
    title: '1/√L keeps the scale',
    why: 'The same fifty blocks with weights divided by √50 each add a fiftieth of the variance, and the remaining growth comes from the positive mean of ReLU branches. The stream starts below a hundred times its input, and training brings the loss below 1/3, that of answering zero.',
    settings: { depth: 50, skip: true, by_depth: true },
  },
  {
    name: 'post',
    chip: 'Post-LN',
    title: 'Post-LN needs a small learning rate',
    why: 'LayerNorm after each addition rescales the skip path at every layer, so a large step disturbs all layers above: at a learning rate of 0.01 the loss stays near ln 2, that of guessing. With 0.001 it learns the spirals, and with LayerNorm set to “pre” it learns at 0.01 too.',
    settings: { skip: true, norm: 'post', task: 'spirals', rate: 0.01 },
  },
  {
    name: 'hidden',
    chip: 'DFA under LayerNorm',
    title: 'DFA makes the stream grow, LayerNorm hides it',
    why: 'DFA pushes each block in the same direction at every step, and the stream grows more than fifty-fold. The LayerNorm before the readout divides by that growth, so the loss falls as usual while the BP gradient at the top shrinks more than twenty-fold.',
    settings: dfaHidden,
  },
  {
    name: 'aligning',
    chip: 'FA aligning',
    title: 'FA aligns',
    why: 'The feedback matrices are random and fixed, so at first the cosine of the credit with the gradient is near zero below the top. Then it rises: the forward weights align with the feedback, and the credit becomes useful.',
    settings: { depth: 3, rule: 'fa', task: 'teacher', rate: 0.003 },
  },
  {
    name: 'pollack',
    chip: 'Kolen–Pollack',
    title: 'Kolen–Pollack converges to BP',
    why: 'Forward and backward matrices start different but receive the same updates and the same weight decay, so their difference shrinks to zero. The cosine rises towards 1 at every layer: the rule becomes backprop without copying a weight.',
    settings: { depth: 4, activation: 'tanh', rule: 'kp', task: 'teacher', rate: 0.003, decay: 1 },
  },
].map((preset) => ({ ...preset, settings: { ...defaults(), ...preset.settings } }));

// The preset that these settings are, whatever the seed and the pace.
const presetOf = (settings) => PRESETS.find((preset) => SETTINGS.every(({ key }) => key === 'seed' || key === 'pace' || preset.settings[key] === settings[key]));
