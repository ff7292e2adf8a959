//! Chooses the provider and the model from flags, configuration, environment and stored keys.

use anyhow::Result;
use selvedge_config::{
    Config, ModelProvider, ModelScriptSettings, ModelSettings, ProviderOrigin, SavedRules,
};
use selvedge_models::{
    AccessTokens, DiscoveredServer, Effort, KeySource, Model, ModelClient, Provider, Secret,
    WindowSource, discover_servers,
};
use selvedge_protocol::{ModelErrorKind, WireApi};

use crate::args::ModelChoiceArgs;
use crate::model_discovery::{DiscoveryQuestion, confirm_server, is_accepted};
use crate::problem::Problem;
use crate::provider_login::ProviderLogin;
use crate::stored_keys::{FoundKey, KeyOrigin, ProviderCredential, find_entry};

/// Model servers on this machine that are tried without configuration, in this order.
const LOCAL_PROVIDERS: [&str; 3] = ["ollama", "lmstudio", "llamacpp"];
/// Providers that are used without configuration if their key is set, in this order.
const REMOTE_PROVIDERS: [&str; 3] = ["openai", "anthropic", "openrouter"];

/// The provider and the model of an agent.
#[derive(Debug, Clone)]
pub(crate) struct ModelChoice {
    /// The provider, including its key.
    pub(crate) provider: Provider,
    pub(crate) model: Model,
    pub(crate) effort: Option<Effort>,
}

impl ModelChoice {
    /// Creates a client of the provider.
    pub(crate) fn client(&self) -> Result<ModelClient, Problem> {
        let client = ModelClient::new(self.provider.clone());
        client.map_err(|error| Problem::new(error.to_string()))
    }
}

/// Returns the provider and the model that flags and configuration name. Without them, returns the
/// first of: a provider whose key is in the environment, an accepted model server on this machine,
/// a provider whose key is stored, another model server that the user accepts.
pub(crate) async fn choose_model(config: &Config, args: &ModelChoiceArgs) -> Result<ModelChoice> {
    choose(config, args, DiscoveryQuestion::Allowed).await
}

/// Returns what [`choose_model`] returns, but asks nothing.
pub(crate) async fn choose_model_without_asking(
    config: &Config,
    args: &ModelChoiceArgs,
) -> Result<ModelChoice> {
    choose(config, args, DiscoveryQuestion::NotAllowed).await
}

async fn choose(
    config: &Config,
    args: &ModelChoiceArgs,
    question: DiscoveryQuestion,
) -> Result<ModelChoice> {
    let all = all_providers(config)?;
    let named = args.provider.as_ref().or(config.model_provider.as_ref());
    // The configured model belongs to the configured provider.
    let other = args.provider.is_some()
        && args.provider != config.model_provider
        && config.model_provider.is_some();
    let model = args
        .model
        .clone()
        .or_else(|| config.model.clone().filter(|_| !other));
    let (provider, listed) = match named {
        Some(name) => {
            let found = find_provider(&all, name).map_err(|error| match args.provider {
                Some(_) => error,
                None => in_configuration(error, &["model_provider"]),
            })?;
            (load_key(found)?, Vec::new())
        }
        None => first_available(&all, question).await?,
    };
    let model = match model
        .or_else(|| provider.default_model.clone())
        .or_else(|| listed.into_iter().next())
    {
        Some(model) => model,
        None => first_local_model(&provider).await?,
    };
    let model = model_properties(config, &provider, &model);
    Ok(ModelChoice {
        provider,
        model,
        effort: config.model_reasoning_effort,
    })
}

/// Returns all providers: the built-in ones with the configuration's changes, then its own.
pub(crate) fn all_providers(config: &Config) -> Result<Vec<Provider>> {
    let mut all = Provider::built_ins();
    if let Some(ollama) = all.iter_mut().find(|provider| provider.name == "ollama")
        && let Some(host) = std::env::var("OLLAMA_HOST")
            .ok()
            .filter(|host| !host.is_empty())
    {
        ollama.base_url = ollama_url(&host);
    }
    for (name, settings) in &config.model_providers {
        let position = all.iter().position(|provider| provider.name == *name);
        let base = position.map(|position| all.remove(position));
        let position = position.unwrap_or(all.len());
        all.insert(position, configure_provider(name, base, settings)?);
    }
    Ok(all)
}

/// Splits the name of a model: `provider/model` names both if there is such a provider.
pub(crate) fn split_model_name(config: &Config, name: &str) -> Result<ModelChoiceArgs> {
    let all = all_providers(config)?;
    let split = name.split_once('/');
    let split = split.filter(|(provider, _)| all.iter().any(|known| known.name == *provider));
    Ok(ModelChoiceArgs {
        provider: split.map(|(provider, _)| provider.to_owned()),
        model: Some(split.map_or(name, |(_, model)| model).to_owned()),
    })
}

