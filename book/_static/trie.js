// Type your own prompts: a twin of the library's TokenTrie, with words for tokens. Both are checked against one set of
// requests (tests/book/trie_vectors.json). On a page without a .trie-twin box this file only defines the tree.
(() => {
  class Node {
    constructor(token, parent) {
      Object.assign(this, { token, parent, lastAccess: 0, children: new Map() });
    }

    path() {
      return this.parent ? [...this.parent.path(), this.token] : [];
    }
  }

  class TokenTrie {
    constructor(maxTokens) {
      Object.assign(this, { maxTokens, numTokens: 0, clock: 0, evicted: [], root: new Node('root', null) });
    }

    walk(tokens) {
      const path = [];
      let node = this.root;
      for (const token of tokens) {
        node = node.children.get(token);
        if (!node) break;
        path.push(node);
      }
      return path;
    }

    touch(path) {
      this.clock += 1;
      for (const node of path) node.lastAccess = this.clock;
    }

    lookup(tokens) {
      const path = this.walk(tokens);
      this.touch(path);
      return path.length;
    }

    insert(tokens) {
      const path = this.walk(tokens);
      const stored = path.length;
      this.evictToFit(tokens.length - stored, new Set(path));
      for (const token of tokens.slice(stored)) {
        const node = new Node(token, path.at(-1) || this.root);
        node.parent.children.set(token, node);
        path.push(node);
      }
      this.numTokens += tokens.length - stored;
      this.touch(path);
      return tokens.length - stored;
    }

    // Only leaves go, the least recently used first, and never one on the path that is being extended.
    evictToFit(extra, keep) {
      while (this.numTokens + extra > this.maxTokens) {
        const leaves = this.nodes().filter((node) => !node.children.size && !keep.has(node));
        if (!leaves.length) return;
        const victim = leaves.reduce((a, b) => (b.lastAccess < a.lastAccess ? b : a));
        this.evicted.push(victim.path());
        victim.parent.children.delete(victim.token);
        this.numTokens -= 1;
      }
    }

    nodes() {
      const found = [];
      const waiting = [this.root];
      while (waiting.length) {
        const node = waiting.shift();
        if (node !== this.root) found.push(node);
        waiting.unshift(...node.children.values());
      }
      return found;
    }
  }

  const words = (text) => text.split(/\s+/u).filter(Boolean);

  // One request: look up all but the last token, compute the rest, store the prompt.
  const ask = (trie, tokens) => {
    const matched = trie.lookup(tokens.slice(0, -1));
    trie.evicted = [];
    const added = trie.insert(tokens);
    const computed = tokens.length - matched;
    return { tokens, matched, computed, added, evicted: trie.evicted, stored: trie.numTokens };
  };

  const replay = (prompts, maxTokens) => {
    const trie = new TokenTrie(maxTokens);
    const steps = prompts.map((prompt) => ask(trie, words(prompt)));
    return { trie, steps, paths: trie.nodes().map((node) => node.path()) };
  };

  window.CacheQuantTrie = { replay };

  // ---- What is seen ------------------------------------------------------------------------------------------------

  const SAID = { hit: 'reused', new: 'computed', again: 'computed again', old: 'stored before', root: '' };
  const REQUESTS = { A: 'The cat sat', B: 'The cat sat on the mat', C: 'The cat sat near a lake' };
  const LONGEST = 200;

  const make = (name, attributes = {}, ...children) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };
  const tokenBox = (word, state) => {
    const said = SAID[state] ? [make('span', { class: 'trie-said' }, `, ${SAID[state]}`)] : [];
    return make('span', { class: `trie-token trie-${state}` }, word, ...said);
  };
  const count = (n, word) => `${n} ${word}${n === 1 ? '' : 's'}`;
  const percent = (part, whole) => `${Math.round((100 * part) / whole)} %`;

  // A run of nodes with one child each stands on one line; a branch begins a list.
  const drawRun = (first, states) => {
    const item = make('li');
    let node = first;
    item.append(tokenBox(node.token, states.get(node) || 'old'));
    while (node.children.size === 1) {
      [node] = node.children.values();
      item.append(' ', tokenBox(node.token, states.get(node) || 'old'));
    }
    if (node.children.size) item.append(make('ul', {}, ...[...node.children.values()].map((n) => drawRun(n, states))));
    return item;
  };

  const tell = (step, room) => {
    const n = step.tokens.length;
    const parts = [
      `${count(n, 'token')}: ${step.matched} reused, ${step.computed} computed.`,
      `Hit rate ${percent(step.matched, n)}; at most ${percent(n - 1, n)} with ${count(n, 'token')}.`,
    ];
    if (step.evicted.length) parts.push(`Evicted to make room: ${step.evicted.map((p) => p.at(-1)).join(', ')}.`);
    parts.push(`The tree holds ${count(step.stored, 'token')}, with room for ${room}.`);
    if (step.stored > room) parts.push('The cap is soft: the path of a request is never evicted for that request.');
    return parts.join(' ');
  };

  const build = (box) => {
    const id = (name) => `trie-twin-${name}`;
    const field = make('input', {
      id: id('prompt'), type: 'text', maxlength: LONGEST, autocomplete: 'off', spellcheck: 'false', enterkeyhint: 'send',
    });
    const form = make('form', {}, make('label', { for: id('prompt') }, 'Your prompt'), field,
      make('button', { type: 'submit' }, 'Ask'));
    const room = make('input', { id: id('room'), type: 'range', min: 3, max: 40, value: 24 });
    const roomShown = make('output', { for: id('room') });
    const buttons = make('div', { class: 'trie-buttons', role: 'group', 'aria-label': 'Ready-made requests' });
    const status = make('p', { class: 'trie-status', role: 'status', 'aria-live': 'polite' });
    const asked = make('p', { class: 'trie-asked' });
    const tree = make('ul', { class: 'trie-tree' });
    const list = make('ol', { class: 'trie-list' });
    const sum = make('p');
    let prompts = [];

    const draw = (note = '') => {
      const { trie, steps } = replay(prompts, Number(room.value));
      roomShown.textContent = ` ${room.value} tokens`;
      const step = steps.at(-1);
      const states = new Map();
      asked.replaceChildren('The last request: ');
      if (step) {
        const known = step.tokens.length - step.added;
        const state = (i) => (i < step.matched ? 'hit' : i < known ? 'again' : 'new');
        trie.walk(step.tokens).forEach((node, i) => states.set(node, state(i)));
        step.tokens.forEach((word, i) => asked.append(tokenBox(word, state(i)), ' '));
      } else asked.append('none yet.');
      const branches = [...trie.root.children.values()].map((node) => drawRun(node, states));
      const below = branches.length ? [make('ul', {}, ...branches)] : [];
      tree.replaceChildren(make('li', {}, tokenBox('root', 'root'), ...below));
      list.replaceChildren(...steps.map((s) => make('li', {}, `${s.tokens.join(' ')}: ${s.matched} of ${s.tokens.length}`
        + ` reused${s.evicted.length ? `, ${s.evicted.length} evicted` : ''}`)));
      const total = (key) => steps.reduce((all, s) => all + (key === 'tokens' ? s.tokens.length : s[key]), 0);
      sum.textContent = steps.length
        ? `All requests together: ${total('matched')} of ${total('tokens')} tokens reused, `
          + `${percent(total('matched'), total('tokens'))}.` : '';
      status.textContent = note || (step ? tell(step, Number(room.value)) : 'The tree is empty. Type a prompt.');
    };
    const send = (text) => {
      const tokens = words(text);
      if (!tokens.length) return draw('Type at least one word: an empty prompt has nothing to predict from.');
      prompts.push(tokens.join(' '));
      field.value = '';
      return draw();
    };

    form.addEventListener('submit', (event) => { event.preventDefault(); send(field.value); });
    room.addEventListener('input', () => draw());
    for (const [name, text] of Object.entries(REQUESTS)) {
      const button = make('button', { type: 'button', title: text }, `Request ${name}`);
      button.addEventListener('click', () => send(text));
      buttons.append(button);
    }
    const clear = make('button', { type: 'button' }, 'Start over');
    clear.addEventListener('click', () => { prompts = []; draw(); });
    buttons.append(clear);
    const legend = make('p', { class: 'trie-legend' });
    for (const state of ['hit', 'new', 'again', 'old']) legend.append(make('span', { class: `trie-token trie-${state}` }, SAID[state]), ' ');

    box.replaceChildren(form, buttons,
      make('p', { class: 'trie-room' }, make('label', { for: id('room') }, 'Room in the cache'), room, roomShown),
      status, asked, tree, legend, make('p', {}, 'Requests so far:'), list, sum);
    prompts = [REQUESTS.A, REQUESTS.B];
    field.value = REQUESTS.C;
    draw();
  };

  const begin = () => { const box = document.querySelector('.trie-twin'); if (box) build(box); };
  if (document.readyState === 'loading') document.addEventListener('DOMContentLoaded', begin);
  else begin();
})();
