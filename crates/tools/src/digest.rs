//! The digest that identifies a call: two calls are identical if their digests are equal.

use hmac::{Hmac, KeyInit, Mac};
use serde_json::Value;
use sha2::Sha256;

/// Returns a keyed digest of a tool's canonical name and a call's canonical arguments.
///
/// It does not depend on the order of object fields or on the fields in `explanatory`. Without the
/// key the arguments cannot be guessed from the digest.
pub(crate) fn digest(key: &[u8; 32], tool: &str, args: &Value, explanatory: &[&str]) -> String {
    let args = without_fields(sorted(args), explanatory);
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        unreachable!("HMAC takes keys of any length");
    };
    mac.update(format!("{tool}\n{args}").as_bytes());
    let hash = mac.finalize().into_bytes();
    selvedge_text::hex(&hash[..16])
}

/// Removes fields from the arguments of a call.
pub(crate) fn without_fields(mut args: Value, removed: &[&str]) -> Value {
    if let Value::Object(fields) = &mut args {
        fields.retain(|name, _| !removed.contains(&name.as_str()));
    }
    args
}

/// Sorts the fields of all objects in a value by name.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(object) => {
            let mut pairs: Vec<_> = object
                .iter()
                .map(|(key, value)| (key.clone(), sorted(value)))
                .collect();
            pairs.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(pairs.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn identical_calls_have_equal_digests() {
        let of = |tool: &str, args: Value| digest(&[7; 32], tool, &args, &["justification"]);
        let call = of("pay", json!({"to": "a", "cents": {"x": 1, "y": [2]}}));
        assert_eq!(call.len(), 32);
        let reordered = json!({"cents": {"y": [2], "x": 1}, "to": "a", "justification": "rent"});
        assert_eq!(call, of("pay", reordered));
        assert_ne!(
            call,
            of("pay", json!({"to": "a", "cents": {"x": 1, "y": [3]}}))
        );
        assert_ne!(
            call,
            of("owe", json!({"to": "a", "cents": {"x": 1, "y": [2]}}))
        );
        let with_reason = json!({"to": "a", "justification": "rent"});
        assert_ne!(
            digest(&[7; 32], "pay", &with_reason, &[]),
            of("pay", json!({"to": "a"})),
            "the field explains the call only if the tool says so"
        );
        assert_ne!(
            of("pay", json!({})),
            digest(&[8; 32], "pay", &json!({}), &[])
        );
    }
}
