// Messages as elements of the page, and what is said to a screen reader while an answer comes.
import {count, digits, duration, element, icon} from './dom.js';

// Parts of an answer: {is_code, text}. A fence that has not ended is code up to the end.
export function parts(text) {
  const found = [{is_code: false, text: ''}];
  for (const line of text.split(/(?<=\n)/)) {
    const last = found[found.length - 1];
    if (/^ {0,3}```/.test(line) && (!last.is_code || /^ {0,3}```\s*$/.test(line))) {
      found.push({is_code: !last.is_code, text: ''});
    } else {
      last.text += line;
    }
  }
  // The lines around a fence belong to it.
  return found
      .map(({is_code, text: part}) => ({is_code, text: is_code ? part.replace(/\n$/, '') : part.trim()}))
      .filter(({is_code, text: part}) => is_code || part !== '');
}

function setText(node, text) {
  const old = node.firstChild;
  if (!old)
    node.append(text);
  else if (text.startsWith(old.data))
    old.appendData(text.slice(old.data.length));  // a selection stays
  else
    old.data = text;
}

class PartsView {
  constructor() { this.node = element('div', {className: 'text'}); }

  show(text) {
    const wanted = parts(text);
    wanted.forEach((part, i) => {
      const tag = part.is_code ? 'pre' : 'p';
      let node = this.node.children[i];
      if (node?.localName !== tag) {
        const other =
            part.is_code ? element('pre', {tabIndex: 0, 'aria-label': 'Code', role: 'group'}) : element('p');
        if (node)
          node.replaceWith(other);
        else
          this.node.append(other);
        node = other;
      }
      setText(node, part.text);
    });
    while (this.node.children.length > wanted.length) this.node.lastChild.remove();
  }
}

class ReadingView {
  constructor() {
    this.cached = element('span', {className: 'cached'});
    this.read = element('span', {className: 'read'});
    this.bar = element(
        'div', {
          className: 'bar',
          role: 'progressbar',
          'aria-label': 'Reading the prompt',
          'aria-valuemin': 0,
          'aria-valuemax': 100
        },
        this.cached, this.read);
    this.words = element('p', {className: 'words'});
    this.node = element('div', {className: 'reading'}, this.words, this.bar);
  }

  show(reading) {
    const now = reading.latest;
    this.bar.hidden = !now;
    this.words.textContent = now ? readingWords(reading) : 'Waiting for the server…';
    if (!now) return;
    const percent = (n) => now.total > 0 ? 100 * n / now.total : 0;
    this.cached.style.width = `${percent(now.cached)}%`;
    this.read.style.width = `${percent(now.read - now.cached)}%`;
    this.bar.setAttribute('aria-valuenow', Math.floor(percent(now.read)));
    this.bar.setAttribute('aria-valuetext', this.words.textContent);
  }
}

export function readingWords(reading) {
  const {total, cached, read} = reading.latest;
  const left_s = reading.left_s();
  const words = [`Read ${count(read)} of ${count(total, 'token')}`];
  if (cached > 0) words.push(`${count(cached)} known from before`);
  if (left_s !== null && read < total) words.push(`about ${duration(Math.max(1, left_s))} left`);
  return words.join(' · ');
}

function usageWords({prompt, cached, answer, first_s, tokens_per_s}) {
  const words = [`${count(prompt, 'prompt token')}, ${count(cached)} cached`];
  if (first_s !== null) words.push(`first token after ${duration(first_s)}`);
  words.push(count(answer, 'answer token'));
  if (tokens_per_s !== null) words.push(`${digits(tokens_per_s)} tokens/s`);
  return words.join(' · ');
}

export class AnswerView {
  constructor() {
    this.reading = new ReadingView();
    this.summary = element('summary');
    this.thoughts = element('p');
    this.reasoning = element(
        'details', {className: 'reasoning'}, this.summary,
        element('div', {className: 'text'}, this.thoughts));
    this.text = new PartsView();
    this.note = element('p', {className: 'note'});
    this.usage = element('p', {className: 'usage'});
    this.node = element(
        'article', {className: 'answer', 'aria-label': 'Answer'}, this.reading.node, this.reasoning,
        this.text.node, this.note, this.usage);
  }

  // `answer`: while it comes; null for one that has ended.
  show(message, answer = null) {
    this.reading.node.hidden = !answer || answer.has_ended || answer.has_begun();
    if (!this.reading.node.hidden) this.reading.show(answer.reading);
    this.reasoning.hidden = !message.reasoning;
    if (message.reasoning) {
      const is_thinking = answer?.is_thinking();
      this.summary.textContent =
          is_thinking ? 'Thinking…' : `Thought for ${duration(message.reasoning_s ?? 0)}`;
      setText(this.thoughts, message.reasoning.trim());
    }
    this.text.show(message.content);
    this.note.hidden = !message.note;
    this.note.textContent = message.note;
    this.usage.hidden = !message.usage;
    if (message.usage) this.usage.textContent = usageWords(message.usage);
    this.node.classList.toggle('coming', Boolean(answer) && !answer.has_ended && answer.has_begun());
  }
}

export function documentChip(document, ...buttons) {
  const size =
      document.text === null ? 'not kept by this browser' : count(document.n_characters, 'character');
  const chip = element(
      'li', {className: 'chip'}, icon('file'), element('span', {className: 'name'}, document.name),
      element('span', {className: 'size'}, size), ...buttons);
  chip.classList.toggle('missing', document.text === null);
  return chip;
}

// `choose(document)` asks for the file of a document whose text is gone.
export function questionView(message, choose) {
  const chips = message.documents.map((document) => {
    if (document.text !== null) return documentChip(document);
    const button = element('button', {type: 'button'}, 'Choose it again');
    button.addEventListener('click', () => choose(document));
    return documentChip(document, button);
  });
  const node = element('article', {className: 'asked', 'aria-label': 'You'});
  if (chips.length > 0) node.append(element('ul', {className: 'chips', 'aria-label': 'Documents'}, ...chips));
  node.append(element('p', {}, message.question));
  return node;
}

// Says an answer in sentences, not in tokens: a screen reader would begin anew with each.
export class Announcer {
  constructor(node) {
    this.node = node;
    this.n_said = 0;
    this.said_ms = 0;
  }

  say(text) {
    this.said_ms = performance.now();
    this.node.append(element('p', {}, text));
    while (this.node.children.length > 40) this.node.firstChild.remove();
  }

  begin() { this.n_said = 0; }

  follow(answer) {
    const {content} = answer.message;
    const rest = content.slice(this.n_said);
    if (answer.has_ended) {
      if (rest.trim()) this.say(rest.trim());
      this.n_said = content.length;
      return;
    }
    const end = Math.max(...['. ', '? ', '! ', '\n', ': '].map((mark) => rest.lastIndexOf(mark)));
    if (end >= 40) {
      this.say(rest.slice(0, end + 1).trim());
      this.n_said += end + 1;
    } else if (!answer.has_begun() && answer.reading.latest && performance.now() - this.said_ms > 8000) {
      this.say(readingWords(answer.reading));
    }
  }
}
