// Text files that a question is about.

// What a request may have at most, less what JSON adds.
const kMost_bytes = 56 * 1024 * 1024;

// Returns {name, n_characters, text}, or throws an Error that says why not.
export async function readDocument(file) {
  if (file.size > kMost_bytes) throw new Error(`${file.name} is larger than the server takes (56 MiB).`);
  let data;
  try {
    data = new Uint8Array(await file.arrayBuffer());
  } catch {
    throw new Error(`${file.name} cannot be read. Is it a folder, or has it been moved?`);
  }
  const is_utf16 = data[0] === 0xff && data[1] === 0xfe;
  let text;
  try {
    text = new TextDecoder(is_utf16 ? 'utf-16le' : 'utf-8', {fatal: true}).decode(data);
  } catch {
    text = '\0';
  }
  if (text.includes('\0')) throw new Error(`${file.name} is not text. Save it as plain text (UTF-8) first.`);
  if (text.trim() === '') throw new Error(`${file.name} is empty.`);
  return {name: file.name, n_characters: text.length, text};
}

// Calls `dropped(files)` for files dropped anywhere, with `cover` over the page while one is held above it.
export function acceptDrops(cover, dropped) {
  const has_files = (event) => event.dataTransfer?.types.includes('Files');
  window.addEventListener('dragover', (event) => {
    if (!has_files(event)) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = 'copy';
    cover.hidden = false;
  });
  window.addEventListener('dragleave', (event) => {
    if (!event.relatedTarget) cover.hidden = true;
  });
  window.addEventListener('drop', (event) => {
    cover.hidden = true;
    if (!has_files(event)) return;
    event.preventDefault();
    dropped([...event.dataTransfer.files]);
  });
}
