// The hosts of URLs: domains, IPv4 and IPv6 addresses. International domain names are lower-cased and
// converted to Punycode without the tables of UTS 46. `decode` reverses percent-encoding,
// `encodeControl` percent-encodes control characters.
const hostParser = (decode, encodeControl) => {
  const INVALID = Symbol("invalid");
  const FORBIDDEN_IN_HOST = /[\0\t\n\r #/:<>?@[\\\]^|]/;
  const FORBIDDEN_IN_DOMAIN = /[\0-\x20#%/:<>?@[\\\]^|\x7f]/;

  // Encodes one label of a domain name as Punycode (RFC 3492).
  const punycode = (label) => {
    const points = Array.from(label, (char) => char.codePointAt(0));
    let output = points.filter((point) => point < 128).map((point) => String.fromCharCode(point)).join("");
    let done = output.length;
    const basic = done;
    if (basic > 0) output += "-";
    const digit = (value) => String.fromCharCode(value < 26 ? value + 97 : value + 22);
    let [code, delta, bias] = [128, 0, 72];
    while (done < points.length) {
      const next = Math.min(...points.filter((point) => point >= code));
      delta += (next - code) * (done + 1);
      code = next;
      for (const point of points) {
        if (point < code) delta++;
        if (point !== code) continue;
        let rest = delta;
        for (let k = 36; ; k += 36) {
          const threshold = k <= bias ? 1 : k >= bias + 26 ? 26 : k - bias;
          if (rest < threshold) break;
          output += digit(threshold + ((rest - threshold) % (36 - threshold)));
          rest = Math.floor((rest - threshold) / (36 - threshold));
        }
        output += digit(rest);
        delta = Math.floor(delta / (done === basic ? 700 : 2));
        delta += Math.floor(delta / ++done);
        for (bias = 0; delta > 455; bias += 36) delta = Math.floor(delta / 35);
        bias += Math.floor((36 * delta) / (delta + 38));
        delta = 0;
      }
      delta++;
      code++;
    }
    return `xn--${output}`;
  };
  const toAscii = (domain) => {
    if (/^[\0-\x7f]*$/.test(domain)) return domain.toLowerCase();
    const mapped = domain.normalize("NFKC").replace(/[\u00ad\u200b\u2060\ufeff]/g, "").toLowerCase().normalize("NFC");
    return mapped.split(/[.\u3002]/).map((label) => (/^[\0-\x7f]*$/.test(label) ? label : punycode(label))).join(".");
  };

  const ipv4Number = (text) => {
    const [, prefix, digits] = /^(0x|0(?=.))?(.*)$/is.exec(text);
    const base = prefix === undefined ? 10 : prefix === "0" ? 8 : 16;
    if (base === 16 && digits === "") return 0;
    return { 8: /^[0-7]+$/, 10: /^\d+$/, 16: /^[\da-f]+$/i }[base].test(digits) ? parseInt(digits, base) : NaN;
  };
  // Returns the host for a domain whose last label is a number, and the domain itself otherwise.
  const parseIpv4 = (domain) => {
    const parts = domain.split(".");
    if (parts.at(-1) === "" && parts.length > 1) parts.pop();
    const last = parts.at(-1);
    if (!/^\d+$/.test(last) && !(/^0x/i.test(last) && !Number.isNaN(ipv4Number(last)))) return domain;
    const numbers = parts.map(ipv4Number);
    const tail = numbers.pop();
    const fits = parts.length <= 4 && numbers.every((number) => number <= 255) && tail < 256 ** (4 - numbers.length);
    if (!fits) return INVALID;
    const address = numbers.reduce((sum, number, i) => sum + number * 256 ** (3 - i), tail);
    return [24, 16, 8, 0].map((shift) => Math.floor(address / 2 ** shift) % 256).join(".");
  };

  const parseIpv6 = (text) => {
    const halves = text.split("::");
    if (halves.length > 2) return INVALID;
    const groups = halves.map((half) => (half === "" ? [] : half.split(":")));
    const end = groups.at(-1);
    if (end.at(-1)?.includes(".")) {
      const bytes = end.pop().split(".");
      if (bytes.length !== 4 || !bytes.every((byte) => /^(0|[1-9]\d{0,2})$/.test(byte) && byte <= 255)) return INVALID;
      for (const i of [0, 2]) end.push((bytes[i] * 256 + Number(bytes[i + 1])).toString(16));
    }
    const count = groups.flat().length;
    if (halves.length === 2 ? count > 7 : count !== 8) return INVALID;
    if (!groups.flat().every((group) => /^[\da-f]{1,4}$/i.test(group))) return INVALID;
    const zeros = Array(8 - count).fill("0");
    const pieces = (halves.length === 2 ? [...groups[0], ...zeros, ...groups[1]] : groups[0]).map((group) => parseInt(group, 16).toString(16));
    // The first of the longest runs of zeros is omitted.
    const full = pieces.join(":");
    const runs = [...full.matchAll(/\b0(:0)+\b/g)].map((run) => [run.index, run.index + run[0].length]);
    if (runs.length === 0) return `[${full}]`;
    const [start, stop] = runs.reduce((best, run) => (run[1] - run[0] > best[1] - best[0] ? run : best));
    return `[${full.slice(0, Math.max(0, start - 1))}::${full.slice(stop + 1)}]`;
  };

  const parseHost = (text, opaque) => {
    if (text.startsWith("[")) return text.endsWith("]") ? parseIpv6(text.slice(1, -1)) : INVALID;
    if (opaque) return FORBIDDEN_IN_HOST.test(text) ? INVALID : encodeControl(text);
    const domain = toAscii(decode(text));
    return domain === "" || FORBIDDEN_IN_DOMAIN.test(domain) ? INVALID : parseIpv4(domain);
  };
  return { parseHost, INVALID };
};
