// TextEncoder, TextDecoder and crypto. Hand-written, because the engine has none of them.
// The host converts valid UTF-8.

// Returns a text from `next`, which adds UTF-16 code units to the given array from a position and
// returns the position after them, or undefined at the end.
const collectUnits = (next) => {
  let text = "";
  let units = [];
  for (let at = 0; (at = next(units, at)) !== undefined; )
    if (units.length >= 4096) {
      text += String.fromCharCode(...units);
      units = [];
    }
  return text + String.fromCharCode(...units);
};

// Decodes UTF-8 as the Encoding Standard says. An invalid sequence calls `onInvalid`, which returns
// its replacement. If `onRest` is given, it gets an incomplete sequence at the end.
const utf8Decode = (host, bytes, onInvalid, onRest) =>
  host.utf8Decode(bytes) ??
  collectUnits((units, at) => {
    if (at >= bytes.length) return undefined;
    const first = bytes[at++];
    if (first < 0x80) return units.push(first), at;
    const length = first >= 0xc2 && first < 0xe0 ? 1 : first >= 0xe0 && first < 0xf0 ? 2 : first >= 0xf0 && first < 0xf5 ? 3 : 0;
    if (length === 0) return units.push(onInvalid()), at;
    let code = first & (0x3f >> length);
    let low = first === 0xe0 ? 0xa0 : first === 0xf0 ? 0x90 : 0x80;
    let high = first === 0xed ? 0x9f : first === 0xf4 ? 0x8f : 0xbf;
    const start = at - 1;
    for (let i = 0; i < length; i++, low = 0x80, high = 0xbf) {
      if (at >= bytes.length && onRest) return onRest(bytes.slice(start)), undefined;
      const byte = bytes[at];
      if (!(byte >= low && byte <= high)) return units.push(onInvalid()), at;
      code = (code << 6) | (byte & 63);
      at++;
    }
    if (code < 0x10000) units.push(code);
    else units.push(0xd7c0 + (code >> 10), 0xdc00 | (code & 0x3ff));
    return at;
  });

