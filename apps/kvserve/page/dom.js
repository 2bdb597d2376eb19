// Elements of the page, and how it writes numbers. Text of users and models becomes text nodes, never markup.

function set(node, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (name in node && name !== 'role')
      node[name] = value;
    else
      node.setAttribute(name, value);
  }
}

export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  set(node, properties);
  node.append(...children);
  return node;
}

export function drawing(tag, attributes = {}, ...children) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const kIcons = {
  file: 'M5 2.500h6.500L15.500 6.500v11H5zM11.500 2.500v4h4',
  pen: 'M4 16l.8-3.500L13 4.300l2.700 2.700-8.200 8.200z',
  bin: 'M4 6h12M8 6V4h4v2M5.500 6l.8 10.500h7.400L14.500 6',
  cross: 'M5.500 5.500l9 9M14.500 5.500l-9 9',
};

export function icon(name) {
  return drawing('svg', {viewBox: '0 0 20 20', 'aria-hidden': 'true'}, drawing('path', {d: kIcons[name]}));
}

export function iconButton(name, label, action) {
  const button = element(
      'button', {type: 'button', className: 'quiet icon', 'aria-label': label, title: label}, icon(name));
  button.addEventListener('click', action);
  return button;
}

const kWhole = new Intl.NumberFormat('en-US', {maximumFractionDigits: 0});

export function count(n, thing = '') {
  if (!thing) return kWhole.format(n);
  return `${kWhole.format(n)} ${thing}${n === 1 ? '' : 's'}`;
}

export function sentence(text) { return /[.!?…]$/.test(text) ? text : `${text}.`; }

// Three digits or so: 7.52, 34.1, 512.
export function digits(x) {
  if (x === 0) return '0';
  return x < 10 ? x.toFixed(2) : x < 100 ? x.toFixed(1) : kWhole.format(x);
}

export function bytes(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  for (; n >= 1024 && i + 1 < units.length; ++i) n /= 1024;
  return `${i === 0 ? count(n) : digits(n)} ${units[i]}`;
}

export function duration(s) {
  if (s < 10) return `${Math.max(0.1, s).toFixed(1)} s`;
  const whole = Math.round(s);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor(whole % 3600 / 60)} min`;
}
