//! Parses the times in imported files, and formats times for display.

use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::date_hints::{month_number, parse_day, parse_year};

/// Parses a time to milliseconds since 1970: RFC 3339, a date with or without a time (UTC), seconds
/// or milliseconds since 1970, or a date in words (`1:56 pm on 8 May, 2023`).
pub(crate) fn parse_ms(text: &str) -> Option<i64> {
    let text = text.trim();
    if let Ok(number) = text.parse::<f64>() {
        // Smaller numbers are seconds (up to the year 5138), larger ones milliseconds (from 1973).
        let ms = if number.abs() < 1e11 {
            number * 1000.0
        } else {
            number
        };
        return ms.is_finite().then_some(ms as i64);
    }
    if let Ok(stamp) = Timestamp::from_str(text) {
        return Some(stamp.as_millisecond());
    }
    let civil = DateTime::from_str(text)
        .ok()
        .or_else(|| parse_written(text))?;
    civil
        .to_zoned(TimeZone::UTC)
        .ok()
        .map(|zoned| zoned.timestamp().as_millisecond())
}

/// Parses a date whose month is a word, with or without a time: `1:56 pm on 8 May, 2023`.
fn parse_written(text: &str) -> Option<DateTime> {
    let words = || text.split(|c: char| !(c.is_alphanumeric() || c == ':'));
    let month = words().find_map(month_number)?;
    let year = words().find_map(parse_year)?;
    let day = words().find_map(parse_day)?;
    let clock = words().find_map(|word| {
        let (hour, minute) = word.split_once(':')?;
        let digits = minute.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        Some((hour.parse::<i8>().ok()?, digits.parse::<i8>().ok()?))
    });
    let (mut hour, minute) = clock.unwrap_or((0, 0));
    let lower = text.to_lowercase();
    if lower.contains("pm") && hour < 12 {
        hour += 12;
    } else if lower.contains("am") && hour == 12 {
        hour = 0;
    }
    DateTime::new(year, month, day, hour, minute, 0, 0).ok()
}

/// Formats how long ago a time was: `3 hours ago`.
pub(crate) fn format_ago(now_ms: i64, then_ms: i64) -> String {
    let minutes = (now_ms - then_ms).max(0) / 60_000;
    let (number, unit) = match minutes {
        0..60 => (minutes, "minute"),
        60..2880 => (minutes / 60, "hour"),
        2880..20_160 => (minutes / 1440, "day"),
        20_160..120_960 => (minutes / 10_080, "week"),
        _ => (minutes / 43_800, "month"),
    };
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {unit}{plural} ago")
}

/// Formats the day of a time in UTC: `2023-05-08`.
pub(crate) fn format_day(ms: i64) -> String {
    match Timestamp::from_millisecond(ms) {
        Ok(stamp) => stamp.to_zoned(TimeZone::UTC).date().to_string(),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_in_every_format() {
        let noon = 1_683_547_200_000;
        for text in [
            "2023-05-08T12:00:00Z",
            "2023-05-08T14:00:00+02:00",
            "2023-05-08 12:00:00",
            "1683547200",
            "1683547200000",
            "12:00 pm on 8 May, 2023",
        ] {
            assert_eq!(parse_ms(text), Some(noon), "{text}");
        }
        assert_eq!(parse_ms("2023-05-08"), Some(noon - 12 * 3_600_000));
        assert_eq!(
            (parse_ms("last Tuesday"), parse_ms("NaN"), parse_ms("")),
            (None, None, None)
        );
        assert_eq!(
            (format_ago(noon, noon - 90 * 60_000), format_day(noon)),
            ("1 hour ago".into(), "2023-05-08".into())
        );
    }
}
