//! Parses and prints times, sizes and amounts of money as flags spell them.

use std::time::Duration;

use selvedge_protocol::Limits;

/// Parses a time: `500ms`, `30s`, `5m`, `2h`, `7d`, or a number of seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let invalid = || format!("`{text}` is not a time; use a value such as 500ms, 30s or 5m");
    let (number, unit) = split_unit(text);
    let number: f64 = number.parse().map_err(|_| invalid())?;
    let seconds = match unit {
        "ms" => number / 1000.0,
        "" | "s" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3600.0,
        "d" => number * 86_400.0,
        _ => {
            return Err(format!(
                "`{unit}` is not a unit of time; use ms, s, m, h or d"
            ));
        }
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| invalid())
}

/// Parses a time limit: a time of at least a millisecond.
pub(crate) fn time_limit(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        time if time.as_millis() == 0 => Err(format!("`{text}` is out of range; use 1ms or more")),
        time => Ok(time),
    }
}

/// Spells a time for a flag, in the largest unit without a fraction.
pub(crate) fn format_duration(time: Duration) -> String {
    match (time.as_millis(), time.as_secs()) {
        (millis, _) if !millis.is_multiple_of(1000) => format!("{millis}ms"),
        (_, seconds) if !seconds.is_multiple_of(60) => format!("{seconds}s"),
        (_, seconds) => format!("{}m", seconds / 60),
    }
}

/// Formats a time that something took, in milliseconds, seconds or minutes.
pub(crate) fn format_elapsed(time: Duration) -> String {
    match time.as_millis() {
        0..1000 => format!("{} ms", time.as_millis()),
        1000..60_000 => format!("{:.1} s", time.as_secs_f64()),
        _ => {
            let seconds = time.as_secs();
            format!("{} min {:02} s", seconds / 60, seconds % 60)
        }
    }
}

/// Formats a number of milliseconds as [`format_elapsed`] does.
pub(crate) fn format_milliseconds(milliseconds: f64) -> String {
    format_elapsed(Duration::from_secs_f64(milliseconds.max(0.0) / 1000.0))
}

/// Parses a size: `96MB`, `1GB`, or a number of megabytes.
pub(crate) fn megabytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split_unit(text);
    let number: u64 = number
        .parse()
        .map_err(|_| format!("`{text}` is not a size; use a value such as 96MB or 1GB"))?;
    let megabytes = match unit.to_ascii_lowercase().as_str() {
        "" | "m" | "mb" | "mib" => Some(number),
        "g" | "gb" | "gib" => number.checked_mul(1024),
        _ => return Err(format!("`{unit}` is not a unit of size; use MB or GB")),
    };
    megabytes
        .filter(|size| (1..=Limits::MAX_MEMORY_MB).contains(size))
        .ok_or_else(|| format!("`{text}` is out of range; use 1MB to 2GB"))
}

/// Parses an amount of money, which must be positive.
pub(crate) fn money(text: &str) -> Result<f64, String> {
    let amount = text.trim().parse().ok();
    let amount = amount.filter(|amount: &f64| amount.is_finite() && *amount > 0.0);
    amount
        .ok_or_else(|| format!("`{text}` is not a positive amount; use a value such as 0.50 or 2"))
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_sizes_and_amounts_are_parsed() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("2d"), Ok(Duration::from_secs(172_800)));
        assert_eq!(duration("7"), Ok(Duration::from_secs(7)));
        assert_eq!(time_limit("1ms"), Ok(Duration::from_millis(1)));
        assert!(time_limit("0").is_err() && time_limit("0.5ms").is_err());
        for text in ["500ms", "1500ms", "90s", "1m", "120m"] {
            assert_eq!(format_duration(duration(text).unwrap()), text);
        }
        assert!(
            duration("soon").is_err()
                && duration("1e999s").is_err()
                && duration("3 weeks").is_err()
        );
        assert_eq!((money("2"), money("0.5")), (Ok(2.0), Ok(0.5)));
        assert!(
            ["nan", "inf", "-1", "0", "much", ""]
                .iter()
                .all(|text| money(text).is_err())
        );
        for (milliseconds, shown) in [
            (9.6, "9 ms"),
            (999.9, "999 ms"),
            (2235.0, "2.2 s"),
            (19_205.0, "19.2 s"),
            (61_000.0, "1 min 01 s"),
        ] {
            assert_eq!(format_milliseconds(milliseconds), shown);
        }
        assert_eq!(megabytes("96MB"), Ok(96));
        assert_eq!(megabytes("1 GB"), Ok(1024));
        assert!(
            megabytes("0").is_err()
                && megabytes("9TB").is_err()
                && megabytes("99999999999999999999").is_err()
        );
    }
}
