// URL and URLSearchParams as the URL Standard (WHATWG) defines them. Hand-written, because the
// engine has none.
const urlClasses = (host) => {
  const DEFAULT_PORTS = { __proto__: null, "http:": "80", "https:": "443", "ws:": "80", "wss:": "443", "ftp:": "21", "file:": "" };
  const isSpecial = (url) => url.scheme in DEFAULT_PORTS;

  // Characters that are encoded in each part of a URL.
  const CONTROL = /[^\x20-\x7e]/gu;
  const FRAGMENT = /[^\x21-\x7e]|["<>`]/gu;
  const QUERY = /[^\x21-\x7e]|["#<>]/gu;
  const SPECIAL_QUERY = /[^\x21-\x7e]|["#<>']/gu;
  const PATH = /[^\x21-\x7e]|["#<>?^`{}]/gu;
  const USERINFO = /[^\x21-\x7e]|["#<>?^`{}/:;=@[\\\]|]/gu;
  const FORM = /[^*\-._A-Za-z0-9 ]/gu;
  const hexByte = (byte) => `%${byte < 16 ? "0" : ""}${byte.toString(16).toUpperCase()}`;
  const encode = (text, pattern) => text.replace(pattern, (char) => Array.from(host.utf8Encode(char), hexByte).join(""));
  const decode = (text) => {
    if (!text.includes("%")) return text;
    const bytes = host.utf8Encode(text);
    const out = [];
    for (let i = 0; i < bytes.length; i++) {
      const digits = bytes[i] === 37 ? String.fromCharCode(...bytes.slice(i + 1, i + 3)) : "";
      if (/^[0-9a-f]{2}$/i.test(digits)) {
        out.push(parseInt(digits, 16));
        i += 2;
      } else out.push(bytes[i]);
    }
    return utf8Decode(host, new Uint8Array(out), () => 0xfffd);
  };
  const usv = (value) => String(value).toWellFormed();

  const { parseHost, INVALID } = hostParser(decode, (text) => encode(text, CONTROL));

  // A parsed URL. `path` is a list of segments, or a string if it is opaque (`mailto:a@b`).
  const newRecord = (scheme) => ({ scheme, username: "", password: "", host: null, port: "", path: [], query: null, fragment: null });
  const isDriveLetter = (text) => /^[a-z][:|]$/i.test(text);
  const startsWithDriveLetter = (text) => /^[a-z][:|]($|[/\\])/i.test(text);
  const shorten = (url) => {
    if (url.scheme === "file:" && url.path.length === 1 && /^[a-z]:$/i.test(url.path[0])) return;
    url.path.pop();
  };
  const slashes = (url) => (isSpecial(url) ? /[/\\]/ : /\//);
  const startsWithSlash = (url, text) => text[0] === "/" || (isSpecial(url) && text[0] === "\\");

  // Adds the segments of a text that has no leading slash.
  const parsePath = (url, text) => {
    const segments = text.split(slashes(url));
    segments.forEach((segment, i) => {
      const last = i === segments.length - 1;
      const dots = segment.replace(/%2e/gi, ".");
      if (dots === "..") shorten(url);
      if (dots === ".." || dots === ".") {
        if (last) url.path.push("");
        return;
      }
      if (url.scheme === "file:" && url.path.length === 0 && isDriveLetter(segment)) segment = `${segment[0]}:`;
      url.path.push(encode(segment, PATH));
    });
  };
  const parsePathStart = (url, text) => {
    if (startsWithSlash(url, text)) parsePath(url, text.slice(1));
    else if (isSpecial(url) || text !== "") parsePath(url, text);
  };
  const setPort = (url, text) => {
    if (!/^\d*$/.test(text) || Number(text) > 65535) return false;
    const port = text === "" ? "" : String(Number(text));
    url.port = port === DEFAULT_PORTS[url.scheme] ? "" : port;
    return true;
  };
  // Splits `host:port`. The port is undefined if there is no colon.
  const splitPort = (text) => {
    const at = text.indexOf(":", text.startsWith("[") ? text.indexOf("]") : 0);
    return at < 0 ? [text] : [text.slice(0, at), text.slice(at + 1)];
  };
  const parseAuthority = (url, text) => {
    const end = text.search(slashes(url));
    const authority = end < 0 ? text : text.slice(0, end);
    const at = authority.lastIndexOf("@");
    if (at >= 0) {
      const [username, ...password] = authority.slice(0, at).split(":");
      url.username = encode(username, USERINFO);
      url.password = encode(password.join(":"), USERINFO);
    }
    const [host, port] = splitPort(authority.slice(at + 1));
    if (host === "" && (isSpecial(url) || at >= 0 || port !== undefined)) return false;
    url.host = parseHost(host, !isSpecial(url));
    if (url.host === INVALID || !setPort(url, port ?? "")) return false;
    parsePathStart(url, end < 0 ? "" : text.slice(end));
    return true;
  };
  const parseFile = (url, text, base) => {
    url.host = "";
    if (/^[/\\]{2}/.test(text)) {
      const end = text.slice(2).search(/[/\\]/);
      const host = end < 0 ? text.slice(2) : text.slice(2, end + 2);
      if (isDriveLetter(host)) return parsePath(url, text.slice(2)), true;
      url.host = host === "" ? "" : parseHost(host, false);
      if (url.host === "localhost") url.host = "";
      parsePathStart(url, text.slice(2 + host.length));
      return url.host !== INVALID;
    }
    if (base?.scheme === "file:") {
      url.host = base.host;
      if (/^[/\\]/.test(text)) {
        if (!startsWithDriveLetter(text.slice(1)) && /^[a-z]:$/i.test(base.path[0])) url.path = [base.path[0]];
      } else if (!startsWithDriveLetter(text)) {
        url.path = [...base.path];
        if (text === "") return (url.query ??= base.query), true;
        shorten(url);
      }
    }
    parsePath(url, text.replace(/^[/\\]/, ""));
    return true;
  };
  const parseRelative = (url, text, base) => {
    if (startsWithSlash(url, text) && startsWithSlash(url, text.slice(1)))
      return parseAuthority(url, isSpecial(url) ? text.replace(/^[/\\]+/, "") : text.slice(2));
    const { username, password, host, port } = base;
    Object.assign(url, { username, password, host, port });
    if (startsWithSlash(url, text)) return parsePath(url, text.slice(1)), true;
    url.path = [...base.path];
    if (text === "") return (url.query ??= base.query), true;
    shorten(url);
    parsePath(url, text);
    return true;
  };
  const setQuery = (url, text) => void (url.query = encode(text, isSpecial(url) ? SPECIAL_QUERY : QUERY));

  // Parses a URL. Returns undefined if it is invalid.
  const parse = (input, base) => {
    let end = input.length;
    while (input.charCodeAt(end - 1) <= 32) end--;
    let text = input.slice(0, end).replace(/^[\0- ]+/, "").replace(/[\t\n\r]/g, "");
    const cut = (mark) => {
      const at = text.indexOf(mark);
      const rest = at < 0 ? null : text.slice(at + 1);
      if (at >= 0) text = text.slice(0, at);
      return rest;
    };
    const fragment = cut("#");
    const query = cut("?");
    const scheme = /^[a-z][a-z\d+.-]*:/i.exec(text)?.[0].toLowerCase();
    if (scheme === undefined && base === undefined) return undefined;
    const url = newRecord(scheme ?? base.scheme);
    if (query !== null) setQuery(url, query);
    if (fragment !== null) url.fragment = encode(fragment, FRAGMENT);
    if (scheme === undefined && typeof base.path === "string") {
      if (text !== "" || query !== null || fragment === null) return undefined;
      return { ...base, fragment: url.fragment };
    }
    const rest = scheme === undefined ? text : text.slice(scheme.length);
    const related = scheme === undefined || scheme === base?.scheme;
    let valid = true;
    if (url.scheme === "file:") valid = parseFile(url, rest, base);
    else if (scheme === undefined || (isSpecial(url) && related && !rest.startsWith("//"))) valid = parseRelative(url, rest, base);
    else if (isSpecial(url)) valid = parseAuthority(url, rest.replace(/^[/\\]+/, ""));
    else if (rest.startsWith("//")) valid = parseAuthority(url, rest.slice(2));
    else if (rest.startsWith("/")) parsePath(url, rest.slice(1));
    else url.path = encode(query === null && fragment === null ? rest : rest.replace(/ +$/, (spaces) => spaces.slice(1) + "%20"), CONTROL);
    return valid ? url : undefined;
  };

  // Parses a URL that may be relative to `base`.
  const resolve = (input, base) => {
    const baseUrl = base === undefined ? undefined : parse(usv(base));
    return base !== undefined && baseUrl === undefined ? undefined : parse(usv(input), baseUrl);
  };
  const invalidUrl = (input, base) => {
    const show = (value) => JSON.stringify(usv(value).slice(0, 200));
    return new TypeError(`invalid URL: ${show(input)}${base === undefined ? "" : ` with the base ${show(base)}`}`);
  };

  const pathText = (url) => (typeof url.path === "string" ? url.path : url.path.map((segment) => `/${segment}`).join(""));
  const hostText = (url) => (url.host ?? "") + (url.port === "" ? "" : `:${url.port}`);
  const serialize = (url) => {
    let text = url.scheme;
    if (url.host !== null) {
      text += "//";
      if (url.username !== "" || url.password !== "") text += `${url.username}${url.password === "" ? "" : `:${url.password}`}@`;
      text += hostText(url);
    } else if (typeof url.path !== "string" && url.path.length > 1 && url.path[0] === "") text += "/.";
    text += pathText(url);
    if (url.query !== null) text += `?${url.query}`;
    return url.fragment === null ? text : `${text}#${url.fragment}`;
  };
  const originOf = (url) => {
    if (url.scheme === "blob:") {
      const inner = parse(pathText(url));
      return inner && /^https?:$/.test(inner.scheme) ? originOf(inner) : "null";
    }
    return isSpecial(url) && url.scheme !== "file:" ? `${url.scheme}//${hostText(url)}` : "null";
  };

  const parsePairs = (text) =>
    text.split("&").filter(Boolean).map((part) => {
      const at = part.indexOf("=");
      const pair = at < 0 ? [part, ""] : [part.slice(0, at), part.slice(at + 1)];
      return pair.map((item) => decode(item.replaceAll("+", " ")));
    });
  const encodeForm = (text) => encode(text, FORM).replaceAll(" ", "+");
  let link; // connects a new URLSearchParams with its URL: set by the class below

  class URLSearchParams {
    #pairs = [];
    #onChange = undefined;
    static {
      link = (params, onChange) => {
        params.#onChange = onChange;
        return (text) => void (params.#pairs = parsePairs(text));
      };
    }
    constructor(init = "") {
      if (typeof init === "object" && init !== null) {
        const iterable = init[Symbol.iterator] != null;
        for (const pair of iterable ? init : Object.entries(init)) {
          const items = Array.from(pair, usv);
          if (items.length !== 2) throw new TypeError("URLSearchParams: each entry must be a pair [name, value]");
          this.#pairs.push(items);
        }
      } else this.#pairs = parsePairs(usv(init).replace(/^\?/, ""));
    }
    #changed() {
      this.#onChange?.(this.toString());
    }
    get size() {
      return this.#pairs.length;
    }
    append(name, value) {
      this.#pairs.push([usv(name), usv(value)]);
      this.#changed();
    }
    delete(name, value) {
      const [wanted, only] = [usv(name), value === undefined ? undefined : usv(value)];
      this.#pairs = this.#pairs.filter(([key, item]) => key !== wanted || (only !== undefined && item !== only));
      this.#changed();
    }
    get(name) {
      const wanted = usv(name);
      return this.#pairs.find(([key]) => key === wanted)?.[1] ?? null;
    }
    getAll(name) {
      const wanted = usv(name);
      return this.#pairs.filter(([key]) => key === wanted).map(([, item]) => item);
    }
    has(name, value) {
      const [wanted, only] = [usv(name), value === undefined ? undefined : usv(value)];
      return this.#pairs.some(([key, item]) => key === wanted && (only === undefined || item === only));
    }
    set(name, value) {
      const [wanted, item] = [usv(name), usv(value)];
      const at = this.#pairs.findIndex(([key]) => key === wanted);
      if (at < 0) this.#pairs.push([wanted, item]);
      else {
        this.#pairs[at][1] = item;
        this.#pairs = this.#pairs.filter(([key], i) => key !== wanted || i <= at);
      }
      this.#changed();
    }
    sort() {
      this.#pairs.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
      this.#changed();
    }
    forEach(callback, thisArg) {
      for (const [key, item] of this) callback.call(thisArg, item, key, this);
    }
    keys() {
      return this.#pairs.map(([key]) => key).values();
    }
    values() {
      return this.#pairs.map(([, item]) => item).values();
    }
    entries() {
      return this.#pairs.map((pair) => [...pair]).values();
    }
    toString() {
      return this.#pairs.map((pair) => pair.map(encodeForm).join("=")).join("&");
    }
  }

  class URL {
    #url;
    #params;
    #setParams;
    constructor(input, base) {
      const url = resolve(input, base);
      if (url === undefined) throw invalidUrl(input, base);
      this.#url = url;
    }
    static canParse(input, base) {
      return resolve(input, base) !== undefined;
    }
    static parse(input, base) {
      return URL.canParse(input, base) ? new URL(input, base) : null;
    }
    // Changes a copy of the URL, and takes it unless `change` returns false.
    #update(change) {
      const url = { ...this.#url };
      if (change(url) !== false) this.#url = url;
    }
    #hasNoPort() {
      return this.#url.host === null || this.#url.host === "" || this.#url.scheme === "file:";
    }
    get href() {
      return serialize(this.#url);
    }
    set href(value) {
      const url = parse(usv(value));
      if (url === undefined) throw invalidUrl(value);
      this.#url = url;
      this.#setParams?.(url.query ?? "");
    }
    get origin() {
      return originOf(this.#url);
    }
    get protocol() {
      return this.#url.scheme;
    }
    set protocol(value) {
      const scheme = /^([a-z][a-z\d+.-]*)(:|$)/i.exec(usv(value))?.[1].toLowerCase();
      this.#update((url) => {
        if (scheme === undefined || isSpecial(url) !== isSpecial({ scheme: `${scheme}:` })) return false;
        const hasDetails = url.username !== "" || url.password !== "" || url.port !== "";
        if ((scheme === "file" && hasDetails) || (url.scheme === "file:" && url.host === "")) return false;
        url.scheme = `${scheme}:`;
        setPort(url, url.port);
      });
    }
    get username() {
      return this.#url.username;
    }
    set username(value) {
      if (!this.#hasNoPort()) this.#update((url) => void (url.username = encode(usv(value), USERINFO)));
    }
    get password() {
      return this.#url.password;
    }
    set password(value) {
      if (!this.#hasNoPort()) this.#update((url) => void (url.password = encode(usv(value), USERINFO)));
    }
    get host() {
      return hostText(this.#url);
    }
    set host(value) {
      this.#setHost(usv(value), true);
    }
    get hostname() {
      return this.#url.host ?? "";
    }
    set hostname(value) {
      this.#setHost(usv(value), false);
    }
    #setHost(value, withPort) {
      this.#update((url) => {
        if (typeof url.path === "string") return false;
        const text = value.replace(/[\t\n\r]/g, "").split(isSpecial(url) ? /[/\\?#]/ : /[/?#]/)[0];
        const [host, port] = splitPort(text);
        const hasDetails = url.username !== "" || url.password !== "" || url.port !== "";
        if (host === "" && (port !== undefined || (isSpecial(url) ? url.scheme !== "file:" : hasDetails))) return false;
        if (port !== undefined && (!withPort || url.scheme === "file:")) return false;
        const parsed = host === "" ? "" : parseHost(host, !isSpecial(url));
        if (parsed === INVALID) return false;
        url.host = url.scheme === "file:" && parsed === "localhost" ? "" : parsed;
        const digits = /^\d+/.exec(port ?? "")?.[0];
        if (digits !== undefined) setPort(url, digits);
      });
    }
    get port() {
      return this.#url.port;
    }
    set port(value) {
      const text = usv(value).replace(/[\t\n\r]/g, "");
      const digits = /^\d+/.exec(text)?.[0];
      if (!this.#hasNoPort() && (text === "" || digits !== undefined)) this.#update((url) => setPort(url, digits ?? ""));
    }
    get pathname() {
      return pathText(this.#url);
    }
    set pathname(value) {
      this.#update((url) => {
        if (typeof url.path === "string") return false;
        url.path = [];
        // `?` and `#` belong to the path here.
        parsePathStart(url, usv(value).replace(/[\t\n\r]/g, ""));
      });
    }
    get search() {
      return this.#url.query ? `?${this.#url.query}` : "";
    }
    set search(value) {
      const text = usv(value).replace(/[\t\n\r]/g, "").replace(/^\?/, "");
      this.#update((url) => void (usv(value) === "" ? (url.query = null) : setQuery(url, text)));
      this.#setParams?.(text);
    }
    get searchParams() {
      if (this.#params === undefined) {
        this.#params = new URLSearchParams(this.#url.query ?? "");
        this.#setParams = link(this.#params, (text) => this.#update((url) => void (url.query = text === "" ? null : text)));
      }
      return this.#params;
    }
    get hash() {
      return this.#url.fragment ? `#${this.#url.fragment}` : "";
    }
    set hash(value) {
      const text = usv(value).replace(/[\t\n\r]/g, "").replace(/^#/, "");
      this.#update((url) => void (url.fragment = usv(value) === "" ? null : encode(text, FRAGMENT)));
    }
    toString() {
      return this.href;
    }
    toJSON() {
      return this.href;
    }
  }

  const hidden = (object, name, value) => Object.defineProperty(object, name, { value, writable: true, configurable: true });
  hidden(URLSearchParams.prototype, Symbol.iterator, URLSearchParams.prototype.entries);
  hidden(URLSearchParams.prototype, Symbol.toStringTag, "URLSearchParams");
  hidden(URL.prototype, Symbol.toStringTag, "URL");
  return { URL, URLSearchParams };
};
