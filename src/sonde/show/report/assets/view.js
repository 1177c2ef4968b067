// What the reader has chosen and nothing else, in the address: a link shows the same view, new data keep it.
// Keys begin with the section they belong to, as in charts.recipe and sweep.x.

const view = new URLSearchParams();

const chosen = (key, otherwise) => view.get(key) ?? otherwise;

function choose(key, ...values) {
  view.delete(key);
  for (const value of values) view.append(key, String(value));
  remember(key.split('.')[0]);
}

function forget(...keys) {
  for (const key of keys) view.delete(key);
}

let remembering = null;

// A while after the last change: browsers refuse addresses that change many times a second.
function remember(section) {
  clearTimeout(remembering);
  remembering = setTimeout(() => history.replaceState(null, '', `#${section}?${view}`), 200);
}

// Takes the view out of the address; false where the address has none.
function readView() {
  const [section, words] = [location.hash.slice(1).split('?')[0], location.hash.split('?').slice(1).join('?')];
  if (!words) return false;
  forget(...view.keys());
  for (const [key, value] of new URLSearchParams(words)) view.append(key, value);
  byId(section)?.scrollIntoView({ behavior: 'instant' });
  return true;
}
