// The page of kvrun serve: what its parts do together.
import {Answer} from './answer.js';
import {apiKey, ServerError, setApiKey} from './api.js';
import {Conversations, missingDocuments, nameOf} from './conversations.js';
import {acceptDrops, readDocument} from './documents.js';
import {count, element, iconButton, sentence} from './dom.js';
import {ConversationList} from './list.js';
import {MemoryPicture, watch} from './memory.js';
import {Announcer, AnswerView, documentChip, questionView} from './view.js';

const at = (id) => document.getElementById(id);
const question = at('question');
const log = at('log');

const conversations = new Conversations();
const answers = new Map();  // those that come, by their conversation's id
const drafts = new Map();   // what is not sent yet: {question, documents}
const announcer = new Announcer(at('announcer'));
const warned = new Set();            // ids of conversations whose loss has been told
let blank = conversations.create();  // has not been asked anything yet
let here = blank;
let live = null;  // the view of the answer that comes here
let is_drawn = true;
let countdown = 0;
let wanted = null;  // the document whose file is to be chosen again

function draftOf(conversation) {
  if (!drafts.has(conversation.id)) drafts.set(conversation.id, {question: '', documents: []});
  return drafts.get(conversation.id);
}

// Notices: one at a time, above the question.

function hideNotice() {
  clearInterval(countdown);
  at('notice').hidden = true;
}

function notify(text, ...buttons) {
  clearInterval(countdown);
  const words = element('span', {}, text);
  at('notice').replaceChildren(words, ...buttons, iconButton('cross', 'Close this message', () => {
                                 hideNotice();
                                 question.focus();
                               }));
  at('notice').hidden = false;
  return words;
}

function notifyBusy(error) {
  let left_s = error.retry_after_s ?? 5;
  const text = () => left_s > 0 ? `Try again in ${left_s} s.` : 'Try again now.';
  const when = element('span', {'aria-hidden': 'true'});
  const words = notify(
      `The server has too much to do (${error.message}). `,
      element('span', {className: 'hidden-label'}, text()));
  words.append(when);
  when.textContent = text();
  countdown = setInterval(() => {
    left_s = Math.max(0, left_s - 1);
    when.textContent = text();
  }, 1000);
}

// The conversation that is open.

function isAtEnd() { return log.scrollHeight - log.scrollTop - log.clientHeight < 120; }

function scrollDown() { log.scrollTop = log.scrollHeight; }

function showComposer() {
  const draft = draftOf(here);
  at('documents')
      .replaceChildren(...draft.documents.map(
          (document, i) => documentChip(document, iconButton('cross', `Leave ${document.name} out`, () => {
                                          draft.documents.splice(i, 1);
                                          showComposer();
                                          question.focus();
                                        }))));
  if (question.value !== draft.question) question.value = draft.question;
  const is_answering = answers.has(here.id);
  if (is_answering && document.activeElement === at('send')) question.focus();
  if (!is_answering && document.activeElement === at('stop')) question.focus();
  at('send').hidden = is_answering;
  at('stop').hidden = !is_answering;
  const has_documents = draft.documents.length > 0 || here.messages.some((one) => one.documents?.length > 0);
  question.placeholder = has_documents ? 'Ask about the document' : 'Ask a question';
  at('empty').hidden = here.messages.length > 0 || draft.documents.length > 0;
  fitQuestion();
}

function fitQuestion() {
  question.style.height = 'auto';
  question.style.height = `${Math.min(question.scrollHeight, 200)}px`;
}

function showList() {
  list.show(conversations.list(), here.id, (one) => answers.has(one.id));
  at('title').textContent = here.name || 'New conversation';
  document.title = here.name ? `${here.name} – kvrun` : 'kvrun';
}

function showHere() {
  live = null;
  const answer = answers.get(here.id);
  at('messages').replaceChildren(...here.messages.filter((one) => one !== answer?.message).map((message) => {
    if (message.role === 'user') return questionView(message, chooseAgain);
    const view = new AnswerView();
    view.show(message);
    return view.node;
  }));
  if (answer) {
    live = new AnswerView();
    live.show(answer.message, answer);
    at('messages').append(live.node);
  }
  showList();
  showComposer();
  scrollDown();
}

