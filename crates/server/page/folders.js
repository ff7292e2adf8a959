// The folders that a person can choose from.

import { get } from '/page/api.js';
import { fill, h } from '/page/dom.js';
import { visible } from '/page/format.js';

/**
 * Creates a list of the folders of the login, with the attributes `props`. Returns the `select`, and
 * `ready`, which resolves to their paths when they are shown. It is rejected if there are none.
 */
export function folderList(props, signal) {
  const select = h('select', props);
  const show = async () => {
    const { workspaces } = await get('/workspaces', signal);
    fill(
      select,
      workspaces.map((path) => h('option', { value: path }, visible(path))),
    );
    if (workspaces.length) return workspaces;
    const hint =
      'run `selvedge serve token create NAME --workspace FOLDER` on the machine of the server, and log in again';
    throw Object.assign(new Error('this login has no folder to work in'), { hint });
  };
  return { select, ready: show() };
}
