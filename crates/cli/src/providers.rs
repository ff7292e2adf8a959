//! From configuration, environment and keyring to the provider and the model that are asked.

use anyhow::Result;
use selvedge_config::{Config, ModelProvider};
use selvedge_models::{Effort, Model, Provider, Secret, discover};
use selvedge_protocol::WireApi;

use crate::args::ModelArgs;
use crate::problem::Problem;

/// The servers that are looked for on this machine, in this order.
const LOCAL: [&str; 3] = ["ollama", "lmstudio", "llamacpp"];
/// The providers whose key is looked for, in this order.
const REMOTE: [&str; 3] = ["openai", "anthropic", "openrouter"];

#[derive(Debug, Clone)]
pub(crate) struct Choice {
    /// With its key.
    pub(crate) provider: Provider,
    pub(crate) model: Model,
    pub(crate) effort: Option<Effort>,
}

/// The provider and model that flags and configuration name; where they name none, the first provider whose key is
/// there, else a server on this machine.
pub(crate) async fn choose(config: &Config, args: &ModelArgs) -> Result<Choice> {
    let all = all(config)?;
    let named = args.provider.as_ref().or(config.model_provider.as_ref());
    // A flag that names another provider does not mean the configuration's model.
    let other = args.provider.is_some()
        && args.provider != config.model_provider
        && config.model_provider.is_some();
    let model = args
        .model
        .clone()
        .or_else(|| config.model.clone().filter(|_| !other));
    let (provider, listed) = match named {
        Some(name) => (with_key(find(&all, name)?)?, Vec::new()),
        None => somebody(&all).await?,
    };
    let model = match model
        .or_else(|| provider.default_model.clone())
        .or_else(|| listed.into_iter().next())
    {
        Some(model) => model,
        None => first_of(&provider).await?,
    };
    let model = known(config, &model);
    Ok(Choice {
        provider,
        model,
        effort: config.model_reasoning_effort,
    })
}

/// Every provider there is: the built-in ones as the configuration changes them, then its own.
pub(crate) fn all(config: &Config) -> Result<Vec<Provider>> {
    let mut all = Provider::built_in();
    if let Some(ollama) = all.iter_mut().find(|provider| provider.name == "ollama")
        && let Some(host) = std::env::var("OLLAMA_HOST")
            .ok()
            .filter(|host| !host.is_empty())
    {
        ollama.base_url = ollama_url(&host);
    }
    for (name, settings) in &config.model_providers {
        let known = all.iter().position(|provider| provider.name == *name);
        let base = known.map(|at| all.remove(at));
        let place = known.unwrap_or(all.len());
        all.insert(place, configured(name, base, settings)?);
    }
    Ok(all)
}

pub(crate) fn find(all: &[Provider], name: &str) -> Result<Provider> {
    let found = all.iter().find(|provider| provider.name == name).cloned();
    Ok(found.ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|provider| provider.name.as_str()).collect();
        Problem::new(format!("there is no provider `{name}`")).hint(format!(
            "there are {}; [model_providers.{name}] in the configuration adds one",
            names.join(", ")
        ))
    })?)
}

/// The provider with its key, from the environment or the keyring, or the variable that is missing.
pub(crate) fn with_key(provider: Provider) -> Result<Provider> {
    let Some(variable) = provider.env_key.clone() else {
        return Ok(provider);
    };
    let key = from_environment(&variable).or_else(|| crate::keyring::key(&provider.name));
    let Some(key) = key else {
        let name = &provider.name;
        let problem = Problem::new(format!(
            "{variable} is not set, and provider `{name}` wants it"
        ));
        let hint = format!("export {variable}=…, or keep the key: selvedge models login {name}");
        return Err(problem.hint(hint).into());
    };
    Ok(keyed(provider, key))
}

fn keyed(provider: Provider, key: Secret) -> Provider {
    Provider {
        key: Some(key),
        ..provider
    }
}

/// What is known about a model: the table, as the configuration changes it.
pub(crate) fn known(config: &Config, name: &str) -> Model {
    let mut model = Model::known(name);
    if config.model.as_deref() == Some(name) {
        model.context_window = config.model_context_window.unwrap_or(model.context_window);
        model.max_output_tokens = config
            .model_max_output_tokens
            .unwrap_or(model.max_output_tokens);
    }
    let Some(settings) = config.models.get(name) else {
        return model;
    };
    Model {
        name: model.name,
        context_window: settings.context_window.unwrap_or(model.context_window),
        max_output_tokens: settings
            .max_output_tokens
            .unwrap_or(model.max_output_tokens),
        thinking: settings.thinking.unwrap_or(model.thinking),
        tools: settings.tools.unwrap_or(model.tools),
        freeform_tools: settings.freeform_tools.unwrap_or(model.freeform_tools),
        images: settings.images.unwrap_or(model.images),
        prices: settings.prices,
        script_mode: settings.script_harness,
        tool_pack: settings.tool_pack.clone(),
    }
}