function openBlank() {
  if (conversations.all.has(blank.id)) blank = conversations.create();
  open(blank);
}

function open(conversation) {
  here = conversation;
  announcer.begin();
  hideNotice();
  hideSides();
  showHere();
  question.focus();
}

const list = new ConversationList(at('list'), {
  open,
  rename: (conversation, name) => {
    conversation.name = name;
    conversations.save(conversation);
    showList();
  },
  remove: (conversation) => {
    answers.get(conversation.id)?.stop();
    conversations.remove(conversation);
    if (conversation === here) openBlank();
    showList();
    const undo = element('button', {type: 'button'}, 'Undo');
    undo.addEventListener('click', () => {
      keep(conversation);
      open(conversation);
    });
    hideSides();
    notify(`Deleted: ${conversation.name}`, undo);
    undo.focus();
  },
});

function keep(conversation) {
  const lost = conversations.save(conversation);
  if (lost === '' || warned.has(conversation.id)) return;
  warned.add(conversation.id);
  if (lost === 'documents') {
    notify(
        'The browser has no room for the document: after this page is closed, its file has to be chosen again.');
  } else {
    notify('The browser keeps nothing: this conversation ends with the page.');
  }
}

// Answers.

function draw() {
  is_drawn = true;
  const answer = answers.get(here.id);
  if (!answer || !live) return;
  const is_at_end = isAtEnd();
  live.show(answer.message, answer);
  announcer.follow(answer);
  if (is_at_end) scrollDown();
}

function changed(answer) {
  const messages = answer.conversation.messages;
  if (answer.has_begun() && messages.at(-1) !== answer.message) messages.push(answer.message);
  if (!is_drawn || answer.conversation !== here) return;
  is_drawn = false;
  requestAnimationFrame(draw);
}

async function ask(conversation, asked, documents) {
  hideNotice();
  conversation.messages.push({role: 'user', documents, question: asked});
  conversation.name ||= nameOf(asked);
  conversation.updated_ms = Date.now();
  const answer = new Answer(conversation, changed);
  answers.set(conversation.id, answer);
  keep(conversation);
  announcer.begin();
  showHere();
  await answer.done;
  answers.delete(conversation.id);
  if (answer.has_begun())
    ended(answer);
  else
    takeBack(answer);
  if (conversations.all.has(conversation.id)) keep(conversation);
  showList();
  if (conversation === here) showComposer();
}

function ended(answer) {
  if (answer.conversation !== here || !live) return;
  const is_at_end = isAtEnd();
  live.show(answer.message, answer);
  live = null;
  announcer.follow(answer);
  announcer.say(answer.message.note || 'The answer is complete.');
  if (is_at_end) scrollDown();
}

// Nothing came: the question goes back to where it was written.
function takeBack(answer) {
  const conversation = answer.conversation;
  const {question: asked, documents} = conversation.messages.pop();
  const draft = draftOf(conversation);
  draft.documents = [...documents, ...draft.documents];
  draft.question ||= asked;
  if (conversation.messages.length === 0) {
    conversations.remove(conversation);
    conversation.name = '';
  }
  if (conversation !== here) return;
  showHere();
  const error = answer.failure;
  if (answer.is_stopped)
    announcer.say('Stopped. Your question is back in its field.');
  else if (error instanceof ServerError && error.status === 401)
    askForKey(true);
  else if (error instanceof ServerError && error.status === 503)
    notifyBusy(error);
  else if (error instanceof ServerError)
    notify(`The server does not answer this: ${sentence(error.message)}`);
  else if (error)
    notify(`${error.message} Your question is kept: send it again when the server is back.`);
  else
    notify('The model had nothing to say. Your question is kept.');
}

function send() {
  const draft = draftOf(here);
  const missing = missingDocuments(here.messages);
  if (answers.has(here.id) || question.value.trim() === '') {
    question.focus();
  } else if (missing.length > 0) {
    notify(`Choose ${missing[0].name} again first: this browser had no room to keep its text.`);
  } else {
    drafts.set(here.id, {question: '', documents: []});
    ask(here, question.value, draft.documents);
  }
}

