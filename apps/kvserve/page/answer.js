// An answer while it comes: what the server's events say, and how fast. It knows nothing of the page's
// elements.
import {chat, ConnectionLost, ServerError} from './api.js';
import {requestMessages} from './conversations.js';
import {sentence} from './dom.js';

// Of reading a prompt. The rate is that of the later half, for reading gets slower with length.
export class Reading {
  constructor() {
    this.samples = [];
    this.latest = null;
  }

  add({total, cache, processed, time_ms}) {
    this.latest = {total, cached: cache ?? 0, read: Math.max(processed, cache ?? 0), time_ms};
    this.samples.push(this.latest);
  }

  // null: not known yet.
  left_s() {
    if (this.samples.length < 2) return null;
    const last = this.latest;
    let first = this.samples[0];
    for (const sample of this.samples)
      if (sample.time_ms <= last.time_ms / 2) first = sample;
    const rate = (last.read - first.read) / (last.time_ms - first.time_ms);
    return rate > 0 ? (last.total - last.read) / (1000 * rate) : null;
  }
}

// Runs from its construction until `done`; `changed` is called after each event.
export class Answer {
  constructor(conversation, changed) {
    this.conversation = conversation;
    this.message = {role: 'assistant', content: '', reasoning: '', reasoning_s: null, note: '', usage: null};
    this.reading = new Reading();
    this.failure = null;
    this.is_stopped = false;
    this.has_ended = false;
    this.changed = changed;
    this.controller = new AbortController();
    this.began_ms = performance.now();
    this.first_ms = null;  // of any token
    this.last_ms = null;
    this.finish_reason = null;
    this.server_usage = null;
    this.done = this.run(requestMessages(conversation.messages));
  }

  has_begun() { return this.message.content !== '' || this.message.reasoning !== ''; }

  is_thinking() {
    return this.message.reasoning !== '' && this.message.reasoning_s === null && !this.has_ended;
  }

  stop() {
    this.is_stopped = true;
    this.controller.abort();
  }

  async run(messages) {
    try {
      for await (const event of chat(messages, this.controller.signal)) {
        this.take(event);
        this.changed(this);
      }
    } catch (error) {
      // A whole answer stays one, whatever became of what follows it.
      if (!this.is_stopped && !(error instanceof ConnectionLost && this.finish_reason)) this.failure = error;
    }
    this.has_ended = true;
    this.end();
  }

  take(event) {
    if (event.prompt_progress) this.reading.add(event.prompt_progress);
    if (event.usage) this.server_usage = event.usage;
    const choice = event.choices?.[0];
    if (!choice) return;
    const {reasoning_content: reasoning = '', content = ''} = choice.delta ?? {};
    if (choice.finish_reason) this.finish_reason = choice.finish_reason;
    if (!reasoning && !content) return;
    const now = performance.now();
    this.first_ms ??= now;
    this.last_ms = now;
    if (reasoning) this.message.reasoning += reasoning;
    if (content) {
      if (this.message.reasoning) this.message.reasoning_s ??= (now - this.first_ms) / 1000;
      this.message.content += content;
    }
  }

  end() {
    const message = this.message;
    if (message.reasoning) message.reasoning_s ??= (this.last_ms - this.first_ms) / 1000;
    if (this.is_stopped)
      message.note = 'You stopped this answer.';
    else if (this.failure instanceof ServerError)
      message.note = `The server gave up: ${sentence(this.failure.message)}`;
    else if (this.failure)
      message.note = `${this.failure.message} What had come is kept.`;
    else if (this.finish_reason === 'length')
      message.note = 'The answer reached the limit of tokens.';
    if (!this.server_usage) return;
    const {prompt_tokens, completion_tokens, prompt_tokens_details: details} = this.server_usage;
    const decode_s = (this.last_ms - this.first_ms) / 1000;
    message.usage = {
      prompt: prompt_tokens,
      cached: details?.cached_tokens ?? 0,
      answer: completion_tokens,
      first_s: this.first_ms === null ? null : (this.first_ms - this.began_ms) / 1000,
      tokens_per_s: completion_tokens > 1 && decode_s > 0 ? (completion_tokens - 1) / decode_s : null,
    };
  }
}