/// Variables that hold keys: no command ever gets them.
pub(crate) fn secret_variables(config: &Config) -> Vec<String> {
    let own = config.model_providers.values().flat_map(|provider| {
        let headers = provider.env_http_headers.values();
        provider.env_key.iter().chain(headers).cloned()
    });
    let built_in = Provider::built_in().into_iter();
    built_in
        .filter_map(|provider| provider.env_key)
        .chain(own)
        .collect()
}

async fn somebody(all: &[Provider]) -> Result<(Provider, Vec<String>)> {
    for name in REMOTE {
        let provider = find(all, name)?;
        if let Some(key) = provider.env_key.as_deref().and_then(from_environment) {
            return Ok((keyed(provider, key), Vec::new()));
        }
    }
    let local = LOCAL.iter().filter_map(|name| find(all, name).ok());
    if let Some(found) = discover(local).await.into_iter().next() {
        return Ok((found.provider, found.models));
    }
    for name in REMOTE {
        let provider = find(all, name)?;
        if let Some(key) = crate::keyring::key(name) {
            return Ok((keyed(provider, key), Vec::new()));
        }
    }
    Err(Problem::new("there is no model to ask: no key is set, and no server runs on this machine")
        .hint("set OPENAI_API_KEY, ANTHROPIC_API_KEY or OPENROUTER_API_KEY, or start Ollama, LM Studio or llama.cpp")
        .into())
}

async fn first_of(provider: &Provider) -> Result<String> {
    let nameless = |why: String| {
        let name = &provider.name;
        Problem::new(format!("no model is named for provider `{name}`{why}"))
            .hint("name one with --model")
    };
    if !provider.is_local() {
        return Err(nameless(String::new()).into());
    }
    let client = selvedge_models::Client::new(provider.clone())
        .map_err(|error| nameless(format!(": {error}")))?;
    let models = client.models().await;
    let models = models.map_err(|error| nameless(format!(", and it lists none: {error}")))?;
    let first = models.into_iter().next();
    Ok(first.ok_or_else(|| nameless(", and it has none".to_owned()))?)
}

fn configured(name: &str, base: Option<Provider>, settings: &ModelProvider) -> Result<Provider> {
    let base = match (base, &settings.base_url) {
        (Some(base), _) => base,
        (None, Some(url)) => Provider::new(name, url, WireApi::Chat),
        (None, None) => {
            return Err(
                Problem::new(format!("[model_providers.{name}] has no base_url"))
                    .hint("base_url = \"https://host/v1\"")
                    .into(),
            );
        }
    };
    let mut provider = Provider {
        base_url: settings.base_url.clone().unwrap_or(base.base_url),
        wire: settings.wire_api.unwrap_or(base.wire),
        env_key: settings.env_key.clone().or(base.env_key),
        key_header: settings.key_header.clone().or(base.key_header),
        retries: settings.retries,
        default_model: settings.model.clone().or(base.default_model),
        script_mode: settings.script_harness.or(base.script_mode),
        tool_pack: settings.tool_pack.clone().or(base.tool_pack),
        query: settings.query_params.clone(),
        name: base.name,
        key: base.key,
        headers: base.headers,
        output_limit: base.output_limit,
    };
    let headers = settings.http_headers.iter();
    let headers = headers.map(|(name, value)| (name.clone(), Secret::new(value)));
    provider.headers.extend(headers);
    // A header whose variable is not set is not sent, as people know it.
    let from_variables = settings.env_http_headers.iter();
    provider.headers.extend(
        from_variables
            .filter_map(|(name, variable)| Some((name.clone(), from_environment(variable)?))),
    );
    Ok(provider)
}

fn from_environment(variable: &str) -> Option<Secret> {
    std::env::var(variable)
        .ok()
        .filter(|value| !value.trim().is_empty())
        .map(|value| Secret::new(value.trim()))
}

/// Ollama's own variable: a host, a port, or both, with or without a scheme. What it listens on is not where it is.
fn ollama_url(host: &str) -> String {
    let (scheme, place) = host.split_once("://").unwrap_or(("http", host));
    let place = place.trim_end_matches('/');
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() => (host, port),
        _ => (place, "11434"),
    };
    let host = if matches!(host, "" | "0.0.0.0" | "[::]") {
        "127.0.0.1"
    } else {
        host
    };
    format!("{scheme}://{host}:{port}/v1")
}

#[cfg(test)]
mod tests {
    use super::ollama_url;

    #[test]
    fn ollamas_variable_is_understood() {
        for (host, url) in [
            ("127.0.0.1", "http://127.0.0.1:11434/v1"),
            ("0.0.0.0:8080", "http://127.0.0.1:8080/v1"),
            (":8080", "http://127.0.0.1:8080/v1"),
            (
                "https://box.example.com",
                "https://box.example.com:11434/v1",
            ),
            ("http://box:80/", "http://box:80/v1"),
        ] {
            assert_eq!(ollama_url(host), url, "{host}");
        }
    }
}