const encodingClasses = (host) => {
  const typedArray = Object.getPrototypeOf(Uint8Array);
  // Bytes 0x80 to 0x9f of windows-1252.
  const WINDOWS_1252 = "€\x81‚ƒ„…†‡ˆ‰Š‹Œ\x8dŽ\x8f\x90‘’“”•–—˜™š›œ\x9džŸ";
  const LABELS = {
    "utf-8": ["utf8", "utf-8", "unicode-1-1-utf-8"],
    "utf-16le": ["utf-16", "utf-16le", "ucs-2", "unicode"],
    "windows-1252": ["ascii", "us-ascii", "latin1", "iso-8859-1", "iso8859-1", "l1", "cp1252", "windows-1252"],
  };

  class TextEncoder {
    get encoding() {
      return "utf-8";
    }
    encode(text = "") {
      return host.utf8Encode(String(text).toWellFormed());
    }
    encodeInto(text, target) {
      if (!(target instanceof Uint8Array)) throw new TypeError("encodeInto takes a Uint8Array");
      let read = 0;
      let written = 0;
      for (const char of String(text).toWellFormed()) {
        const bytes = host.utf8Encode(char);
        if (written + bytes.length > target.length) break;
        target.set(bytes, written);
        read += char.length;
        written += bytes.length;
      }
      return { read, written };
    }
  }

  class TextDecoder {
    #encoding;
    #fatal;
    #ignoreBOM;
    #rest = [];
    #started = false;
    constructor(label = "utf-8", options) {
      const name = String(label).trim().toLowerCase();
      this.#encoding = Object.keys(LABELS).find((encoding) => LABELS[encoding].includes(name));
      if (this.#encoding === undefined)
        throw new RangeError(`the encoding ${JSON.stringify(String(label))} is not available: use utf-8, utf-16le or latin1`);
      this.#fatal = Boolean(options?.fatal);
      this.#ignoreBOM = Boolean(options?.ignoreBOM);
    }
    get encoding() {
      return this.#encoding;
    }
    get fatal() {
      return this.#fatal;
    }
    get ignoreBOM() {
      return this.#ignoreBOM;
    }
    decode(input, options) {
      let bytes;
      if (input === undefined) bytes = new Uint8Array(0);
      else if (input instanceof ArrayBuffer) bytes = new Uint8Array(input);
      else if (input instanceof typedArray || input instanceof DataView) bytes = new Uint8Array(input.buffer, input.byteOffset, input.byteLength);
      else throw new TypeError("decode takes an ArrayBuffer, a typed array or a DataView");
      if (this.#rest.length > 0) bytes = new Uint8Array([...this.#rest, ...bytes]);
      this.#rest = [];
      const stream = Boolean(options?.stream);
      const onRest = stream ? (rest) => void (this.#rest = [...rest]) : undefined;
      let text;
      try {
        text = this.#decode(bytes, onRest);
      } catch (error) {
        this.#started = false;
        throw error;
      }
      if (!this.#ignoreBOM && !this.#started && this.#encoding !== "windows-1252" && text[0] === "\ufeff") text = text.slice(1);
      this.#started = stream && (this.#started || text.length > 0);
      return text;
    }
    #decode(bytes, onRest) {
      const onInvalid = () => {
        if (this.#fatal) throw new TypeError(`the data is not valid ${this.#encoding}`);
        return 0xfffd;
      };
      if (this.#encoding === "utf-8") return utf8Decode(host, bytes, onInvalid, onRest);
      if (this.#encoding === "windows-1252")
        return collectUnits((units, at) => {
          if (at >= bytes.length) return undefined;
          const byte = bytes[at];
          units.push(byte >= 0x80 && byte < 0xa0 ? WINDOWS_1252.charCodeAt(byte - 0x80) : byte);
          return at + 1;
        });
      const text = collectUnits((units, at) => {
        if (at + 1 >= bytes.length) {
          if (at < bytes.length) onRest ? onRest(bytes.slice(at)) : units.push(onInvalid());
          return undefined;
        }
        const unit = bytes[at] | (bytes[at + 1] << 8);
        // The other half of a surrogate pair may come with the next bytes.
        if (onRest && bytes.length - at < 4 && unit >> 10 === 0x36) return onRest(bytes.slice(at)), undefined;
        units.push(unit);
        return at + 2;
      });
      if (this.#fatal && !text.isWellFormed()) onInvalid();
      return text.toWellFormed();
    }
  }

  // Random values continue the run's seeded generator, as Math.random does, so that a replay sees
  // the same ones. They are no secrets.
  const random = Math.random;
  const fill = (bytes) => {
    for (let i = 0; i < bytes.length; i++) bytes[i] = random() * 256;
    return bytes;
  };
  const integers = [Int8Array, Uint8Array, Uint8ClampedArray, Int16Array, Uint16Array, Int32Array, Uint32Array, BigInt64Array, BigUint64Array];
  const crypto = {
    getRandomValues(array) {
      if (!integers.some((kind) => array instanceof kind)) throw new TypeError("getRandomValues takes an array of integers");
      if (array.byteLength > 65536) throw new RangeError("getRandomValues fills at most 65536 bytes");
      fill(new Uint8Array(array.buffer, array.byteOffset, array.byteLength));
      return array;
    },
    randomUUID() {
      const bytes = fill(new Uint8Array(16));
      bytes[6] = (bytes[6] & 0x0f) | 0x40;
      bytes[8] = (bytes[8] & 0x3f) | 0x80;
      return bytes.toHex().replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
    },
  };

  for (const [name, kind] of Object.entries({ TextEncoder, TextDecoder }))
    Object.defineProperty(kind.prototype, Symbol.toStringTag, { value: name, configurable: true });
  return { TextEncoder, TextDecoder, crypto };
};
