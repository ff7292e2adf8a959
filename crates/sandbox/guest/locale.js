// Replaces the locale methods that scripts use most, because the engine has no locale data. They
// behave as in en-US: grouped numbers, and text compared by letter, then accent, then case.
const localise = () => {
  const defineHidden = (object, name, value) => Object.defineProperty(object, name, { value, writable: true, configurable: true });

  const group = (digits) => digits.replace(/\B(?=(\d{3})+(?!\d))/g, ",");
  const formatNumber = (number, options) => {
    if (!Number.isFinite(number)) return Number.isNaN(number) ? "NaN" : number < 0 ? "-∞" : "∞";
    const percent = options.style === "percent";
    const money = options.style === "currency";
    const minDigits = options.minimumFractionDigits ?? (money ? 2 : 0);
    const maxDigits = options.maximumFractionDigits ?? Math.max(minDigits, percent ? 0 : money ? 2 : 3);
    const [whole, fraction = ""] = Math.abs(percent ? number * 100 : number).toFixed(Math.min(100, maxDigits)).split(".");
    const decimals = fraction.replace(/0+$/, "").padEnd(minDigits, "0");
    const sign = number < 0 ? "-" : "";
    const symbol = money ? ({ USD: "$", EUR: "€", GBP: "£", JPY: "¥" }[options.currency] ?? `${options.currency ?? ""} `) : "";
    const digits = options.useGrouping === false ? whole : group(whole);
    return `${sign}${symbol}${digits}${decimals ? `.${decimals}` : ""}${percent ? "%" : ""}`;
  };
  defineHidden(Number.prototype, "toLocaleString", {
    toLocaleString(_locale, options) {
      return formatNumber(Number(this), options ?? {});
    },
  }.toLocaleString);
  defineHidden(BigInt.prototype, "toLocaleString", {
    toLocaleString() {
      return String(this).replace(/\d+/, group);
    },
  }.toLocaleString);

  const letters = (text) => text.normalize("NFD").replace(/\p{M}/gu, "");
  const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  const orderNumeric = (a, b) => {
    const parts = (text) => text.match(/\d+|\D+/g) ?? [];
    const [left, right] = [parts(a), parts(b)];
    for (let i = 0; i < Math.min(left.length, right.length); i++) {
      const numeric = /^\d/.test(left[i]) && /^\d/.test(right[i]);
      const result = numeric ? order(Number(left[i]), Number(right[i])) : order(left[i], right[i]);
      if (result) return result;
    }
    return order(left.length, right.length);
  };
  defineHidden(String.prototype, "localeCompare", {
    localeCompare(that, _locale, options) {
      const [a, b] = [String(this), String(that)];
      const compare = options?.numeric ? orderNumeric : order;
      const base = compare(letters(a).toLowerCase(), letters(b).toLowerCase());
      if (base || options?.sensitivity === "base") return base;
      const accent = order(a.normalize("NFD").toLowerCase(), b.normalize("NFD").toLowerCase());
      if (accent || options?.sensitivity === "accent") return accent;
      // Lower case first.
      return -order(a, b);
    },
  }.localeCompare);
};
