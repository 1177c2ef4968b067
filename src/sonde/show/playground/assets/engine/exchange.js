// A step on weights, feedback and samples from outside, as JSON: how the engine is compared with PyTorch.

const plain = (arrays) => Object.fromEntries(Object.entries(arrays).map(([name, values]) => [name, [...values]]));

function fillFrom(arrays, given) {
  for (const [name, values] of Object.entries(given)) {
    if (!(name in arrays) || arrays[name].length !== values.length) throw new Error(`${name} does not fit this network`);
    arrays[name].set(values);
  }
}

// Settings, sizes, weights, feedback, x, y → loss, output, states, gradients, credits, parameters' gradients, and
// what was drawn where nothing was given; after `steps` of the optimiser on that batch also the weights and feedback it ends with.
function exchange({ settings, sizes, weights = {}, feedback: given = {}, x, y, steps = 0 }) {
  const task = { ...sizes };
  const network = new Network(settings, task, settings.seed);
  fillFrom(network.values, weights);
  const rule = RULES[settings.rule];
  const feedback = rule.draw(network, randomOf(settings.seed, 'feedback'));
  fillFrom(feedback, given);
  const samples = x.length / sizes.inputs;
  const tape = new Tape(network, samples);
  const [gradients, credits] = [states(network, samples), states(network, samples)];
  const [inputs, targets] = [Float32Array.from(x), sizes.classifies ? Int32Array.from(y) : Float32Array.from(y)];
  const pass = () => {
    network.forward(tape, inputs, samples);
    const loss = network.loss(tape, targets);
    assign(network, tape, RULES.bp, {}, gradients, { train: false });
    assign(network, tape, rule, feedback, credits, { train: true, normalise: settings.credit === 'rms' });
    return loss;
  };
  const loss = pass();
  const trained = network.list.map(({ name }) => name).filter((name) => !leaves(rule, name));
  const answer = {
    loss,
    output: [...tape.output],
    states: tape.h.map((h) => [...h]),
    gradients: gradients.map((g) => [...g]),
    credits: credits.map((a) => [...a]),
    parameters: plain(Object.fromEntries(trained.map((name) => [name, network.grads[name]]))),
    shapes: Object.fromEntries(network.list.map(({ name, rows, columns, matrix }) => [name, matrix ? [rows, columns] : [rows]])),
    spread: network.spread,
    start: { weights: plain(network.values), feedback: plain(feedback) },
  };
  const optimiser = new Optimiser(network, settings, rule, feedback);
  for (let step = 0; step < steps; step += 1) {
    if (step) pass();
    optimiser.step();
  }
  return { ...answer, end: { weights: plain(network.values), feedback: plain(feedback) } };
}
