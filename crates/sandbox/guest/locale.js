// Replaces the locale methods that scripts use most, because the engine has no locale data. They
// behave as in en-US: grouped numbers, dates in UTC, and text compared by letter, then accent, then
// case.
const localise = (host) => {
  const defineHidden = (object, name, value) => Object.defineProperty(object, name, { value, writable: true, configurable: true });

  // Text is formatted as in en-US whatever the locale: a script that asks for another gets a warning.
  const warned = new Set();
  const checkLocale = (locale) => {
    const name = locale === undefined ? "en-US" : String(Array.isArray(locale) ? (locale[0] ?? "en-US") : locale);
    if (/^en(-US)?$/i.test(name) || warned.has(name) || warned.size >= 8) return;
    warned.add(name);
    host.message("warning", `only the locale en-US is available: ${JSON.stringify(name.slice(0, 40))} was ignored`);
  };

  const group = (digits) => digits.replace(/\B(?=(\d{3})+(?!\d))/g, ",");
  // Rounds a number that is not negative, times ten to the power of `shift`, half away from zero.
  // Returns its digits before and after the point, at least `minDigits` and at most `maxDigits`.
  const roundDecimal = (number, shift, minDigits, maxDigits) => {
    // The shortest digits that identify the number are rounded, not its binary value: 1.005 is 1.01.
    const [, first, more = "", exponent = "0"] = /^(\d+)(?:\.(\d+))?(?:e(.+))?$/.exec(String(number));
    const point = first.length + Number(exponent) + shift;
    const digits = `${"0".repeat(Math.max(0, -point))}${first}${more}`.padEnd(Math.max(0, point), "0");
    const whole = digits.slice(0, Math.max(0, point)) || "0";
    const fraction = digits.slice(Math.max(0, point));
    const kept = BigInt(whole + fraction.slice(0, maxDigits).padEnd(maxDigits, "0")) + (fraction[maxDigits] >= "5" ? 1n : 0n);
    const text = String(kept).padStart(maxDigits + 1, "0");
    const decimals = text.slice(text.length - maxDigits).replace(/0+$/, "").padEnd(minDigits, "0");
    return [text.slice(0, text.length - maxDigits), maxDigits === 0 ? "" : decimals];
  };
  const digitOption = (options, name, fallback) => {
    const value = options[name];
    if (value === undefined) return fallback;
    if (!(value >= 0 && value <= 100)) throw new RangeError(`${name} must be between 0 and 100`);
    return Math.floor(value);
  };
  const SYMBOLS = { USD: "$", EUR: "€", GBP: "£", JPY: "¥", INR: "₹", CNY: "CN¥", KRW: "₩" };
  const THOUSANDS = { short: ["", "K", "M", "B", "T"], long: ["", " thousand", " million", " billion", " trillion"] };
  // Returns the digits of a number that is not negative, with the word for thousands.
  const formatDigits = (number, options, power) => {
    if (!Number.isFinite(number)) return "∞";
    const { style, currency, notation, compactDisplay = "short" } = options;
    const scaled = number / 1000 ** power;
    const standard = style === "percent" ? [0, 0] : style === "currency" ? (currency === "JPY" || currency === "KRW" ? [0, 0] : [2, 2]) : notation === "compact" ? [0, scaled < 10 ? 1 : 0] : [0, 3];
    const most = digitOption(options, "maximumFractionDigits", undefined);
    let minDigits = digitOption(options, "minimumFractionDigits", Math.min(standard[0], most ?? 100));
    let maxDigits = most ?? Math.max(standard[1], minDigits);
    if (minDigits > maxDigits) throw new RangeError("minimumFractionDigits is above maximumFractionDigits");
    const significant = digitOption(options, "maximumSignificantDigits", undefined);
    if (significant !== undefined) {
      number = Number(number.toPrecision(significant));
      [minDigits, maxDigits] = [0, 100];
    }
    const [whole, decimals] = roundDecimal(number, style === "percent" ? 2 : -3 * power, minDigits, maxDigits);
    // 999,999 is 1M, not 1,000K.
    if (notation === "compact" && whole.length > 3 && power < 4) return formatDigits(number, options, power + 1);
    const padded = whole.padStart(digitOption(options, "minimumIntegerDigits", 1), "0");
    const digits = options.useGrouping === false ? padded : group(padded);
    return `${digits}${decimals ? `.${decimals}` : ""}${THOUSANDS[compactDisplay]?.[power] ?? ""}`;
  };
  const formatNumber = (number, options) => {
    if (Number.isNaN(number)) return "NaN";
    const { style, currency, signDisplay } = options;
    const symbol = style === "currency" ? (SYMBOLS[currency] ?? `${currency ?? ""}\u00a0`) : "";
    const plus = signDisplay === "always" || (signDisplay === "exceptZero" && number !== 0) ? "+" : "";
    const sign = signDisplay === "never" ? "" : number < 0 || Object.is(number, -0) ? "-" : plus;
    return `${sign}${symbol}${formatDigits(Math.abs(number), options, 0)}${style === "percent" ? "%" : ""}`;
  };
  defineHidden(Number.prototype, "toLocaleString", {
    toLocaleString(locale, options) {
      checkLocale(locale);
      return formatNumber(Number(this), options ?? {});
    },
  }.toLocaleString);
  defineHidden(BigInt.prototype, "toLocaleString", {
    toLocaleString() {
      return String(this).replace(/\d+/, group);
    },
  }.toLocaleString);

  const MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];
  const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
  const DATE_STYLES = {
    full: { weekday: "long", year: "numeric", month: "long", day: "numeric" },
    long: { year: "numeric", month: "long", day: "numeric" },
    medium: { year: "numeric", month: "short", day: "numeric" },
    short: { year: "2-digit", month: "numeric", day: "numeric" },
  };
  const TIME_STYLES = {
    full: { hour: "numeric", minute: "numeric", second: "numeric", timeZoneName: "long" },
    long: { hour: "numeric", minute: "numeric", second: "numeric", timeZoneName: "short" },
    medium: { hour: "numeric", minute: "numeric", second: "numeric" },
    short: { hour: "numeric", minute: "numeric" },
  };
  const pad = (number, style) => String(number).padStart(style === "2-digit" ? 2 : 1, "0");
  const nameOf = (names, index, style) => (style === "long" ? names[index] : style === "narrow" ? names[index][0] : names[index].slice(0, 3));

  const formatDay = (date, fields) => {
    const year = fields.year && pad(fields.year === "2-digit" ? date.getUTCFullYear() % 100 : date.getUTCFullYear(), fields.year);
    const day = fields.day && pad(date.getUTCDate(), fields.day);
    const weekday = fields.weekday && nameOf(DAYS, date.getUTCDay(), fields.weekday);
    if (!fields.month || /numeric|2-digit/.test(fields.month)) {
      const month = fields.month && pad(date.getUTCMonth() + 1, fields.month);
      const numbers = [month, day, year].filter(Boolean).join("/");
      if (weekday && day && !month && !year) return `${day} ${weekday}`;
      return [weekday, numbers].filter(Boolean).join(", ");
    }
    const month = nameOf(MONTHS, date.getUTCMonth(), fields.month);
    const monthDay = [month, day].filter(Boolean).join(" ");
    return [weekday, [monthDay, year].filter(Boolean).join(day ? ", " : " ")].filter(Boolean).join(", ");
  };
  const formatTime = (date, fields, options) => {
    const cycle = options.hour12 === undefined ? options.hourCycle : options.hour12 ? "h12" : "h23";
    const full = cycle === "h23" || cycle === "h24";
    const hours = date.getUTCHours();
    const parts = [];
    if (fields.hour) parts.push(full ? pad(hours, "2-digit") : pad(hours % 12 || 12, fields.hour));
    if (fields.minute) parts.push(pad(date.getUTCMinutes(), fields.hour || fields.second ? "2-digit" : fields.minute));
    if (fields.second) parts.push(pad(date.getUTCSeconds(), fields.minute ? "2-digit" : fields.second));
    let text = parts.join(":");
    const digits = fields.fractionalSecondDigits;
    if (digits) text += `${text && "."}${String(date.getUTCMilliseconds()).padStart(3, "0").slice(0, digits)}`;
    if (fields.hour && !full) text += hours < 12 ? " AM" : " PM";
    const zone = { long: "Coordinated Universal Time", short: "UTC" }[fields.timeZoneName];
    return zone ? `${text}${text && " "}${zone}` : text;
  };

  // Formats the date (`kinds` is "date"), the time or both, in UTC. `options` as in
  // Intl.DateTimeFormat.
  const formatDate = (date, locale, options, kinds) => {
    if (Number.isNaN(date.getTime())) return "Invalid Date";
    // These locales are used to get ISO dates.
    if (kinds === "date" && options === undefined && /^(sv-SE|en-CA|fr-CA)$/.test(locale)) return date.toISOString().slice(0, 10);
    checkLocale(locale);
    options ??= {};
    const zone = options.timeZone;
    if (zone !== undefined && !/^(utc|gmt|etc\/utc|etc\/gmt)$/i.test(zone))
      throw new RangeError(`the time zone ${JSON.stringify(String(zone).slice(0, 40))} is not available: only UTC is`);
    const pick = (names) => Object.fromEntries(names.filter((name) => options[name] !== undefined).map((name) => [name, options[name]]));
    let dayFields = DATE_STYLES[options.dateStyle] ?? pick(["weekday", "year", "month", "day"]);
    let timeFields = TIME_STYLES[options.timeStyle] ?? pick(["hour", "minute", "second", "fractionalSecondDigits"]);
    const styled = options.dateStyle !== undefined || options.timeStyle !== undefined;
    const needsDay = kinds !== "time" && Object.keys(dayFields).length === 0 && (kinds === "date" || Object.keys(timeFields).length === 0);
    const needsTime = kinds !== "date" && Object.keys(timeFields).length === 0 && (kinds === "time" || Object.keys(dayFields).length === 0);
    if (!styled && needsDay) dayFields = { year: "numeric", month: "numeric", day: "numeric" };
    if (!styled && needsTime) timeFields = TIME_STYLES.medium;
    if (options.timeZoneName !== undefined) timeFields = { ...timeFields, timeZoneName: options.timeZoneName };
    const [day, time] = [formatDay(date, dayFields), formatTime(date, timeFields, options)];
    const onlyWeekday = dayFields.weekday && !dayFields.day && !dayFields.month && !dayFields.year;
    const joint = onlyWeekday ? " " : dayFields.month === "long" && timeFields.hour ? " at " : ", ";
    return [day, time].filter(Boolean).join(joint);
  };
  for (const [name, kinds] of [["toLocaleString", "both"], ["toLocaleDateString", "date"], ["toLocaleTimeString", "time"]])
    defineHidden(Date.prototype, name, {
      [name](locale, options) {
        return formatDate(this, locale, options, kinds);
      },
    }[name]);

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
