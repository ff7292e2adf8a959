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
pub(crate) struct LenientText<'a>(Option<Cow<'a, str>>);

/// An optional non-negative integer. A string or a float with an integer value is accepted.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct LenientNumber(pub(crate) Option<u64>);

impl LenientText<'_> {
    /// Returns the string unless it is absent or empty.
    pub(crate) fn get(&self) -> Option<&str> {
        self.0.as_deref().filter(|text| !text.is_empty())
    }

    pub(crate) fn or_empty(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for LenientText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match deserializer.deserialize_any(LenientVisitor)? {
            LenientValue::Text(text) => Self(Some(text)),
            LenientValue::Number(_) | LenientValue::Other => Self(None),
        })
    }
}

impl<'de> Deserialize<'de> for LenientNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match deserializer.deserialize_any(LenientVisitor)? {
            LenientValue::Number(number) => Self(Some(number)),
            LenientValue::Text(text) => Self(text.parse().ok()),
            LenientValue::Other => Self(None),
        })
    }
}

enum LenientValue<'a> {
    Text(Cow<'a, str>),
    Number(u64),
    Other,
}

struct LenientVisitor;

impl<'de> Visitor<'de> for LenientVisitor {
    type Value = LenientValue<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(LenientValue::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(LenientValue::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(LenientValue::Number(number))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(LenientValue::Other)
    }

    fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
        // Some servers report token counts as floats.
        let is_integer = number >= 0.0 && number.fract() == 0.0 && number < 9e15;
        Ok(match is_integer {
            true => LenientValue::Number(number as u64),
            false => LenientValue::Other,
        })
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(LenientValue::Other)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(LenientValue::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(LenientValue::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(LenientValue::Other)
    }
}

/// Parses an event or a body. The error contains its first 80 bytes.
pub(crate) fn parse_event<'a, T: Deserialize<'a>>(data: &'a [u8]) -> Result<T, ModelError> {
    let invalid = |error: &dyn fmt::Display| {
        let start = String::from_utf8_lossy(&data[..data.len().min(80)]).into_owned();
        ModelError::protocol(crate::classify::truncate_line(&format!(
            "the provider sent an invalid event: {error}: {start}"
        )))
    };
    // UTF-8 is validated once for the whole text, not for each string.
    let text = std::str::from_utf8(data).map_err(|error| invalid(&error))?;
    serde_json::from_str(text).map_err(|error| invalid(&error))
}

/// Parses a part of an event that was not parsed with it.
pub(crate) fn parse_part<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Result<T, ModelError> {
    serde_json::from_str(raw.get()).map_err(|error| {
        let why = format!("the provider sent an invalid event: {error}");
        ModelError::protocol(why)
    })
}

/// Like [`parse_part`]; returns the default if the part is absent.
pub(crate) fn parse_optional_part<'a, T: Deserialize<'a> + Default>(
    raw: Option<&'a RawValue>,
) -> Result<T, ModelError> {
    raw.map_or_else(|| Ok(T::default()), parse_part)
}

/// Returns the fields of an object that are not in `known` and not null; `None` if there are none.
pub(crate) fn other_fields(object: &Value, known: &[&str]) -> Option<Map<String, Value>> {
    let mut rest = object.as_object()?.clone();
    rest.retain(|key, value| !known.contains(&key.as_str()) && !value.is_null());
    (!rest.is_empty()).then_some(rest)
}

/// Returns the string under a key; empty if there is none.
pub(crate) fn string_at(object: &Value, key: &str) -> String {
    object[key].as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Sample<'a> {
        #[serde(borrow, default)]
        text: LenientText<'a>,
        #[serde(default)]
        number: LenientNumber,
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
            let sample: Sample<'_> = parse_event(json.as_bytes()).unwrap();
            assert_eq!(
                (sample.text.get(), sample.number.0),
                (text, number),
                "{json}"
            );
        }
    }
}