/// Returns the provider of this name.
pub(crate) fn find_provider(all: &[Provider], name: &str) -> Result<Provider> {
    let found = all.iter().find(|provider| provider.name == name).cloned();
    Ok(found.ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|provider| provider.name.as_str()).collect();
        let similar = selvedge_tools::similar_names(name, names.iter().copied());
        let near = similar.first();
        let near = near.map(|near| format!("did you mean `{near}`? Otherwise "));
        Problem::new(format!("there is no provider `{name}`")).hint(format!(
            "{}use one of {}, or add [model_providers.{name}] to config.toml",
            near.unwrap_or_default(),
            names.join(", ")
        ))
    })?)
}

/// Returns the error with the place of the configuration that causes it.
fn in_configuration(error: anyhow::Error, key: &[&str]) -> anyhow::Error {
    let problem = Problem::from_error(&error);
    match selvedge_config::place_of_key(selvedge_config::home().as_deref(), None, key) {
        Some(place) => problem.at_place(&place).into(),
        None => problem.into(),
    }
}

/// Returns the provider with its key or login. The error says what to do if there is none.
pub(crate) fn load_key(provider: Provider) -> Result<Provider> {
    if !needs_key(&provider) {
        return Ok(provider);
    }
    let Some(found) = find_key(&provider)? else {
        let name = &provider.name;
        let problem = match (&provider.env_key, &provider.oauth) {
            (_, Some(_)) => Problem::new(format!("you are not logged in to provider `{name}`"))
                .hint(format!("run `selvedge models login {name}`")),
            (variable, None) => {
                let variable = variable.as_deref().unwrap_or_default();
                Problem::new(format!(
                    "provider `{name}` needs an API key, and {variable} is not set"
                ))
                .hint(format!(
                    "run `export {variable}=KEY`, or `selvedge models login {name}`"
                ))
            }
        };
        return Err(problem.into());
    };
    Ok(set_key(provider, found.credential))
}

/// Whether requests to the provider need a key or a login.
pub(crate) fn needs_key(provider: &Provider) -> bool {
    provider.env_key.is_some() || provider.oauth.is_some()
}

/// Returns the key of a provider and its place; `None` if there is none. A key in the environment
/// has precedence over a login, and a login over a stored key. Fails only if the file with keys or
/// the settings of the login cannot be used.
pub(crate) fn find_key(provider: &Provider) -> Result<Option<FoundKey>, Problem> {
    if let Some(variable) = &provider.env_key
        && let Some(key) = secret_from_env(variable)
    {
        return Ok(Some(FoundKey {
            credential: ProviderCredential::Key(key),
            origin: KeyOrigin::Environment(variable.clone()),
        }));
    }
    if provider.key_source == KeySource::Environment {
        return Ok(None);
    }
    if let Some(settings) = &provider.oauth
        && let Some((login, store)) = ProviderLogin::find(&provider.name, settings)?
    {
        return Ok(Some(FoundKey {
            credential: ProviderCredential::Login(AccessTokens::new(login)),
            origin: KeyOrigin::Login(store),
        }));
    }
    if provider.env_key.is_none() {
        return Ok(None);
    }
    let stored = find_entry(&provider.name)?;
    Ok(stored.map(|stored| FoundKey {
        credential: ProviderCredential::Key(Secret::new(stored.text)),
        origin: KeyOrigin::Stored(stored.store),
    }))
}

pub(crate) fn set_key(provider: Provider, credential: ProviderCredential) -> Provider {
    match credential {
        ProviderCredential::Key(key) => Provider {
            key: Some(key),
            ..provider
        },
        ProviderCredential::Login(tokens) => Provider {
            access_tokens: Some(tokens),
            ..provider
        },
    }
}

