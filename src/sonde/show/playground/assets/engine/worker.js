// The worker: the page asks for a network and then for one frame after another; the worker answers each.

const BUDGET = 14; // milliseconds of training in a frame, however many steps were asked for, unless the page gives more
const FIELD_SIDE = 32;
const SELDOM = 150; // milliseconds between two evaluations, or two planes; more where they take long
const SHARE = 6; // at least so many times what the last one took

let trainer = null;
let run = null;
let evaluation = null;
let due = {}; // when evaluation and plane are next

function start(message) {
  run = message.run;
  trainer = new Trainer(message.settings);
  due = { evaluation: 0, field: 0 };
  const { task, theory } = trainer;
  const points = task.plane ? { x: task.train.x.slice(0, 2 * 256), y: task.train.y.slice(0, 256), edge: FIELD, side: FIELD_SIDE } : null;
  const sizes = { inputs: task.inputs, outputs: task.outputs, classifies: task.classifies, train: task.train.samples };
  postMessage({ kind: 'started', run, theory, points, sizes });
  postFrame([], false);
}

// `goes_on`: more steps will be asked for as soon as these are drawn, so what costs much may wait.
function train({ steps, budget = BUDGET, goes_on = false }) {
  const losses = [];
  const until = performance.now() + budget;
  for (let step = 0; step < steps && !trainer.diverged; step += 1) {
    losses.push(trainer.step());
    if (performance.now() > until) break;
  }
  postFrame(losses, goes_on && !trainer.diverged);
}

function postFrame(losses, may_wait) {
  const readings = trainer.measure();
  const input = trainer.oneInput();
  const field = trainer.task.plane ? seldom('field', may_wait, () => trainer.field(FIELD_SIDE)) : null;
  const evaluated = seldom('evaluation', may_wait, () => trainer.evaluate());
  evaluation = evaluated || evaluation;
  const whole = Boolean(evaluated && (field || !trainer.task.plane)); // nothing in it is of an earlier step
  postMessage({ kind: 'frame', run, step: trainer.optimiser.steps, losses, readings, input, field, evaluation, whole, diverged: trainer.diverged });
}

// While training goes on, what costs much is done when it is due.
function seldom(what, may_wait, make) {
  const begun = performance.now();
  if (may_wait && begun < due[what]) return null;
  const made = make();
  const ended = performance.now();
  due[what] = ended + Math.max(SELDOM, SHARE * (ended - begun));
  return made;
}

const ASKED = {
  start,
  train,
  exchange: ({ request }) => postMessage({ kind: 'exchanged', answer: exchange(request) }),
};

onmessage = ({ data }) => ASKED[data.kind](data);
