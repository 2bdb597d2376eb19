// The live picture of what memory and flash do, from GET /status, while the page can be seen.
import {status} from './api.js';
import {bytes, count, digits, drawing, element, sentence} from './dom.js';

const kMinute_ms = 60000;
const kPartColours = 8;
const kMostSessions = 8;

// The last minute of one figure. What is not known leaves a gap.
class Sparkline {
  constructor(name, words, least_top) {
    this.name = name;
    this.words = words;
    this.least_top = least_top;
    this.samples = [];
    this.area = drawing('path', {class: 'area'});
    this.line = drawing('path', {class: 'line'});
    this.svg = drawing(
        'svg', {viewBox: '0 0 120 32', preserveAspectRatio: 'none', role: 'img'}, this.area, this.line);
    this.value = element('span', {className: 'value'});
    this.node = element(
        'div', {className: 'spark'}, element('p', {}, element('span', {}, name), this.value), this.svg);
  }

  add(value, now_ms) {
    this.samples.push({value, now_ms});
    this.samples = this.samples.filter((sample) => sample.now_ms > now_ms - kMinute_ms);
    const known = this.samples.map((sample) => sample.value).filter((one) => one !== null);
    this.value.textContent = value === null ? '–' : this.words(value);
    this.svg.setAttribute(
        'aria-label',
        known.length === 0 ? `${this.name}: nothing in the last minute` :
                             `${this.name} in the last minute: ${this.words(Math.min(...known))} to ${
                                 this.words(Math.max(...known))}`);
    this.draw(Math.max(this.least_top, ...known), now_ms);
  }

  draw(top, now_ms) {
    let line = '';
    let area = '';
    let start = null;
    let x = 0;
    let before_ms = 0;
    const close = () => {
      if (start !== null) area += `V31H${start}Z`;
      start = null;
    };
    for (const {value, now_ms: then_ms} of this.samples) {
      if (value === null || then_ms - before_ms > 5000) close();
      before_ms = then_ms;
      if (value === null) continue;
      x = (120 * (1 - (now_ms - then_ms) / kMinute_ms)).toFixed(1);
      const y = (30 - 28 * value / top).toFixed(1);
      line += `${start === null ? 'M' : 'L'}${x} ${y}`;
      area += start === null ? `M${x} 31V${y}` : `L${x} ${y}`;
      start ??= x;
    }
    close();
    this.line.setAttribute('d', line);
    this.area.setAttribute('d', area);
  }
}

function figure(name) {
  const value = element('dd');
  return {value, node: element('div', {}, element('dt', {}, name), value)};
}

function requestWords({state, prompt_tokens, read_tokens, cached_tokens, answer_tokens}) {
  if (state === 'queued') return 'waits for its turn';
  if (state === 'reading') {
    const cached = cached_tokens > 0 ? `, ${count(cached_tokens)} known` : '';
    return `reads ${count(read_tokens)} of ${count(prompt_tokens)}${cached}`;
  }
  return `answers: ${count(answer_tokens, 'token')}`;
}

export class MemoryPicture {
  constructor(root) {
    this.colours = new Map();  // of parts, by name: a part keeps its colour
    this.trouble = element('p', {className: 'trouble', hidden: true});
    this.total = element('p', {className: 'total'});
    this.bar = element('div', {className: 'budget', role: 'img'});
    this.legend = element('ul', {className: 'legend', 'aria-label': 'Parts of the budget'});
    this.hits = new Sparkline('Hits: found in memory', (rate) => `${digits(100 * rate)} %`, 1);
    this.stalls = new Sparkline('Stalls: wait for flash per token', (ms) => `${digits(ms)} ms`, 1);
    this.read = figure('Read');
    this.written = figure('Written');
    this.speed = figure('Speed');
    this.requests = element('ul', {className: 'lines', 'aria-label': 'Requests'});
    this.sessions = element('ul', {className: 'lines parked', 'aria-label': 'Conversations parked on flash'});
    this.parked = element('p', {className: 'fine'});
    this.busy = element('p', {className: 'fine'});
    this.body = element(
        'div', {className: 'figures', hidden: true}, this.total, this.bar, this.legend,
        element('h3', {}, 'The last minute'), this.hits.node, this.stalls.node, element('h3', {}, 'Flash'),
        element('dl', {}, this.read.node, this.written.node, this.speed.node),
        element('h3', {}, 'Parked on flash'), this.parked, this.sessions, element('h3', {}, 'Requests'),
        this.busy, this.requests);
    root.append(element('h2', {}, 'Memory and flash'), this.trouble, this.body);
  }

