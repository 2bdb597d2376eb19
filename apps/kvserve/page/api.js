// What the page asks the server. Addresses are relative, so that a proxy may put the page below any path.

// An answer other than status 200, or an error within a stream.
export class ServerError extends Error {
  constructor(status, message, retry_after_s = null) {
    super(message);
    this.status = status;  // 0: the stream had begun
    this.retry_after_s = retry_after_s;
  }
}

export class ConnectionLost extends Error {}

const kKeyName = 'kvrun.api-key';
let memorised_key = '';  // where the browser gives no storage

export function apiKey() {
  try {
    return sessionStorage.getItem(kKeyName) ?? memorised_key;
  } catch {
    return memorised_key;
  }
}

export function setApiKey(key) {
  memorised_key = key;
  try {
    sessionStorage.setItem(kKeyName, key);
  } catch { /* it lasts as long as the page */
  }
}

function fields() { return apiKey() ? {Authorization: `Bearer ${apiKey()}`} : {}; }

async function errorOf(response) {
  let message = `status ${response.status}`;
  try {
    message = (await response.json()).error.message || message;
  } catch { /* not of this server's form */
  }
  // Seconds, or a date (of a proxy).
  const after = response.headers.get('Retry-After');
  let after_s = after === null ? NaN : Number(after);
  if (after !== null && Number.isNaN(after_s)) after_s = (Date.parse(after) - Date.now()) / 1000;
  return new ServerError(
      response.status, message, Number.isNaN(after_s) ? null : Math.max(0, Math.ceil(after_s)));
}

async function asked(path, options) {
  let response;
  try {
    response = await fetch(path, {cache: 'no-store', credentials: 'same-origin', ...options});
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ConnectionLost('The server cannot be reached.');
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

export async function status() {
  const response = await asked('status', {headers: fields(), signal: AbortSignal.timeout(5000)});
  return response.json();
}

async function* lines(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = '';
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    const parts = (rest + decoder.decode(value, {stream: true})).split(/\r?\n/);
    rest = parts.pop();
    yield* parts;
  }
}

// The objects of the events, up to [DONE]. Throws ServerError, ConnectionLost, or the signal's AbortError.
export async function* chat(messages, signal) {
  const response = await asked('v1/chat/completions', {
    method: 'POST',
    headers: {...fields(), 'Content-Type': 'application/json', Accept: 'text/event-stream'},
    body: JSON.stringify(
        {messages, stream: true, stream_options: {include_usage: true}, return_progress: true}),
    signal,
  });
  try {
    for await (const line of lines(response.body)) {
      if (!line.startsWith('data:')) continue;  // comments keep the connection alive
      const data = line.slice(5).trim();
      if (data === '[DONE]') return;
      const event = JSON.parse(data);
      if (event.error) throw new ServerError(0, event.error.message || 'The server gave up.');
      yield event;
    }
  } catch (error) {
    if (error.name === 'AbortError' || error instanceof ServerError) throw error;
    throw new ConnectionLost('The connection to the server was lost.');
  }
  throw new ConnectionLost('The server ended the connection before the answer had ended.');
}