/// Returns the properties of a model from the built-in table, with the configuration's changes.
pub(crate) fn model_properties(config: &Config, provider: &Provider, name: &str) -> Model {
    let mut model = Model::at_provider(provider, name);
    if config.model.as_deref() == Some(name) {
        if let Some(window) = config.model_context_window {
            model.context_window = window;
            model.window_source = WindowSource::Configured;
        }
        model.max_output_tokens = config
            .model_max_output_tokens
            .unwrap_or(model.max_output_tokens);
    }
    let Some(settings) = model_settings(config, name) else {
        return model;
    };
    let scripts = settings.script_harness.as_ref();
    Model {
        name: model.name,
        context_window: settings.context_window.unwrap_or(model.context_window),
        window_source: match settings.context_window {
            Some(_) => WindowSource::Configured,
            None => model.window_source,
        },
        max_output_tokens: settings
            .max_output_tokens
            .unwrap_or(model.max_output_tokens),
        reasoning: settings.reasoning.unwrap_or(model.reasoning),
        tools: settings.tools.unwrap_or(model.tools),
        freeform_tools: settings.freeform_tools.unwrap_or(model.freeform_tools),
        images: settings.images.unwrap_or(model.images),
        shell: settings.shell.unwrap_or(model.shell),
        patch: settings.patch.or(model.patch),
        strict_schemas: settings.strict_schemas.unwrap_or(model.strict_schemas),
        prices: settings.prices.or(model.prices),
        script_mode: scripts.and_then(ModelScriptSettings::mode),
        script_limits: scripts.map(ModelScriptSettings::limits).unwrap_or_default(),
        tool_pack: settings.tool_pack.clone(),
    }
}

/// Returns the configured settings of a model: those of its name, else those of the longest name
/// with a final `*` that matches.
pub(crate) fn model_settings<'c>(config: &'c Config, name: &str) -> Option<&'c ModelSettings> {
    let families = config.models.iter().filter_map(|(pattern, settings)| {
        let prefix = pattern.strip_suffix('*')?;
        name.starts_with(prefix).then_some((prefix.len(), settings))
    });
    let family = || families.max_by_key(|(len, _)| *len);
    let own = config.models.get(name);
    own.or_else(|| family().map(|(_, settings)| settings))
}

/// Returns the variables that contain keys. They are never passed to commands.
pub(crate) fn provider_key_variables(config: &Config) -> Vec<String> {
    let own = config.model_providers.values().flat_map(|provider| {
        let headers = provider.env_http_headers.values();
        provider.env_key.iter().chain(headers).cloned()
    });
    let built_in = Provider::built_ins().into_iter();
    built_in
        .filter_map(|provider| provider.env_key)
        .chain(own)
        .collect()
}

/// Returns the first available provider, and the models of a local server if they are known: a
/// provider whose key is in the environment, a local server that the user accepted, a provider
/// whose key is stored, a local server that the user accepts now.
async fn first_available(
    all: &[Provider],
    question: DiscoveryQuestion,
) -> Result<(Provider, Vec<String>)> {
    for name in REMOTE_PROVIDERS {
        let provider = find_provider(all, name)?;
        if let Some(key) = provider.env_key.as_deref().and_then(secret_from_env) {
            let credential = ProviderCredential::Key(key);
            return Ok((set_key(provider, credential), Vec::new()));
        }
    }
    let local = LOCAL_PROVIDERS
        .iter()
        .filter_map(|name| find_provider(all, name).ok());
    let mut found = discover_servers(local).await;
    let home = selvedge_config::home();
    let rules = match (&home, found.is_empty()) {
        (Some(home), false) => crate::setup::saved_rules(Some(home))?,
        _ => SavedRules::default(),
    };
    if let Some(index) = found.iter().position(|server| is_accepted(server, &rules)) {
        return Ok(accepted_server(found.swap_remove(index)));
    }
    for name in REMOTE_PROVIDERS {
        let provider = find_provider(all, name)?;
        if let Some(found) = find_key(&provider)? {
            return Ok((set_key(provider, found.credential), Vec::new()));
        }
    }
    if let Some(server) = found.into_iter().next() {
        confirm_server(&server, home.as_deref(), question)?;
        return Ok(accepted_server(server));
    }
    let message =
        "no model is available: no API key is set and no model server runs on this machine";
    let hint = "run `export OPENAI_API_KEY=KEY` (or ANTHROPIC_API_KEY, OPENROUTER_API_KEY), \
                or start a model server with `ollama serve`";
    Err(Problem::new(message).hint(hint).into())
}

/// Returns the provider and the models of a server that the user accepted. The provider is used
/// only while a process of the same user listens at its address.
fn accepted_server(server: DiscoveredServer) -> (Provider, Vec<String>) {
    let provider = Provider {
        accepted_user: server.user,
        ..server.provider
    };
    (provider, server.models)
}

