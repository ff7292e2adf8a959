// Documents of a workspace: a table by kind and status, and an editor.

import { get, post, put, query } from '/page/api.js';
import { button, debounce, emptyNote, errorNote, fill, h } from '/page/dom.js';
import { plural, pretty, visible } from '/page/format.js';
import { rich } from '/page/render.js';

/** Documents that the table shows. */
const MAX_SHOWN = 500;

customElements.define(
  'sv-documents',
  class extends HTMLElement {
    connectedCallback() {
      this.stop = new AbortController();
      this.workspace = h('select', { 'aria-label': 'Folder', onchange: () => this.refresh() });
      this.kind = h('select', { 'aria-label': 'Kind', onchange: () => this.showTable() });
      this.status = h('select', { 'aria-label': 'Status', onchange: () => this.showTable() });
      this.text = h('input', {
        type: 'search',
        'aria-label': 'Search documents',
        placeholder: 'Search',
        oninput: debounce(() => this.refresh(), 250),
      });
      this.note = h('div');
      this.table = h('div', { class: 'table-box' });
      this.documents = [];
      this.start();
    }

    disconnectedCallback() {
      this.stop.abort();
    }

    async start() {
      try {
        const { workspaces } = await get('/workspaces', this.stop.signal);
        fill(
          this.workspace,
          workspaces.map((path) => h('option', { value: path }, path)),
        );
      } catch (error) {
        return fill(this, errorNote(error));
      }
      return this.show(this.path ?? []);
    }

    show([path, workspace]) {
      if (path && workspace) {
        this.workspace.value = workspace;
        return this.edit(path, workspace);
      }
      fill(
        this,
        h(
          'section',
          { class: 'panel' },
          h('h2', null, 'Documents'),
          h(
            'div',
            { class: 'filters' },
            this.workspace,
            this.kind,
            this.status,
            this.text,
            button('New document', () => this.edit('', this.workspace.value), ''),
          ),
          this.note,
          this.table,
        ),
      );
      return this.refresh();
    }

    async refresh() {
      const find = { limit: MAX_SHOWN };
      if (this.text.value.trim()) find.text = this.text.value.trim();
      try {
        const { documents } = await post(
          '/documents/query',
          { workspace: this.workspace.value, query: find },
          { once: false },
        );
        this.documents = documents;
        const values = (name) =>
          [
            ...new Set(
              documents.map((entry) => entry[name]).filter((value) => typeof value === 'string'),
            ),
          ].sort();
        const options = (select, label, list) => {
          const chosen = select.value;
          fill(
            select,
            h('option', { value: '' }, label),
            list.map((value) => h('option', { value }, value)),
          );
          if (list.includes(chosen)) select.value = chosen;
        };
        options(this.kind, 'All kinds', values('kind'));
        options(this.status, 'All statuses', values('status'));
        fill(this.note);
        this.showTable();
      } catch (error) {
        fill(this.note, errorNote(error));
      }
    }

    showTable() {
      const wanted = this.documents.filter(
        (entry) =>
          (!this.kind.value || entry.kind === this.kind.value) &&
          (!this.status.value || entry.status === this.status.value),
      );
      if (!wanted.length) {
        return fill(
          this.table,
          emptyNote(
            'No document matches.',
            'A document is a Markdown file of the folder; front matter gives it a kind and a status.',
          ),
        );
      }
      const cell = (value) =>
        h(
          'td',
          { dir: 'auto' },
          value === undefined || value === null ? '' : visible(pretty(value)),
        );
      const workspace = encodeURIComponent(this.workspace.value);
      return fill(
        this.table,
        h(
          'table',
          null,
          h('caption', { class: 'dim' }, plural(wanted.length, 'document')),
          h(
            'thead',
            null,
            h(
              'tr',
              null,
              ['Title', 'Kind', 'Status', 'Path'].map((name) => h('th', { scope: 'col' }, name)),
            ),
          ),
          h(
            'tbody',
            null,
            wanted.map((entry) =>
              h(
                'tr',
                null,
                h(
                  'td',
                  { dir: 'auto' },
                  h(
                    'a',
                    { href: `#/documents/${encodeURIComponent(entry.path)}/${workspace}` },
                    visible(entry.title ?? entry.path),
                  ),
                ),
                cell(entry.kind),
                cell(entry.status),
                h('td', { class: 'id' }, entry.path),
              ),
            ),
          ),
        ),
      );
    }

    async edit(path, workspace) {
      const name = h('input', {
        type: 'text',
        'aria-label': 'Path',
        value: path,
        placeholder: 'issues/new.md',
        required: true,
      });
      const content = h('textarea', {
        rows: 24,
        class: 'editor',
        'aria-label': 'Content',
        spellcheck: 'true',
        dir: 'auto',
      });
      const note = h('div', { role: 'status' });
      const preview = h('div', { class: 'preview' });
      let lineEnd = '\n';
      if (path) {
        try {
          // The file as it is: what the editor does not change stays as it was.
          const file = query({ workspace, path, source: true });
          const document = await get(`/documents${file}`, this.stop.signal);
          content.value = document.content;
          // A text field has no other line ends.
          if (document.content.includes('\r\n')) lineEnd = '\r\n';
          fill(preview, rich('markdown', bodyOf(document.content)));
        } catch (error) {
          fill(note, errorNote(error));
        }
      } else {
        content.value = '---\nkind: issue\nstatus: open\ntitle: \n---\n\n';
      }
      const save = async (event) => {
        event.preventDefault();
        try {
          const text = content.value.replaceAll('\n', lineEnd);
          await put('/documents', { workspace, path: name.value.trim(), content: text });
          fill(note, h('p', { class: 'notice' }, 'Saved.'));
          fill(preview, rich('markdown', bodyOf(content.value)));
        } catch (error) {
          fill(note, errorNote(error));
        }
      };
      fill(
        this,
        h(
          'section',
          { class: 'panel' },
          h(
            'a',
            {
              class: 'back always',
              href: '#/documents',
              onclick: () => {
                if (location.hash === '#/documents') this.show([]);
              },
            },
            '← Documents',
          ),
          h('h2', null, path || 'New document'),
          h(
            'form',
            { class: 'document', onsubmit: save },
            path ? null : name,
            content,
            note,
            h(
              'div',
              { class: 'actions' },
              h('button', { type: 'submit', class: 'primary' }, 'Save'),
            ),
          ),
          h('h3', null, 'Preview'),
          preview,
        ),
      );
    }
  },
);

/** The text of a document after its front matter. */
function bodyOf(content) {
  return content.replace(/^---\r?\n(?:[\s\S]*?\r?\n)?---[ \t]*(?:\r?\n|$)/, '');
}
