// The conversations, kept in the browser's storage: one entry each, so that two tabs do not overwrite each
// other's. {id, name, updated_ms, messages}; a message is one of
//   {role: 'user', documents: [{name, n_characters, text}], question}
//   {role: 'assistant', content, reasoning, reasoning_s, note, usage}
// The text of a document is null where the storage had no room for it.

const kPrefix = 'kvrun.conversation.';

function withoutTexts(conversation) {
  const messages = conversation.messages.map((message) => message.role !== 'user' ? message : {
    ...message,
    documents: message.documents.map((document) => ({...document, text: null})),
  });
  return {...conversation, messages};
}

function parsed(text) {
  try {
    const conversation = JSON.parse(text);
    return Array.isArray(conversation.messages) ? conversation : null;
  } catch {
    return null;
  }
}

export class Conversations {
  constructor() {
    this.all = new Map();  // of saved ones
    try {
      for (const key of Object.keys(localStorage))
        if (key.startsWith(kPrefix)) this.take(localStorage.getItem(key));
    } catch { /* no storage: they last as long as the page */
    }
  }

  take(text) {
    const conversation = parsed(text);
    if (conversation) this.all.set(conversation.id, conversation);
  }

  // The newest first.
  list() { return [...this.all.values()].sort((a, b) => b.updated_ms - a.updated_ms); }

  // Another tab has changed the entry `key`. Returns whether it is a conversation.
  changedElsewhere(key, text) {
    if (!key?.startsWith(kPrefix)) return false;
    if (text === null)
      this.all.delete(key.slice(kPrefix.length));
    else
      this.take(text);
    return true;
  }

  create() {
    // Not randomUUID, which browsers have for https and loopback alone.
    const id = [...crypto.getRandomValues(new Uint32Array(2))].map((n) => n.toString(36)).join('');
    return {id, name: '', updated_ms: Date.now(), messages: []};
  }

  // Returns what could not be kept: '', 'documents' (their texts; of older conversations first), or 'all'.
  save(conversation) {
    this.all.set(conversation.id, conversation);
    if (this.store(conversation)) return '';
    for (const older of this.list().reverse()) {
      if (older === conversation) continue;
      if (this.store(withoutTexts(older)) && this.store(conversation)) return '';
    }
    return this.store(withoutTexts(conversation)) ? 'documents' : 'all';
  }

  store(conversation) {
    try {
      localStorage.setItem(kPrefix + conversation.id, JSON.stringify(conversation));
      return true;
    } catch {
      return false;
    }
  }

  remove(conversation) {
    this.all.delete(conversation.id);
    try {
      localStorage.removeItem(kPrefix + conversation.id);
    } catch { /* nothing was kept */
    }
  }
}

export function nameOf(question) {
  const words = question.trim().replace(/\s+/g, ' ');
  if (words.length <= 44) return words;
  const cut = words.slice(0, 44);
  return `${cut.slice(0, Math.max(cut.lastIndexOf(' '), 20))}…`;
}

// The documents and then the question, with a blank line between each and the next, as `kvrun chat -f` has
// it.
export function composedText(documents, question) {
  return [...documents.map((document) => document.text), question].join('\n\n');
}

// What the model is to read. A question whose answer has no text (it was stopped while the model thought) is
// left out, for templates want an answer to each, and its documents go to the next question.
export function requestMessages(messages) {
  const request = [];
  let documents = [];
  for (let i = 0; i < messages.length; ++i) {
    const message = messages[i];
    if (message.role === 'assistant') {
      if (message.content) request.push({role: 'assistant', content: message.content});
      continue;
    }
    documents = [...documents, ...message.documents];
    const answer = messages[i + 1];
    if (answer && !answer.content) continue;
    request.push({role: 'user', content: composedText(documents, message.question)});
    documents = [];
  }
  return request;
}

export function missingDocuments(messages) {
  return messages.flatMap((message) => message.documents ?? []).filter((document) => document.text === null);
}
