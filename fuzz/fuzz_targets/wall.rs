//! A value that goes into a script and comes out again is the same value.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use schemars::JsonSchema;
use selvedge_script::Harness;
use selvedge_tools::{Orchestrator, Registry, tool};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

fuzz_target!(|input: &str| {
    let Ok(value) = serde_json::from_str::<Value>(input) else { return };
    static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());
    let given = value.clone();
    let give = tool("give", "Gives a value.", move |_: Nothing| {
        let value = given.clone();
        async move { Ok(value) }
    });
    let harness = Harness::new(Orchestrator::new(Registry::new().with(give).unwrap())).unwrap();
    let output = runtime.block_on(harness.run("return await tools.give()"));
    if output.error.is_none() {
        let returned = output.value().unwrap_or(Value::Null);
        assert_eq!(plain(&returned), plain(&value));
    }
});

/// Numbers as JavaScript has them; `__proto__` is an ordinary key.
fn plain(value: &Value) -> Value {
    match value {
        Value::Number(number) => number.as_f64().map_or(Value::Null, Value::from),
        Value::Array(items) => items.iter().map(plain).collect(),
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().map(|(key, value)| (key.clone(), plain(value))).collect();
            // JavaScript puts keys that are whole numbers first.
            fields.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(fields.into_iter().collect())
        }
        other => other.clone(),
    }
}