/// Returns the first model that a local provider lists.
async fn first_local_model(provider: &Provider) -> Result<String> {
    let name = &provider.name;
    let missing = |why: &str, hint: String| {
        Problem::new(format!("no model is set for provider `{name}`{why}")).hint(hint)
    };
    if !provider.is_local() {
        let hint = format!("run `selvedge models list --provider {name}`, then pass --model MODEL");
        return Err(missing("", hint).into());
    }
    let client = selvedge_models::ModelClient::new(provider.clone())
        .map_err(|error| crate::models::model_problem(provider, &error))?;
    let models = client.list_models().await;
    let models = models.map_err(|error| match error.kind {
        // The server answers, but cannot list its models.
        ModelErrorKind::InvalidRequest
        | ModelErrorKind::UnknownModel
        | ModelErrorKind::Protocol => missing(
            &format!(", and the server cannot list its models: {}", error.message),
            "pass --model MODEL".to_owned(),
        ),
        _ => crate::models::model_problem(provider, &error),
    })?;
    let first = models.into_iter().next();
    Ok(first.ok_or_else(|| {
        let hint = match name.as_str() {
            "ollama" => "run `ollama pull qwen3`, or pull another model".to_owned(),
            "lmstudio" => "run `lms get`, then `lms load`".to_owned(),
            _ => "load a model in the server, or pass --model MODEL".to_owned(),
        };
        missing(", and the server has none", hint)
    })?)
}

fn configure_provider(
    name: &str,
    base: Option<Provider>,
    settings: &ModelProvider,
) -> Result<Provider> {
    let base = match (base, &settings.base_url) {
        (Some(base), _) => base,
        (None, Some(url)) => Provider::new(name, url, WireApi::Chat),
        (None, None) => {
            let problem = Problem::new(format!("[model_providers.{name}] has no base_url"))
                .hint("set `base_url = \"https://HOST/v1\"` in that section of config.toml");
            return Err(in_configuration(problem.into(), &["model_providers", name]));
        }
    };
    let scripts = settings.script_harness.as_ref();
    // A project that sets the address does not get the key of the built-in provider.
    let key_source = match settings.origin {
        ProviderOrigin::User | ProviderOrigin::Project => base.key_source,
        ProviderOrigin::Redirected => KeySource::Environment,
    };
    let own_key = base
        .env_key
        .filter(|_| settings.origin != ProviderOrigin::Redirected);
    let mut provider = Provider {
        key_source,
        oauth: settings.oauth.clone().or(base.oauth),
        access_tokens: base.access_tokens,
        accepted_user: base.accepted_user,
        base_url: settings.base_url.clone().unwrap_or(base.base_url),
        wire_api: settings.wire_api.unwrap_or(base.wire_api),
        env_key: settings.env_key.clone().or(own_key),
        key_header: settings.key_header.clone().or(base.key_header),
        retries: settings.retries,
        default_model: settings.model.clone().or(base.default_model),
        script_mode: scripts
            .and_then(ModelScriptSettings::mode)
            .or(base.script_mode),
        script_limits: scripts.map(ModelScriptSettings::limits).unwrap_or_default(),
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
    // A header whose variable is not set is not sent.
    let from_variables = settings.env_http_headers.iter();
    provider.headers.extend(
        from_variables
            .filter_map(|(name, variable)| Some((name.clone(), secret_from_env(variable)?))),
    );
    Ok(provider)
}

fn secret_from_env(variable: &str) -> Option<Secret> {
    std::env::var(variable)
        .ok()
        .filter(|value| !value.trim().is_empty())
        .map(|value| Secret::new(value.trim()))
}

/// Converts the value of `OLLAMA_HOST` to a URL. It may be a host, a port or both, with or without
/// a scheme; an address to listen on becomes the loopback address.
fn ollama_url(host: &str) -> String {
    let (scheme, authority) = host.split_once("://").unwrap_or(("http", host));
    let authority = authority.trim_end_matches('/');
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() => (host, port),
        _ => (authority, "11434"),
    };
    let host = if matches!(host, "" | "0.0.0.0" | "[::]") {
        "127.0.0.1"
    } else {
        host
    };
    format!("{scheme}://{host}:{port}/v1")
}

/// Whether a provider that lists these models may offer this one. Many providers list a version of
/// a model, such as `NAME-2026-01-01` or `NAME:latest`, and some list nothing.
pub(crate) fn may_offer_model(listed: &[String], model: &str) -> bool {
    let is_version = |name: &String| {
        let rest = name.strip_prefix(model);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', ':', '@']))
    };
    listed.is_empty() || listed.iter().any(is_version)
}

#[cfg(test)]
mod tests {
    use super::{ollama_url, split_model_name};

    #[test]
    fn the_name_of_a_model_can_begin_with_its_provider() {
        let config = selvedge_config::Config::default();
        let split = |name: &str| {
            let args = split_model_name(&config, name).unwrap();
            (
                args.provider.unwrap_or_default(),
                args.model.unwrap_or_default(),
            )
        };
        let pair = |provider: &str, model: &str| (provider.to_owned(), model.to_owned());
        assert_eq!(split("openai/gpt-5"), pair("openai", "gpt-5"));
        assert_eq!(split("vendor/model"), pair("", "vendor/model"));
    }

    #[test]
    fn ollama_host_is_converted_to_a_url() {
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