  show(now) {
    this.trouble.hidden = true;
    this.body.hidden = false;
    this.body.classList.remove('old');
    this.showBudget(now);
    const time_ms = performance.now();
    this.hits.add(now.hit_rate ?? null, time_ms);
    this.stalls.add(now.stall_ms_per_token ?? null, time_ms);
    this.read.value.textContent = bytes(now.read_bytes);
    this.written.value.textContent = bytes(now.written_bytes);
    this.speed.value.textContent = (now.read_mbps ?? null) === null ? '–' : `${digits(now.read_mbps)} MB/s`;
    this.showSessions(now.sessions ?? []);
    this.showRequests(now);
  }

  // What was known stays, pale.
  fail(error) {
    this.trouble.hidden = false;
    this.trouble.textContent = error.status === 401 ?
        'The figures come when the server has its key.' :
        `No figures now: ${sentence(error.message)} The conversation does not need them.`;
    this.body.classList.add('old');
  }

  colour(name) {
    if (!this.colours.has(name)) this.colours.set(name, `part-${this.colours.size % kPartColours}`);
    return this.colours.get(name);
  }

  showBudget({parts = [], budget_bytes, process_bytes}) {
    const used = parts.reduce((sum, part) => sum + part.bytes, 0);
    const whole = Math.max(used, budget_bytes ?? 0, 1);
    // Between requests nothing is open, and so nothing has a budget.
    const unlimited = used > 0 ? ' in use, without a limit' : ' in use';
    const of = (budget_bytes ?? null) === null ? unlimited : ` of ${bytes(budget_bytes)} in use`;
    this.total.replaceChildren(element('strong', {}, bytes(used)), of);
    this.bar.setAttribute(
        'aria-label',
        `${bytes(used)}${of}: ` + parts.map((part) => `${part.name} ${bytes(part.bytes)}`).join(', '));
    this.bar.replaceChildren(...parts.filter((part) => part.bytes > 0).map((part) => {
      const piece = element('span', {className: this.colour(part.name)});
      piece.style.width = `${100 * part.bytes / whole}%`;
      return piece;
    }));
    this.legend.replaceChildren(
        ...parts.map(
            (part) => element(
                'li', {}, element('span', {className: `swatch ${this.colour(part.name)}`}),
                element('span', {className: 'name'}, part.name),
                element('span', {className: 'value'}, bytes(part.bytes)))),
        element(
            'li', {className: 'process'}, element('span', {className: 'swatch'}),
            element('span', {className: 'name'}, 'the whole process'),
            element('span', {className: 'value'}, bytes(process_bytes))));
  }

  showSessions(sessions) {
    const sum = sessions.reduce((total, session) => total + session.bytes, 0);
    this.parked.textContent =
        sessions.length === 0 ? 'Nothing yet.' : `${count(sessions.length, 'conversation')}, ${bytes(sum)}`;
    this.sessions.replaceChildren(
        ...sessions.slice(0, kMostSessions)
            .map(
                (session) => element(
                    'li', {}, element('span', {className: 'name'}, session.name),
                    element(
                        'span', {className: 'fine'},
                        `${count(session.tokens, 'token')}, ${bytes(session.bytes)}`))));
    if (sessions.length > kMostSessions) {
      this.sessions.append(element('li', {}, `and ${sessions.length - kMostSessions} more`));
    }
  }

  showRequests({requests = [], n_queued = 0, decode_tps = null}) {
    const words = [];
    if (decode_tps !== null) words.push(`${digits(decode_tps)} tokens/s`);
    if (n_queued > 0) words.push(`${n_queued} in the queue`);
    this.busy.textContent = words.join(' · ');
    this.busy.hidden = words.length === 0;
    this.requests.replaceChildren(
        ...requests.slice(0, kMostSessions)
            .map(
                (request) => element('li', {}, element('span', {className: 'name'}, requestWords(request)))));
    if (requests.length > kMostSessions)
      this.requests.append(element('li', {}, `and ${requests.length - kMostSessions} more`));
    if (requests.length === 0) this.requests.append(element('li', {}, 'None now.'));
  }
}

// Asks each second, and less often where the server has no answer. `heard(status)` and `refused(error)` are
// called beside the picture.
export function watch(picture, heard, refused) {
  let timer = 0;
  let wait_ms = 1000;
  const poll = async () => {
    timer = 0;
    if (document.hidden) return;
    try {
      const now = await status();
      picture.show(now);
      heard(now);
      wait_ms = 1000;
    } catch (error) {
      picture.fail(error.name === 'TimeoutError' ? new Error('the server does not answer.') : error);
      refused(error);
      wait_ms = Math.min(2 * wait_ms, 10000);
    }
    plan(wait_ms);
  };
  const plan = (after_ms) => {
    if (!timer) timer = setTimeout(poll, after_ms);
  };
  const again = () => {
    clearTimeout(timer);
    timer = 0;
    wait_ms = 1000;
    plan(0);
  };
  document.addEventListener('visibilitychange', again);
  plan(0);
  return again;
}