// Documents.

async function addDocuments(files) {
  const to = here;
  for (const file of files) {
    try {
      const document = await readDocument(file);
      draftOf(to).documents.push(document);
      announcer.say(`${document.name} is added: ${count(document.n_characters, 'character')}.`);
    } catch (error) {
      notify(error.message);
    }
  }
  showComposer();
  question.focus();
}

function chooseAgain(document) {
  wanted = document;
  at('file').click();
}

async function giveAgain(lost, file) {
  try {
    const found = await readDocument(file);
    if (found.n_characters !== lost.n_characters) {
      notify(
          `${found.name} is not the text that this conversation is about: it has ` +
          `${count(found.n_characters, 'character')} instead of ${count(lost.n_characters)}.`);
      return;
    }
    lost.text = found.text;
    keep(here);
    hideNotice();
    showHere();
  } catch (error) {
    notify(error.message);
  }
}

// The key.

function askForKey(is_wanted_now) {
  const was_hidden = at('key-form').hidden;
  at('key-why').textContent = apiKey() ?
      'The server did not accept this key. Is there another one?' :
      'This server answers only those who have its key. It is kept until this tab is closed.';
  at('key-form').hidden = false;
  if (was_hidden) announcer.say('This server asks for an API key.');
  if (is_wanted_now) at('key').focus();
}

at('key-form').addEventListener('submit', (event) => {
  event.preventDefault();
  setApiKey(at('key').value.trim());
  at('key').value = '';
  at('key-form').hidden = true;
  pollNow();
  question.focus();
  if (question.value.trim()) send();
});

const pollNow = watch(
    new MemoryPicture(at('memory')),
    (now) => {
      at('model').textContent = now.model ?? '';
      at('key-form').hidden = true;
    },
    (error) => {
      if (error instanceof ServerError && error.status === 401) askForKey(false);
    });

// On a narrow page, the sides lie over the conversation: one at a time.

const kSides = [['show-conversations', 'conversations'], ['show-memory', 'memory']];

function hideSides() {
  for (const [button, side] of kSides) {
    at(side).classList.remove('shown');
    at(button).setAttribute('aria-expanded', 'false');
  }
}

for (const [button, side] of kSides) {
  at(button).addEventListener('click', () => {
    const is_shown = !at(side).classList.contains('shown');
    hideSides();
    at(side).classList.toggle('shown', is_shown);
    at(button).setAttribute('aria-expanded', String(is_shown));
    if (is_shown) at(side).focus();
  });
}
document.addEventListener('keydown', (event) => {
  const shown = kSides.find(([, side]) => at(side).classList.contains('shown'));
  if (event.key !== 'Escape' || !shown) return;
  hideSides();
  at(shown[0]).focus();
});
at('messages').parentElement.addEventListener('pointerdown', hideSides);

question.addEventListener('input', () => {
  draftOf(here).question = question.value;
  fitQuestion();
});
question.addEventListener('keydown', (event) => {
  // On a screen's keyboard, Enter is a new line.
  const is_touch = matchMedia('(pointer: coarse)').matches;
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing || is_touch) return;
  event.preventDefault();
  send();
});
at('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  send();
});
at('stop').addEventListener('click', () => answers.get(here.id)?.stop());
at('new').addEventListener('click', openBlank);
for (const id of ['choose', 'drop']) {
  at(id).addEventListener('click', () => {
    wanted = null;
    at('file').click();
  });
}
at('file').addEventListener('change', () => {
  const files = [...at('file').files];
  at('file').value = '';
  if (wanted && files.length > 0)
    giveAgain(wanted, files[0]);
  else
    addDocuments(files);
});
acceptDrops(at('drop-here'), addDocuments);
window.addEventListener('storage', (event) => {
  if (!conversations.changedElsewhere(event.key, event.newValue)) return;
  const mine = conversations.all.get(here.id);
  if (mine && mine !== here && !answers.has(here.id)) {
    here = mine;
    showHere();
  }
  showList();
});
window.addEventListener('pagehide', () => {
  for (const answer of answers.values())
    if (answer.has_begun()) conversations.save(answer.conversation);
});

showHere();
