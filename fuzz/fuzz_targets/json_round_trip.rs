//! A JSON value that a tool returns to a script and the script returns to the host is unchanged.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use schemars::JsonSchema;
use selvedge_script::Harness;
use selvedge_tools::{Orchestrator, Registry, tool};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize, JsonSchema)]
struct FuzzNoArgs {}

fuzz_target!(|input: &str| {
    let Ok(value) = serde_json::from_str::<Value>(input) else {
        return;
    };
    static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    });
    let result = value.clone();
    let get_value = tool("get_value", "Returns a value.", move |_: FuzzNoArgs| {
        let value = result.clone();
        async move { Ok(value) }
    });
    let registry = Registry::new().with(get_value).unwrap();
    let harness = Harness::new(Orchestrator::new(registry)).unwrap();
    let output = runtime.block_on(harness.run("return await tools.getValue()"));
    if output.error.is_none() {
        let returned = output.value().unwrap_or(Value::Null);
        assert_eq!(comparable(&returned), comparable(&value));
    }
});

/// Converts a value to a comparable form: numbers as 64-bit floats, fields sorted by name.
fn comparable(value: &Value) -> Value {
    match value {
        Value::Number(number) => number.as_f64().map_or(Value::Null, Value::from),
        Value::Array(items) => items.iter().map(comparable).collect(),
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(key, value)| (key.clone(), comparable(value)));
            let mut fields: Vec<_> = fields.collect();
            // JavaScript puts keys that are integers first.
            fields.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(fields.into_iter().collect())
        }
        other => other.clone(),
    }
}
