// The worker: the page asks for a network and then for one frame after another; the worker answers each.

const BUDGET = 14; // milliseconds of training in a frame, however many steps were asked for, unless the page gives more
const FIELD_BUDGET = 6; // milliseconds of a frame for the plane; what is not done goes on in the next
const FIELD_SIDE = 40;
const EVALUATE_EVERY = 250; // milliseconds

let trainer = null;
let run = null;
let evaluation = null;
let evaluated = 0;
let fieldRow = 0;

function start(message) {
  run = message.run;
  trainer = new Trainer(message.settings);
  evaluated = 0;
  fieldRow = 0;
  const { task, theory } = trainer;
  const points = task.plane ? { x: task.train.x.slice(0, 2 * 256), y: task.train.y.slice(0, 256), edge: FIELD, side: FIELD_SIDE } : null;
  const sizes = { inputs: task.inputs, outputs: task.outputs, classifies: task.classifies, train: task.train.samples };
  postMessage({ kind: 'started', run, theory, points, sizes });
  postFrame([], true);
}

function train({ steps, budget = BUDGET }) {
  const losses = [];
  const until = performance.now() + budget;
  for (let step = 0; step < steps && !trainer.diverged; step += 1) {
    losses.push(trainer.step());
    if (performance.now() > until) break;
  }
  postFrame(losses, false);
}

function postFrame(losses, wholeField) {
  const readings = trainer.measure();
  const input = trainer.oneInput();
  const field = trainer.task.plane ? nextField(wholeField) : null;
  const now = performance.now();
  if (!losses.length || now - evaluated > EVALUATE_EVERY || trainer.diverged) {
    evaluation = { ...trainer.evaluate(), step: trainer.optimiser.steps };
    evaluated = now;
  }
  postMessage({ kind: 'frame', run, step: trainer.optimiser.steps, losses, readings, input, field, evaluation, diverged: trainer.diverged });
}

// The next rows of the plane, as many as there is time for, or all of them.
function nextField(whole) {
  const until = performance.now() + FIELD_BUDGET;
  const first = fieldRow;
  const chances = [];
  do {
    chances.push(...trainer.field(FIELD_SIDE, fieldRow, fieldRow + 1));
    fieldRow += 1;
  } while (fieldRow < FIELD_SIDE && (whole || performance.now() < until));
  if (fieldRow === FIELD_SIDE) fieldRow = 0;
  return { first, chances: Float32Array.from(chances) };
}

const ASKED = {
  start,
  train,
  exchange: ({ request }) => postMessage({ kind: 'exchanged', answer: exchange(request) }),
};

onmessage = ({ data }) => ASKED[data.kind](data);
