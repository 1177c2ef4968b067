// The form: one field for every setting, made from the table.

function fieldOf(control, onChange) {
  const id = `set-${control.key}`;
  const input = inputOf(control, id);
  const output = element('output', { for: id });
  const text = element('span', {}, control.label);
  const label = element('label', { for: id, class: control.kind }, ...(control.kind === 'check' ? [input, text] : [text, output, input]));
  input.addEventListener(control.kind === 'number' ? 'change' : 'input', () => {
    const value = valueOf(control, input);
    if (value !== undefined) onChange(control.key, value);
  });
  return { control, label, input, output };
}

function inputOf(control, id) {
  if (control.kind === 'select') return element('select', { id }, ...control.options.map(([value, words]) => element('option', { value }, words)));
  if (control.kind === 'check') return element('input', { id, type: 'checkbox' });
  if (control.kind === 'steps') return element('input', { id, type: 'range', min: 0, max: control.values.length - 1, step: 1 });
  const { least, most, step = 1 } = control;
  return element('input', { id, type: control.kind, min: least, max: most, step });
}

function valueOf(control, input) {
  if (control.kind === 'check') return input.checked;
  if (control.kind === 'steps') return control.values[Number(input.value)];
  return parsed(control, input.value);
}

function showField({ control, label, input, output }, settings) {
  const value = settings[control.key];
  if (control.kind === 'check') input.checked = value;
  else if (control.kind === 'steps') input.value = control.values.indexOf(value);
  else input.value = value;
  if (control.kind === 'range' || control.kind === 'steps') {
    output.textContent = shortly(value);
    input.setAttribute('aria-valuetext', shortly(value));
  }
  label.hidden = Boolean(control.when && !control.when(settings));
}

function makeForm(form, onChange) {
  const fields = [];
  let group = null;
  for (const control of CONTROLS) {
    if (control.group) {
      group = element('fieldset', {}, element('legend', {}, control.group));
      form.append(group);
    } else {
      const field = fieldOf(control, onChange);
      fields.push(field);
      group.append(field.label);
    }
  }
  return fields;
}
