// A slider over epochs or steps with a button that plays them.  Where the reader did not move it, it stays at the end.

function makePlayer(prefix, key, word, onMove) {
  const [slider, button, output] = [byId(prefix), byId(`${prefix}-play`), byId(`${prefix}-said`)];
  const player = { values: [], of: null, playing: null };

  player.at = () => {
    const wanted = Number(chosen(key, NaN));
    return player.values.includes(wanted) ? wanted : player.values.at(-1) ?? 0;
  };

  player.stop = () => {
    clearTimeout(player.playing);
    player.playing = null;
    button.textContent = 'Play';
  };

  // New values, or another place among them.
  player.show = (values = player.values, of = player.of) => {
    Object.assign(player, { values, of });
    slider.max = String(Math.max(values.length - 1, 0));
    slider.disabled = values.length < 2;
    button.disabled = values.length < 2;
    const text = `${player.at()} of ${of}`;
    slider.value = String(values.indexOf(player.at()));
    slider.setAttribute('aria-valuetext', `${word} ${text}`);
    output.textContent = text;
  };

  player.move = (value) => {
    if (!player.values.includes(value)) return;
    choose(key, ...(value === player.values.at(-1) ? [] : [value]));
    player.show();
    onMove();
  };

  // All of it in about ten seconds; slower where the reader asked for less motion.
  const pause = () => {
    if (matchMedia('(prefers-reduced-motion: reduce)').matches) return 1000;
    return Math.max(80, Math.min(500, 10000 / player.values.length));
  };

  const step = () => {
    const next = player.values[player.values.indexOf(player.at()) + 1];
    if (next === undefined) {
      player.stop();
      return;
    }
    player.move(next);
    player.playing = setTimeout(step, pause());
  };

  const play = () => {
    if (player.at() === player.values.at(-1)) player.move(player.values[0]);
    button.textContent = 'Pause';
    player.playing = setTimeout(step, pause());
  };

  slider.addEventListener('input', () => {
    player.stop();
    player.move(player.values[Number(slider.value)]);
  });
  button.addEventListener('click', () => (player.playing === null ? play() : player.stop()));
  return player;
}
