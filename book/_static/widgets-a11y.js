// Widgets leave slider handles, buttons and readouts without names for a screen reader: take them from what is shown.
(() => {
  // Widgets ask for the typesetting queue of MathJax 2, which MathJax 3 no longer has; their labels hold no maths.
  let maths;
  const adopt = (value) => {
    maths = value;
    if (value && !value.Hub) value.Hub = { Queue() {} };
  };
  adopt(window.MathJax);
  Object.defineProperty(window, 'MathJax', { configurable: true, get: () => maths, set: adopt });

  // Paper is white: print the light theme, and give the reader's own back afterwards.
  const root = document.documentElement;
  const onPaper = (printing) => {
    if (printing && root.dataset.theme !== 'light') {
      root.dataset.screenTheme = root.dataset.theme || '';
      root.dataset.theme = 'light';
    } else if (!printing && 'screenTheme' in root.dataset) {
      root.dataset.theme = root.dataset.screenTheme;
      delete root.dataset.screenTheme;
    }
  };
  matchMedia('print').addEventListener('change', (event) => onPaper(event.matches));
  addEventListener('beforeprint', () => onPaper(true));
  addEventListener('afterprint', () => onPaper(false));

  const label = (box) => {
    const found = box && box.querySelector('.widget-label');
    return (found && found.textContent.trim()) || 'Value';
  };
  const set = (element, name, value) => {
    if (element.getAttribute(name) !== value) element.setAttribute(name, value);
  };
  const sliders = () => {
    for (const handle of document.querySelectorAll('.noUi-handle')) {
      const box = handle.closest('.widget-inline-hbox, .widget-inline-vbox');
      const readout = box && box.querySelector('.widget-readout');
      set(handle, 'aria-label', label(box));
      // the handle knows only its place (0, 1, 2); the reader wants the words beside it
      if (readout && readout.textContent.trim()) set(handle, 'aria-valuetext', readout.textContent.trim());
    }
    for (const readout of document.querySelectorAll('.widget-readout[contenteditable]')) {
      set(readout, 'role', 'textbox');
      set(readout, 'aria-label', label(readout.parentElement) + ', typed');
    }
  };
  const buttons = () => {
    for (const group of document.querySelectorAll('.widget-toggle-buttons')) {
      set(group, 'role', 'group');
      set(group, 'aria-label', label(group));
      for (const button of group.querySelectorAll('.widget-toggle-button')) {
        set(button, 'aria-pressed', String(button.classList.contains('mod-active')));
      }
    }
  };
  const views = () => {
    for (const view of document.querySelectorAll('.slides-view')) {
      if (!view.parentElement.closest('.slides-view')) set(view, 'aria-live', 'polite');
    }
    const wide = '.cell_output pre, .highlight pre, .scroll-box, .widget-html-content, mjx-container[display]';
    for (const box of document.querySelectorAll(wide)) {
      if (box.scrollWidth > box.clientWidth + 1) set(box, 'tabindex', '0');
    }
  };
  // a table wider than the screen scrolls in a box of its own
  const tables = () => {
    for (const table of document.querySelectorAll('main table')) {
      if (table.closest('.scroll-box, .pst-scrollable-table-container')) continue;
      const box = document.createElement('div');
      box.className = 'scroll-box';
      table.replaceWith(box);
      box.append(table);
    }
  };
  const all = () => { tables(); sliders(); buttons(); views(); };
  let due = 0;
  const soon = () => { if (!due) due = requestAnimationFrame(() => { due = 0; all(); }); };
  const begin = () => {
    all();
    new MutationObserver(soon).observe(document.body, {
      childList: true, subtree: true, characterData: true, attributes: true,
      attributeFilter: ['class', 'aria-valuetext'],
    });
    addEventListener('resize', soon);
  };
  if (document.readyState === 'loading') document.addEventListener('DOMContentLoaded', begin);
  else begin();
})();
