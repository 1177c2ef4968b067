// One network in training: its worker, and what the worker answered last.

class Session {
  // `onStarted` and `onFrame` are called with this session.
  constructor({ onStarted, onFrame }) {
    this.engine = new Worker(URL.createObjectURL(new Blob([byId('engine').textContent], { type: 'text/javascript' })));
    this.engine.onmessage = ({ data }) => {
      if (data.run !== this.run) return;
      if (data.kind === 'started') this.started(data);
      else this.arrived(data);
    };
    this.onStarted = onStarted;
    this.onFrame = onFrame;
    this.run = 0;
    this.asked = false; // whether the worker has something to do
    this.settings = null;
    this.state = null; // of this run: theory, points, sizes, its first and last frame, history, field
  }

  get frame() {
    return this.state?.frame || null;
  }

  get step() {
    return this.frame ? this.frame.step : 0;
  }

  // Whether it can be asked for steps.
  get ready() {
    return !this.asked && Boolean(this.frame) && !this.frame.diverged;
  }

  begin(settings) {
    this.run += 1;
    this.settings = settings;
    this.state = null;
    this.asked = true;
    this.engine.postMessage({ kind: 'start', run: this.run, settings });
  }

  // `goes_on`: more steps will be asked for as soon as these are drawn.
  train(steps, goes_on = false) {
    this.asked = true;
    this.engine.postMessage({ kind: 'train', steps, goes_on });
  }

  // Where training rests, test loss and plane are those of the step that is shown.
  makeWhole() {
    if (!this.asked && this.frame && !this.frame.whole) this.train(0);
  }

  started({ theory, points, sizes }) {
    const trivial = sizes.classifies ? Math.log(sizes.outputs) : 1 / 3;
    this.state = { theory, points, sizes: { ...sizes, trivial }, first: null, frame: null, history: new History(), field: null };
    this.onStarted(this);
  }

  arrived(frame) {
    this.asked = false;
    this.state.frame = frame;
    this.state.first ||= frame;
    frame.losses.forEach((loss, i) => this.state.history.add(frame.step - frame.losses.length + i + 1, loss));
    this.state.field = frame.field || this.state.field;
    this.onFrame(this);
  }

  end() {
    this.engine.terminate();
  }
}
