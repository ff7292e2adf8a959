// Documents of a workspace: a table by kind and status, and an editor.

import { get, post, put, query } from '/page/api.js';
import { answerOrder, button, debounce, emptyNote, errorNote, field, fill, h } from '/page/dom.js';
import { folderList } from '/page/folders.js';
import { plural, pretty, visible } from '/page/format.js';
import { readField, valuesOf, writeField } from '/page/front-matter.js';
import { choices, newDocumentForm } from '/page/new-document.js';
import { rich } from '/page/render.js';
import { watchEdits } from '/page/unsaved.js';

/** Documents that the table shows. */
const MAX_SHOWN = 500;

customElements.define(
  'sv-documents',
  class extends HTMLElement {
    connectedCallback() {
      this.stop = new AbortController();
      const props = { 'aria-label': 'Folder', onchange: () => this.refresh() };
      const { select, ready } = folderList(props, this.stop.signal);
      this.workspace = select;
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
      this.beginRead = answerOrder();
      this.start(ready);
    }

    disconnectedCallback() {
      this.stop.abort();
    }

    async start(ready) {
      try {
        await ready;
      } catch (error) {
        return fill(this, errorNote(error));
      }
      return this.show(this.path ?? []);
    }

    show([path, workspace]) {
      // A slow answer must not replace what was opened later.
      const own = (this.shown = (this.shown ?? 0) + 1);
      if (workspace) {
        this.workspace.value = workspace;
        return path ? this.edit(path, workspace, own) : this.create(workspace);
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
            button(
              'New document',
              () => {
                location.hash = `#/documents//${encodeURIComponent(this.workspace.value)}`;
              },
              'primary',
            ),
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
      const isNewest = this.beginRead();
      try {
        const { documents } = await this.query(this.workspace.value, find);
        if (!isNewest()) return;
        this.documents = documents;
        const values = (name) => valuesOf(documents, name);
        const options = (select, label, list) => {
          const chosen = select.value;
          fill(
            select,
            h('option', { value: '' }, label),
            list.map((value) => h('option', { value }, visible(value))),
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

    query(workspace, find) {
      return post('/documents/query', { workspace, query: find }, { once: false });
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
                h('td', { class: 'id' }, visible(entry.path)),
              ),
            ),
          ),
        ),
      );
    }

    /** Shows the form of a new document. */
    create(workspace) {
      const values = (name) => valuesOf(this.documents, name);
      const { form, focus } = newDocumentForm({
        workspace,
        kinds: values('kind'),
        statuses: values('status'),
        onSaved: (path) => {
          this.isCreated = true;
          const address = [path, workspace].map(encodeURIComponent).join('/');
          location.hash = `#/documents/${address}`;
        },
      });
      fill(this, h('section', { class: 'panel' }, backLink(), h('h2', null, 'New document'), form));
      focus();
    }

    /** Suggests the kinds and statuses of other documents. */
    async suggest(element, workspace) {
      const { documents } = await this.query(workspace, { limit: MAX_SHOWN }).catch(() => ({
        documents: this.documents,
      }));
      const lists = ['kind', 'status'].map((name) =>
        choices(`document-${name}`, valuesOf(documents, name)),
      );
      fill(element, lists);
    }

    async edit(path, workspace, own) {
      const content = h('textarea', {
        rows: 24,
        class: 'editor',
        'aria-label': 'Content',
        spellcheck: 'true',
        dir: 'auto',
        oninput: debounce(() => {
          showPreview();
          showFields();
        }, 400),
      });
      // The fields and the text are the same document: each changes the other.
      const fields = ['kind', 'status'].map((name) => {
        const input = h('input', {
          type: 'text',
          list: `document-${name}`,
          oninput: () => {
            content.value = writeField(content.value, name, input.value.trim());
          },
        });
        return [name, input];
      });
      const showFields = () =>
        fields.forEach(([name, input]) => {
          if (input !== document.activeElement) input.value = readField(content.value, name);
        });
      const suggested = h('div');
      const note = h('div', { role: 'status' });
      const preview = h('div', { class: 'preview' });
      const showPreview = () => fill(preview, rich('markdown', bodyOf(content.value)));
      // The file as it is: what the editor does not change stays as it was.
      let stored;
      try {
        const file = query({ workspace, path, source: true });
        stored = (await get(`/documents${file}`, this.stop.signal)).content;
        if (own !== this.shown) return;
      } catch (error) {
        if (own !== this.shown) return;
        // Without its content, there is nothing to edit: saving would replace the document.
        const again = button('Try again', () => this.edit(path, workspace, own));
        const actions = h('div', { class: 'actions' }, again);
        const parts = [backLink(), h('h2', null, visible(path)), errorNote(error), actions];
        fill(this, h('section', { class: 'panel' }, ...parts));
        return;
      }
      content.value = stored;
      let saved = content.value;
      showPreview();
      showFields();
      this.suggest(suggested, workspace);
      const save = async (event) => {
        event.preventDefault();
        try {
          const edited = content.value;
          const text = withLineEnds(edited, stored);
          await put('/documents', { workspace, path, content: text, replaces: stored });
          stored = text;
          saved = edited;
          fill(note, h('p', { class: 'notice good' }, 'Saved.'));
          showPreview();
        } catch (error) {
          fill(note, errorNote(error));
        }
      };
      if (this.isCreated) fill(note, h('p', { class: 'notice good' }, 'Created.'));
      this.isCreated = false;
      watchEdits(content, () => content.value !== saved);
      fill(
        this,
        h(
          'section',
          { class: 'panel' },
          backLink(),
          h('h2', null, visible(path)),
          h(
            'form',
            { class: 'document', onsubmit: save },
            h(
              'div',
              { class: 'field-row' },
              field('Kind', fields[0][1]),
              field('Status', fields[1][1]),
            ),
            suggested,
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

/**
 * A text of the editor with the line ends of a file: those of the lines before and after the
 * changed ones, and the first of the file for changed lines. A text field has no other line ends
 * than `\n`.
 */
function withLineEnds(text, file) {
  const ends = file.match(/\r\n|\r|\n/g) ?? [];
  const [before, now] = [file.split(/\r\n|\r|\n/), text.split('\n')];
  const shorter = Math.min(before.length, now.length);
  let same = 0;
  while (same < shorter && before[same] === now[same]) same += 1;
  const moved = now.length - before.length;
  let after = now.length;
  while (after > same && after - moved > same && before[after - moved - 1] === now[after - 1])
    after -= 1;
  const endOf = (at) => {
    if (at === now.length - 1) return '';
    const own = at < same ? ends[at] : at >= after ? ends[at - moved] : undefined;
    return own ?? ends[0] ?? '\n';
  };
  const joined = now.map((line, at) => line + endOf(at)).join('');
  // A `\r` that comes before a `\n` now would be one line end with it.
  const isSame = joined.replaceAll(/\r\n|\r/g, '\n') === text;
  return isSame ? joined : now.join(ends[0]);
}

function backLink() {
  return h('a', { class: 'back always', href: '#/documents' }, '← Documents');
}

/** The text of a document after its front matter. */
function bodyOf(content) {
  return content.replace(/^---\r?\n(?:[\s\S]*?\r?\n)?---[ \t]*(?:\r?\n|$)/, '');
}
