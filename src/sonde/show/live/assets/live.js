// The live page: it is sent what changed, and shows the status of the runs.

const live = { state: {}, source: null, at: null, states: [] };

// Words are announced where they change; the time of day is not.
const bar = element('p', { class: 'live', id: 'live' });
const words = element('span', { role: 'status' }, 'Connecting …');
const moment = element('span', {});
bar.append(words, moment);
document.querySelector('.bar .kicker').after(bar);

function tellStatus(lost) {
  const counted = live.states.map(([state, many]) => `${many} ${state}`).join(' · ') || 'no runs yet';
  const now = lost || [counted, live.state.trouble].filter(Boolean).join(' · ');
  bar.classList.toggle('lost', Boolean(lost));
  if (words.textContent !== now) words.textContent = now;
  moment.textContent = lost ? '' : ` · ${live.at.toLocaleTimeString()}`;
}

// See show/live/server.py.
function patched(old, [kind, ...how]) {
  if (kind === '=') return how[0];
  if (kind === '+') return old.slice(0, how[0]).concat(how[1]);
  if (kind === '[') {
    const whole = old.slice(0, how[1]).concat(how[2]);
    for (const [place, inner] of Object.entries(how[0])) whole[place] = patched(old[place], inner);
    return whole;
  }
  const whole = { ...old };
  for (const key of how[1]) delete whole[key];
  for (const [key, inner] of Object.entries(how[0])) whole[key] = patched(old[key], inner);
  return whole;
}

// Plugins that came after the page have colours, too.
function addColours(colours) {
  for (const [name, colour] of Object.entries(colours)) {
    if (!getComputedStyle(document.documentElement).getPropertyValue(`--colour-${name}`)) {
      document.documentElement.style.setProperty(`--colour-${name}`, colour);
    }
  }
}

// The page may write into what it is shown; the state stays as it was sent.
function take(state) {
  const { colours, states, trouble, ...parts } = state;
  const changed = Object.entries(parts).filter(([key, value]) => live.state[key] !== value);
  live.state = state;
  live.at = new Date();
  live.states = states;
  addColours(colours);
  document.querySelector('nav a[href="#watched"]').hidden = !state.watched.runs.length;
  show(structuredClone(Object.fromEntries(changed)));
  tellStatus();
}

function connect() {
  live.source = new EventSource('events');
  live.source.addEventListener('whole', (event) => take(JSON.parse(event.data)));
  live.source.addEventListener('patch', (event) => take(patched(live.state, JSON.parse(event.data))));
  live.source.addEventListener('open', () => live.at && tellStatus());
  live.source.addEventListener('error', () => {
    tellStatus(`Disconnected since ${new Date().toLocaleTimeString()}, retrying: what is shown is the last that was sent`);
    if (live.source.readyState !== EventSource.CLOSED) return;
    setTimeout(connect, 1000); // browsers give up after some answers
  });
}

connect();
