//! Finds the days that a question names, and compares them with the time of a part. Pure functions.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::words::for_each_word;

/// The days that a question names.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum DateHint {
    /// From the first day to the last, inclusive.
    Days(Date, Date),
    /// A month, with the day and the year if they are named.
    Month {
        month: i8,
        day: Option<i8>,
        year: Option<i16>,
    },
    /// A year without a month.
    Year(i16),
}

/// How well a part matches if only its month does, and the question names a day.
const OTHER_DAY_SHARE: f64 = 0.6;
/// How well a part matches a year.
const YEAR_SHARE: f64 = 0.3;

impl DateHint {
    /// Finds the days that a question names: `8 May`, `in March 2024`, `2024-03-08`, `yesterday`,
    /// `last week`. `None` if it names none.
    pub(crate) fn find(question: &str, now_ms: i64) -> Option<Self> {
        for word in question.split_whitespace() {
            let word = word.trim_matches(|c: char| !c.is_ascii_digit());
            if word.len() == 10
                && let Ok(day) = word.parse::<Date>()
            {
                return Some(Self::Days(day, day));
            }
        }
        let words: Vec<&str> = question
            .split(|c: char| !c.is_alphanumeric())
            .filter(|word| !word.is_empty())
            .collect();
        let year = words.iter().find_map(|word| parse_year(word));
        for (at, word) in words.iter().enumerate() {
            // `may` and `march` are also verbs: a name starts with a capital letter.
            let Some(month) = month_number(word).filter(|_| word.starts_with(char::is_uppercase))
            else {
                continue;
            };
            let around = words[at.saturating_sub(2)..words.len().min(at + 2)].iter();
            let day = around.filter_map(|word| parse_day(word)).next();
            // A month at the beginning of a sentence may be a verb or the name of a person.
            if at == 0 && day.is_none() && year.is_none() {
                continue;
            }
            return Some(Self::Month { month, day, year });
        }
        relative_days(question, now_ms).or(year.map(Self::Year))
    }

    /// Returns how well a time matches, from 0 to 1.
    pub(crate) fn match_share(self, at_ms: i64) -> f64 {
        let Some(date) = utc_date(at_ms) else {
            return 0.0;
        };
        match self {
            Self::Days(first, last) => f64::from((first..=last).contains(&date)),
            Self::Month { month, day, year } => {
                let is_other_year = year.is_some_and(|year| year != date.year());
                match day {
                    _ if month != date.month() || is_other_year => 0.0,
                    Some(day) if day != date.day() => OTHER_DAY_SHARE,
                    _ => 1.0,
                }
            }
            Self::Year(year) if year == date.year() => YEAR_SHARE,
            Self::Year(_) => 0.0,
        }
    }
}

/// Returns the days of `today`, `yesterday`, `this week`, `last week` and `last month`.
fn relative_days(question: &str, now_ms: i64) -> Option<DateHint> {
    let today = utc_date(now_ms)?;
    let days_before = |days: i64| {
        today
            .checked_sub(jiff::Span::new().try_days(days).ok()?)
            .ok()
    };
    let mut hint = None;
    let mut before = String::new();
    for_each_word(question, |word| {
        let days = match (before.as_str(), word) {
            (_, "today") => Some((0, 0)),
            (_, "yesterday") => Some((1, 1)),
            ("this", "week") => Some((7, 0)),
            ("last", "week") => Some((14, 1)),
            ("last", "month") => Some((60, 1)),
            _ => None,
        };
        if let Some((first, last)) = days
            && let (Some(first), Some(last)) = (days_before(first), days_before(last))
        {
            hint = hint.or(Some(DateHint::Days(first, last)));
        }
        word.clone_into(&mut before);
    });
    hint
}

fn utc_date(ms: i64) -> Option<Date> {
    let stamp = Timestamp::from_millisecond(ms).ok()?;
    Some(stamp.to_zoned(TimeZone::UTC).date())
}

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];

/// Returns the number of a month: 5 for `May`, 9 for `Sep` and `Sept`.
pub(crate) fn month_number(word: &str) -> Option<i8> {
    let word = word.to_lowercase();
    let is_month = |month: &&str| {
        *month == word || (word.len() == 3 || word == "sept") && month.starts_with(&word)
    };
    let at = MONTHS.iter().position(is_month)?;
    i8::try_from(at + 1).ok()
}

/// Parses a year with four digits.
pub(crate) fn parse_year(word: &str) -> Option<i16> {
    let is_year = word.len() == 4 && (word.starts_with("19") || word.starts_with("20"));
    is_year.then(|| word.parse().ok())?
}

/// Parses the day of a month: `8`, `8th`.
pub(crate) fn parse_day(word: &str) -> Option<i8> {
    let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let suffix = &word[digits.len()..];
    let has_suffix = matches!(suffix, "" | "st" | "nd" | "rd" | "th");
    let day: i8 = digits.parse().ok().filter(|_| has_suffix)?;
    (1..=31).contains(&day).then_some(day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn date(text: &str) -> Date {
        text.parse().unwrap()
    }

    fn ms(text: &str) -> i64 {
        crate::time::parse_ms(text).unwrap()
    }

    #[test]
    fn days_are_found_in_questions() {
        let now = ms("2026-11-18");
        let month = |month, day, year| Some(DateHint::Month { month, day, year });
        for (question, expected) in [
            (
                "What did we decide on 8 May, 2023?",
                month(5, Some(8), Some(2023)),
            ),
            ("What happened on May 8th?", month(5, Some(8), None)),
            ("Where did she go in March?", month(3, None, None)),
            ("What may we do?", None),
            ("May I ask you something?", None),
            ("Where did they march?", None),
            (
                "the release of 2024-03-08",
                Some(DateHint::Days(date("2024-03-08"), date("2024-03-08"))),
            ),
            (
                "what did I do yesterday?",
                Some(DateHint::Days(date("2026-11-17"), date("2026-11-17"))),
            ),
            ("what changed in 2022", Some(DateHint::Year(2022))),
            ("which port is used by 8080?", None),
        ] {
            assert_eq!(DateHint::find(question, now), expected, "{question}");
        }
    }

    #[test]
    fn parts_match_the_days_that_are_named() {
        let hint = DateHint::find("on 8 May 2023", 0).unwrap();
        let share = |day| hint.match_share(ms(day));
        assert_eq!(share("2023-05-08"), 1.0);
        assert_eq!(share("2023-05-09"), OTHER_DAY_SHARE);
        assert_eq!(share("2022-05-08") + share("2023-06-08"), 0.0);
    }
}
