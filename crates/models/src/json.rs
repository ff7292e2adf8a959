//! Lenient deserialisation of JSON from providers: a field that is null or of the wrong type counts
//! as absent.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::ModelError;

/// An optional string, borrowed if it contains no escapes.
#[derive(Debug, Default, Clone)]
pub(crate) struct Text<'a>(Option<Cow<'a, str>>);

/// An optional non-negative integer. A string or a float with an integer value is accepted.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Number(pub(crate) Option<u64>);

impl Text<'_> {
    /// Returns the string unless it is absent or empty.
    pub(crate) fn get(&self) -> Option<&str> {
        self.0.as_deref().filter(|text| !text.is_empty())
    }

    pub(crate) fn or_empty(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match deserializer.deserialize_any(Lenient)? {
            Found::Text(text) => Self(Some(text)),
            Found::Number(_) | Found::Nothing => Self(None),
        })
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match deserializer.deserialize_any(Lenient)? {
            Found::Number(number) => Self(Some(number)),
            Found::Text(text) => Self(text.parse().ok()),
            Found::Nothing => Self(None),
        })
    }
}

enum Found<'a> {
    Text(Cow<'a, str>),
    Number(u64),
    Nothing,
}

struct Lenient;

impl<'de> Visitor<'de> for Lenient {
    type Value = Found<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Found::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Found::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Found::Number(number))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Found::Nothing)
    }

    fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
        // Some servers report token counts as floats.
        let is_integer = number >= 0.0 && number.fract() == 0.0 && number < 9e15;
        Ok(match is_integer {
            true => Found::Number(number as u64),
            false => Found::Nothing,
        })
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Found::Nothing)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Found::Nothing)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Found::Nothing)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Found::Nothing)
    }
}

/// Parses an event or a body. The error contains its first 80 bytes.
pub(crate) fn read<'a, T: Deserialize<'a>>(data: &'a [u8]) -> Result<T, ModelError> {
    let invalid = |error: &dyn fmt::Display| {
        let start = String::from_utf8_lossy(&data[..data.len().min(80)]).into_owned();
        ModelError::protocol(crate::classify::one_line(&format!(
            "the provider sent an invalid event: {error}: {start}"
        )))
    };
    // UTF-8 is validated once for the whole text, not for each string.
    let text = std::str::from_utf8(data).map_err(|error| invalid(&error))?;
    serde_json::from_str(text).map_err(|error| invalid(&error))
}

/// Parses a part of an event that was not parsed with it.
pub(crate) fn part<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Result<T, ModelError> {
    serde_json::from_str(raw.get()).map_err(|error| {
        let why = format!("the provider sent an invalid event: {error}");
        ModelError::protocol(why)
    })
}

/// Parses such a part; returns the default if it is absent.
pub(crate) fn optional_part<'a, T: Deserialize<'a> + Default>(
    raw: Option<&'a RawValue>,
) -> Result<T, ModelError> {
    raw.map_or_else(|| Ok(T::default()), part)
}

/// Returns the fields of an object that are not in `known` and not null; `None` if there are none.
pub(crate) fn others(object: &Value, known: &[&str]) -> Option<Map<String, Value>> {
    let mut rest = object.as_object()?.clone();
    rest.retain(|key, value| !known.contains(&key.as_str()) && !value.is_null());
    (!rest.is_empty()).then_some(rest)
}

/// Returns the string under a key; empty if there is none.
pub(crate) fn text_at(object: &Value, key: &str) -> String {
    object[key].as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Sample<'a> {
        #[serde(borrow, default)]
        text: Text<'a>,
        #[serde(default)]
        number: Number,
    }

    #[test]
    fn a_field_of_the_wrong_type_counts_as_absent() {
        for (json, text, number) in [
            (r#"{"text": "a\nb", "number": 3}"#, Some("a\nb"), Some(3)),
            (r#"{"text": null, "number": "7"}"#, None, Some(7)),
            (r#"{"text": {"a": [1]}, "number": -1}"#, None, None),
            (r#"{"text": [], "number": 2.0}"#, None, Some(2)),
            (r#"{"number": 1e300}"#, None, None),
            (r#"{"text": true, "number": null}"#, None, None),
        ] {
            let sample: Sample<'_> = read(json.as_bytes()).unwrap();
            assert_eq!(
                (sample.text.get(), sample.number.0),
                (text, number),
                "{json}"
            );
        }
    }
}
