// The list of conversations: open, rename, delete.
import {element, iconButton} from './dom.js';

export class ConversationList {
  // `actions`: open, rename (with the new name), remove; of a conversation each.
  constructor(node, actions) {
    this.node = node;
    this.actions = actions;
  }

  // `is_busy(conversation)`: whether an answer comes in it.
  show(conversations, open_id, is_busy) {
    if (this.node.querySelector('input')) return;  // a name is being written
    const focused = this.node.contains(document.activeElement) ? document.activeElement.dataset.place : null;
    this.node.replaceChildren(...conversations.map((one) => this.row(one, one.id === open_id, is_busy(one))));
    if (focused) this.node.querySelector(`[data-place="${CSS.escape(focused)}"]`)?.focus();
  }

  row(conversation, is_open, is_busy) {
    const open = element(
        'button', {type: 'button', className: 'open'},
        element('span', {className: 'name'}, conversation.name));
    if (is_busy)
      open.append(element('span', {className: 'dot', role: 'img', 'aria-label': 'An answer comes'}));
    if (is_open) open.setAttribute('aria-current', 'true');
    open.addEventListener('click', () => this.actions.open(conversation));
    const row = element('li', {className: is_open ? 'here' : ''}, open);
    const rename = iconButton('pen', `Rename ${conversation.name}`, () => this.write(row, conversation));
    const remove = iconButton('bin', `Delete ${conversation.name}`, () => this.actions.remove(conversation));
    row.append(rename, remove);
    [open, rename, remove].forEach((button, i) => {
      button.dataset.place = `${conversation.id} ${i}`;
    });
    return row;
  }

  write(row, conversation) {
    const input =
        element('input', {value: conversation.name, maxLength: 80, 'aria-label': 'Name of the conversation'});
    let is_done = false;
    const end = (is_kept) => {
      if (is_done) return;  // removing the field takes its focus
      is_done = true;
      input.remove();
      this.actions.rename(conversation, is_kept && input.value.trim() || conversation.name);
      this.node.querySelector(`[data-place="${CSS.escape(conversation.id)} 1"]`)?.focus();
    };
    input.addEventListener('keydown', (event) => {
      if (event.isComposing) return;
      if (event.key === 'Enter') end(true);
      if (event.key === 'Escape') end(false);
      if (event.key === 'Enter' || event.key === 'Escape') event.preventDefault();
      event.stopPropagation();
    });
    input.addEventListener('blur', () => end(true));
    row.replaceChildren(input);
    input.focus();
    input.select();
  }
}
