//! Embeds the harness: a tool of the embedding program, called from a script. Run it with
//! `cargo run -p selvedge-script --example embed`.

use schemars::JsonSchema;
use selvedge_script::Harness;
use selvedge_tools::{Orchestrator, Registry, ToolError, tool};
use serde::{Deserialize, Serialize};

#[derive(Deserialize, JsonSchema)]
struct WeatherArgs {
    /// Name of the city.
    city: String,
}

#[derive(Serialize, JsonSchema)]
struct Weather {
    celsius: f64,
}

async fn weather(args: WeatherArgs) -> Result<Weather, ToolError> {
    match args.city.as_str() {
        "Oslo" => Ok(Weather { celsius: -3.5 }),
        "Lima" => Ok(Weather { celsius: 19.0 }),
        other => Err(ToolError::new(format!("no station in {other}"))),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let registry =
        Registry::new().with(tool("weather", "Temperature in a city.", weather).read_only())?;
    let script =
        "const found = await Promise.all(['Oslo', 'Lima'].map(city => tools.weather({ city })));
                  return found.map(w => w.celsius).toSorted((a, b) => a - b)";
    let output = Harness::new(Orchestrator::new(registry))?.run(script).await;
    println!("value: {}", output.output_json.unwrap_or_default());
    for call in output.calls {
        println!(
            "{} {} {} {} ms",
            call.id,
            call.tool,
            call.status.as_str(),
            call.duration_ms
        );
    }
    Ok(())
}
