// Networks worth seeing, each with the reason in two sentences.  Tests hold the numbers behind every claim.

const dfaHidden = { depth: 8, block: 'two', activation: 'gelu', skip: true, norm: 'pre', out_ln: true, scale: 0.1, rule: 'dfa', task: 'teacher', rate: 0.003 };

const PRESETS = [
  {
    name: 'plain',
    chip: '20 plain layers',
    title: '20 plain layers die',
    why: 'Each layer multiplies the signal by α = 1/√20, so at layer 20 less than a billionth of it is left, and the gradient fades as fast on its way back. The first layers never hear of the error: the loss stays at 1/3, that of answering zero.',
    settings: { by_depth: true },
  },
  {
    name: 'skip',
    chip: '+ x',
    title: '“+x” saves them',
    why: 'The same weights, but each layer adds to its input instead of replacing it: there is always a path on which nothing is multiplied away. Signal and gradient now arrive at every layer, and the loss falls below half of what answering zero costs.',
    settings: { by_depth: true, skip: true },
  },
  {
    name: 'raw',
    chip: 'Raw weights',
    title: 'Raw weights explode',
    why: 'Fifty blocks that each add a branch as large as the stream: it grows by more than √2 a layer, because ReLU branches have a positive mean and so agree with each other. The first loss is above 10¹⁶, and the gradient grows as fast on its way back.',
    settings: { depth: 50, skip: true },
  },
  {
    name: 'scaled',
    chip: '1/√L',
    title: '1/√L tames them',
    why: 'The same fifty blocks with weights divided by √50: each adds a fiftieth of the variance it added before, and what growth is left comes from the positive mean of ReLU branches. The stream starts below a hundred times its input, and training brings the loss below 1/3, that of answering zero.',
    settings: { depth: 50, skip: true, by_depth: true },
  },
  {
    name: 'post',
    chip: 'Post-LN',
    title: 'Post-LN wants a small rate',
    why: 'LayerNorm after each addition rescales the path of “+x” at every layer, so a step that is too large upsets all that stands above: at a rate of 0.01 the loss stays near chance, ln 2. Choose 0.001 and it learns the spirals, or set LayerNorm to “pre”: then it learns at this very rate.',
    settings: { skip: true, norm: 'post', task: 'spirals', rate: 0.01 },
  },
  {
    name: 'hidden',
    chip: 'DFA under LayerNorm',
    title: 'DFA blows up, LayerNorm hides it',
    why: 'DFA asks each block for more of the same direction at every step, and nothing tells it to stop: the stream grows more than fifty-fold. The LayerNorm before the readout divides that growth away, so the loss falls as if all were well, while the BP gradient at the top shrinks more than twenty-fold.',
    settings: dfaHidden,
  },
  {
    name: 'aligning',
    chip: 'FA aligning',
    title: 'FA aligns',
    why: 'The feedback matrices are random and never change, so at first the credit has nothing to do with the gradient: its cosine is near zero below the top. Watch it rise: the forward weights learn to agree with the feedback, and then the credit is good enough to learn from.',
    settings: { depth: 3, rule: 'fa', task: 'teacher', rate: 0.003 },
  },
  {
    name: 'pollack',
    chip: 'Kolen–Pollack',
    title: 'Kolen–Pollack finds BP',
    why: 'Forward and backward matrices start apart but take the same steps and forget at the same rate, so that what they differ in fades away. The cosine climbs towards 1 at every layer: backprop, without ever copying a weight.',
    settings: { depth: 4, activation: 'tanh', rule: 'kp', task: 'teacher', rate: 0.003, decay: 1 },
  },
].map((preset) => ({ ...preset, settings: { ...defaults(), ...preset.settings } }));

// The preset that these settings are, whatever the seed and the pace.
const presetOf = (settings) => PRESETS.find((preset) => SETTINGS.every(({ key }) => key === 'seed' || key === 'pace' || preset.settings[key] === settings[key]));
