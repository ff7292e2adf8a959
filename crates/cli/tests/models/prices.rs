//! Prices that are built in, configured, or unknown.

use super::{ModelListServer, ModelsWorkspace, chat};

/// Configures the built-in provider `openai` with the address of a server.
fn openai(server: &ModelListServer, more: &str) -> ModelsWorkspace {
    ModelsWorkspace::new(&format!(
        "model_provider = \"openai\"\nmodel = \"gpt-4o\"\n{more}\n\
         [model_providers.openai]\nbase_url = \"{}\"\nwire_api = \"chat\"\n",
        server.url
    ))
}

#[test]
fn the_cost_of_a_known_model_is_shown_without_configuration() {
    let server = ModelListServer::start(chat);
    let key = [("OPENAI_API_KEY", "sk-own")];
    let workspace = openai(&server, "");
    let seen = workspace.run(&["test"], &key);
    // 1000 tokens at 2.50 and 500 at 10.00 per million.
    assert!(seen.out.contains("cost         0.007500\n"), "{seen:?}");
    let listed = workspace.run(&["list", "--provider", "openai"], &key).out;
    assert!(
        listed.contains(", 2.5 in, 10 out per million tokens\n"),
        "{listed}"
    );
    let listed = workspace.run(&["list", "--provider", "openai", "--json"], &key);
    let models = &listed.json()[0]["models"];
    assert!(models[0]["prices"].is_null(), "{models}");
    assert_eq!(models[1]["prices"]["cached_input"], 1.25);

    // The configuration overrides the table.
    let own = "models.\"gpt-4o\".prices = { input = 1.0, output = 2.0 }";
    let seen = openai(&server, own).run(&["test"], &key);
    assert!(seen.out.contains("cost         0.002000\n"), "{seen:?}");

    // Other settings of the model keep the prices of the table.
    let own = "models.\"gpt-4o\".context_window = 5000";
    let seen = openai(&server, own).run(&["test"], &key);
    assert!(seen.out.contains("cost         0.007500\n"), "{seen:?}");
}

#[test]
fn an_unknown_price_is_said() {
    let server = ModelListServer::start(chat);
    let key = [("OPENAI_API_KEY", "sk-own")];
    let seen = openai(&server, "").run(&["test", "--model", "tiny"], &key);
    let line = "cost         unknown: set models.\"tiny\".prices in config.toml\n";
    assert!(seen.out.contains(line), "{seen:?}");
    let seen = openai(&server, "").run(&["test", "--model", "tiny", "--json"], &key);
    assert!(seen.json()["cost"].is_null(), "{seen:?}");
    // What the line says works.
    let own = "models.\"tiny\".prices = { input = 1.0, output = 2.0 }";
    let seen = openai(&server, own).run(&["test", "--model", "tiny"], &key);
    assert!(seen.out.contains("cost         0.002000\n"), "{seen:?}");
}
