//! `selvedge models`: lists models and tests one.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::future::join_all;
use selvedge_models::{
    Model, ModelCapability, ModelClient, ModelError, ModelEvent, ModelTool, Prices, Prompt,
    Provider, ReasoningStyle, ToolCallMode, WindowSource,
};
use selvedge_protocol::{ConversationItem, MessageRole, ModelErrorKind, Usage};
use serde::Serialize;
use serde_json::json;

use crate::CliStatus;
use crate::args::{ModelsCommand, ModelsListArgs, ModelsTestArgs};
use crate::list_table::aligned_lines;
use crate::model_login::{login, logout};
use crate::output::{print_json_text, print_line};
use crate::problem::Problem;
use crate::providers::{self, ModelChoice};
use crate::setup::load_configuration;
use crate::stored_keys::KeyOrigin;

/// Time limit of a provider for listing its models.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) fn models(command: ModelsCommand) -> Result<CliStatus> {
    let runtime = crate::run::runtime()?;
    match command {
        ModelsCommand::List(args) => runtime.block_on(list(&args)),
        ModelsCommand::Test(args) => runtime.block_on(test(&args)),
        ModelsCommand::Login(args) => login(&args),
        ModelsCommand::Logout(args) => logout(&args),
    }
}

/// One provider in the output of `models list`.
#[derive(Debug, Serialize)]
struct ListedProvider {
    provider: String,
    wire_api: &'static str,
    base_url: String,
    /// `None` if the provider needs no key.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<ListedKey>,
    models: Vec<ListedModel>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct ListedKey {
    /// `None` if the provider has only a login.
    #[serde(skip_serializing_if = "Option::is_none")]
    variable: Option<String>,
    state: KeyState,
    /// `environment`, `keyring` or `file`.
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<&'static str>,
    /// The variable, the keyring or the path of the file, for people.
    #[serde(skip)]
    shown_place: Option<String>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum KeyState {
    Set,
    Missing,
}

#[derive(Debug, Serialize)]
struct ListedModel {
    name: String,
    /// Whether the built-in table, the configuration or the provider describes the model. Otherwise
    /// the values below are defaults.
    known: bool,
    context_window: u64,
    max_output_tokens: u64,
    tools: bool,
    images: bool,
    reasoning: bool,
    /// Prices per million tokens, if they are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    prices: Option<Prices>,
}

async fn list(args: &ModelsListArgs) -> Result<CliStatus> {
    let config = load_configuration(&args.workspace)?.config;
    let mut all = providers::all_providers(&config)?;
    if let Some(name) = &args.provider {
        all = vec![providers::find_provider(&all, name)?];
    }
    let is_named = args.provider.is_some();
    let described = all
        .into_iter()
        .map(|provider| list_provider(provider, &config, is_named));
    let listed = join_all(described).await;
    if args.json {
        return crate::output::print_json(&listed);
    }
    let provider_row = |provider: &ListedProvider| {
        let state = match (&provider.key, &provider.error, provider.models.len()) {
            (Some(key), ..) if key.state == KeyState::Missing => match &key.variable {
                Some(variable) => format!("{variable} is not set"),
                None => "not logged in".to_owned(),
            },
            (_, Some(error), _) => error.clone(),
            (_, None, 1) => "1 model".to_owned(),
            (_, None, count) => format!("{count} models"),
        };
        let place = provider
            .key
            .as_ref()
            .and_then(|key| key.shown_place.as_ref());
        let place = place.map(|place| format!(", key from {place}"));
        let place = place.unwrap_or_default();
        vec![
            provider.provider.clone(),
            provider.wire_api.to_owned(),
            provider.base_url.clone(),
            format!("{state}{place}"),
        ]
    };
    let provider_rows: Vec<_> = listed.iter().map(provider_row).collect();
    for (provider, line) in listed.iter().zip(aligned_lines(&provider_rows)) {
        print_line(&line)?;
        let model_row = |model: &ListedModel| {
            let mut abilities = format!("{}k context", model.context_window / 1000);
            for (has, ability) in [
                (model.tools, ", tools"),
                (model.images, ", images"),
                (model.reasoning, ", reasoning"),
            ] {
                abilities += if has { ability } else { "" };
            }
            let guess = if model.known { "" } else { " (assumed)" };
            let prices = model.prices.map(|prices| {
                let Prices { input, output, .. } = prices;
                format!(", {input} in, {output} out per million tokens")
            });
            let prices = prices.unwrap_or_default();
            let name = format!("  {}", model.name);
            vec![name, format!("{abilities}{guess}{prices}")]
        };
        let model_rows: Vec<_> = provider.models.iter().map(model_row).collect();
        for line in aligned_lines(&model_rows) {
            print_line(&line)?;
        }
    }
    Ok(CliStatus::Success)
}

/// Lists the models of a provider. `is_named` says that the user named the provider, which makes a
/// failed connection to a local server worth its full message.
async fn list_provider(
    provider: Provider,
    config: &selvedge_config::Config,
    is_named: bool,
) -> ListedProvider {
    let mut listed = ListedProvider {
        provider: provider.name.clone(),
        wire_api: provider.wire_api.as_str(),
        base_url: provider.base_url.clone(),
        key: None,
        models: Vec::new(),
        error: None,
    };
    let found = match providers::find_key(&provider) {
        Ok(found) => found,
        Err(problem) => {
            listed.error = Some(problem.to_string());
            return listed;
        }
    };
    let origin = found.as_ref().map(|found| &found.origin);
    let needs_key = providers::needs_key(&provider);
    listed.key = needs_key.then(|| ListedKey {
        variable: provider.env_key.clone(),
        state: match origin {
            Some(_) => KeyState::Set,
            None => KeyState::Missing,
        },
        place: origin.map(KeyOrigin::kind),
        shown_place: origin.map(KeyOrigin::describe),
    });
    if needs_key && found.is_none() {
        return listed;
    }
    let provider = match found {
        Some(found) => providers::set_key(provider, found.credential),
        None => provider,
    };
    let local = provider.is_local();
    let client = ModelClient::new(provider.clone());
    let models = async { client?.list_models_with_windows().await };
    match tokio::time::timeout(LIST_TIMEOUT, models).await {
        Ok(Ok(models)) => {
            let models = models.into_iter();
            let models = models.map(|(name, window)| listed_model(&provider, name, window, config));
            listed.models = models.collect();
        }
        Ok(Err(error)) if local && !is_named && error.kind == ModelErrorKind::Network => {
            listed.error = Some("not running".to_owned());
        }
        Ok(Err(error)) => listed.error = Some(error.message),
        Err(_) => {
            let seconds = LIST_TIMEOUT.as_secs();
            listed.error = Some(format!("did not answer within {seconds} s"));
        }
    }
    listed
}

/// Describes a model. `window` is the context window that the provider lists.
fn listed_model(
    provider: &Provider,
    name: String,
    window: Option<u64>,
    config: &selvedge_config::Config,
) -> ListedModel {
    let model = providers::model_properties(config, provider, &name);
    let window = window.filter(|_| model.window_source != WindowSource::Configured);
    ListedModel {
        known: Model::is_in_table(&name)
            || providers::model_settings(config, &name).is_some()
            || window.is_some(),
        name,
        context_window: window.unwrap_or(model.context_window),
        max_output_tokens: model.max_output_tokens,
        tools: model.tools,
        images: model.images,
        reasoning: model.reasoning != ReasoningStyle::Omitted,
        prices: model.prices,
    }
}

/// Output of the command `models test`.
#[derive(Debug, Default, Serialize)]
struct ModelTestReport {
    provider: String,
    wire_api: &'static str,
    model: String,
    /// Name of the model in the response; may be a version of `model`.
    answered_by: Option<String>,
    /// Time from the request to the first part of the answer.
    first_token_ms: Option<f64>,
    total_ms: f64,
    /// `called`, `offered` (the model answered without a call), or `not supported`.
    tools: &'static str,
    reasoning: bool,
    text: String,
    finish_reason: Option<selvedge_protocol::FinishReason>,
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    retries: Vec<String>,
}

async fn test(args: &ModelsTestArgs) -> Result<CliStatus> {
    let config = load_configuration(&args.workspace)?.config;
    let choice = providers::choose_model(&config, &args.model).await?;
    let client = ModelClient::new(choice.provider.clone())
        .map_err(|error| model_problem(&choice.provider, &error))?;
    let calls = if choice.model.tools {
        ToolCallMode::Parallel
    } else {
        ToolCallMode::Off
    };
    let outcome = match send_test_request(&client, &choice, calls).await {
        Err(error) if error.missing_capability == Some(ModelCapability::Tools) => {
            send_test_request(&client, &choice, ToolCallMode::Off).await
        }
        outcome => outcome,
    };
    let learned = match outcome {
        Ok(learned) => learned,
        Err(error) => {
            if args.json {
                let (kind, message, status) = (error.kind, &error.message, error.status);
                let report = json!({
                    "provider": choice.provider.name,
                    "model": choice.model.name,
                    "error": {"kind": kind, "message": message, "status": status},
                });
                print_json_text(&report.to_string())?;
            }
            model_problem(&choice.provider, &error).print();
            return Ok(CliStatus::Failed);
        }
    };
    if args.json {
        print_json_text(&serde_json::to_string_pretty(&learned)?)?;
    } else {
        print_report(&learned)?;
    }
    Ok(CliStatus::Success)
}

/// Sends the test request and collects what the answer shows.
async fn send_test_request(
    client: &ModelClient,
    choice: &ModelChoice,
    calls: ToolCallMode,
) -> Result<ModelTestReport, ModelError> {
    let schema =
        json!({"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]});
    let prompt = Prompt {
        history: vec![ConversationItem::message(
            MessageRole::User,
            "Call the tool `echo` with the word ready. If you cannot, answer: ready.",
        )],
        tools: vec![ModelTool::function("echo", "Returns the word.", schema)],
        call_mode: calls,
        // Leaves room for reasoning before the answer.
        max_output_tokens: Some(2048.min(choice.model.max_output_tokens)),
        effort: choice.effort,
        ..Prompt::default()
    };
    let mut learned = ModelTestReport {
        provider: choice.provider.name.clone(),
        wire_api: choice.provider.wire_api.as_str(),
        model: choice.model.name.clone(),
        tools: match calls {
            ToolCallMode::Off => "not supported",
            _ => "offered",
        },
        ..ModelTestReport::default()
    };
    let start = Instant::now();
    let since = |start: Instant| start.elapsed().as_secs_f64() * 1e3;
    let mut stream = client.stream(&prompt, &choice.model);
    while let Some(event) = stream.next().await {
        let event = event?;
        let is_part = matches!(
            event,
            ModelEvent::Text { .. } | ModelEvent::Reasoning { .. } | ModelEvent::CallStarted { .. }
        );
        if is_part && learned.first_token_ms.is_none() {
            learned.first_token_ms = Some(since(start));
        }
        match event {
            ModelEvent::Started { model, .. } => learned.answered_by = model,
            ModelEvent::Text { text, .. } => learned.text.push_str(&text),
            ModelEvent::Reasoning { .. } => learned.reasoning = true,
            ModelEvent::ItemDone { item: done, .. } => match done {
                ConversationItem::FunctionCall(_) => learned.tools = "called",
                ConversationItem::Reasoning(_) => learned.reasoning = true,
                _ => {}
            },
            ModelEvent::Usage(usage) => learned.usage = Some(usage),
            ModelEvent::Finished { reason, .. } => learned.finish_reason = Some(reason),
            ModelEvent::Retrying { error, .. } => {
                learned.text.clear();
                learned.retries.push(error.message);
            }
            _ => {}
        }
    }
    learned.total_ms = since(start);
    let priced = choice.model.prices.zip(learned.usage);
    learned.cost = priced.map(|(prices, usage)| prices.cost(&usage));
    Ok(learned)
}

fn print_report(learned: &ModelTestReport) -> Result<()> {
    let row = |label: &str, value: &str| print_line(&format!("{label:<12} {value}"));
    let model = &learned.model;
    row(
        "provider",
        &format!("{} ({})", learned.provider, learned.wire_api),
    )?;
    match &learned.answered_by {
        Some(by) if by != model => row("model", &format!("{model}, answered by {by}"))?,
        _ => row("model", model)?,
    }
    let first = learned.first_token_ms.map(|ms| format!("{ms:.0} ms"));
    let first = first.as_deref().unwrap_or("none");
    row(
        "first token",
        &format!("{first} (complete after {:.0} ms)", learned.total_ms),
    )?;
    row("tools", learned.tools)?;
    row("reasoning", if learned.reasoning { "yes" } else { "no" })?;
    let part = |tokens: u64, label: &str| match tokens {
        0 => String::new(),
        tokens => format!(" ({tokens} {label})"),
    };
    match learned.usage {
        Some(usage) => {
            let cached = part(usage.cached_input_tokens, "cached");
            let reasoning = part(usage.reasoning_output_tokens, "reasoning");
            let (tokens_in, tokens_out) = (usage.input_tokens, usage.output_tokens);
            row(
                "usage",
                &format!("{tokens_in} in{cached}, {tokens_out} out{reasoning}"),
            )?;
        }
        None => row("usage", "not reported")?,
    }
    match (learned.cost, learned.usage) {
        (Some(cost), _) => row("cost", &format!("{cost:.6}"))?,
        (None, Some(_)) => {
            let key = format!("models.{model:?}.prices");
            row("cost", &format!("unknown: set {key} in config.toml"))?;
        }
        (None, None) => {}
    }
    for retry in &learned.retries {
        row("retried", retry)?;
    }
    Ok(())
}

/// Describes a failed request to a provider, with a hint.
pub(crate) fn model_problem(provider: &Provider, error: &ModelError) -> Problem {
    request_problem(provider, error.kind, &error.message, error.retry_after)
}

/// Describes a failed request from the parts of its error. `retry_after` is the delay that the
/// provider asked for.
pub(crate) fn request_problem(
    provider: &Provider,
    kind: ModelErrorKind,
    message: &str,
    retry_after: Option<Duration>,
) -> Problem {
    let name = &provider.name;
    let file = selvedge_config::home().map(|home| home.join("config.toml"));
    let file = file.map_or("config.toml".to_owned(), |file| file.display().to_string());
    let table = format!("[model_providers.{name}] in {file}");
    let base_url_key = format!("base_url under {table}");
    let list_models =
        || format!("run `selvedge models list --provider {name}`, then pass --model MODEL");
    let hint = match kind {
        ModelErrorKind::BaseUrl => format!("correct {base_url_key}"),
        ModelErrorKind::Auth if provider.oauth.is_some() => {
            format!("run `selvedge models login {name}`")
        }
        ModelErrorKind::Auth => match &provider.env_key {
            Some(variable) => format!("run `export {variable}=KEY` with a valid key"),
            None => format!("set env_key = \"VARIABLE\" under {table}, and export VARIABLE"),
        },
        ModelErrorKind::Quota => "check the plan and the credit of the account".to_owned(),
        ModelErrorKind::RateLimit => match retry_after {
            Some(delay) => format!("try again in {:.0} s", delay.as_secs_f64().ceil()),
            None => "try again later, or pass another --provider".to_owned(),
        },
        ModelErrorKind::ContextTooLong => {
            "start a new session, or pass a --model with a larger context".to_owned()
        }
        ModelErrorKind::UnknownModel => match quoted_word(message) {
            // Ollama may be configured under another name.
            Some(model) if name == "ollama" || message.contains("try pulling") => {
                format!("run `ollama pull {model}`")
            }
            _ => list_models(),
        },
        ModelErrorKind::InvalidRequest => {
            "pass another --model: this model or its server may not support the request".to_owned()
        }
        ModelErrorKind::Timeout => {
            let doubled = provider.retries.stream_idle_timeout_ms.saturating_mul(2);
            format!(
                "the server is reachable but slow: set stream_idle_timeout_ms = {doubled} under \
                 {table}"
            )
        }
        ModelErrorKind::Network => match name.as_str() {
            "ollama" => "start the server with `ollama serve`".to_owned(),
            "lmstudio" => "start the server with `lms server start`".to_owned(),
            "llamacpp" => "start the server with `llama-server -m MODEL.gguf`".to_owned(),
            _ if provider.is_local() => format!("start the server, or change {base_url_key}"),
            _ => match provider.proxy_variable() {
                Some(variable) => {
                    format!("correct the address in {variable}, or run `unset {variable}`")
                }
                None => format!("check the connection with `curl -I {}`", provider.base_url),
            },
        },
        _ => "try again, or pass another --provider".to_owned(),
    };
    let message = match kind {
        // The message of a failed connection names the provider.
        ModelErrorKind::Network | ModelErrorKind::Timeout => message.to_owned(),
        ModelErrorKind::Server | ModelErrorKind::Overloaded | ModelErrorKind::Protocol => {
            format!("provider `{name}` failed: {message}")
        }
        _ => format!("provider `{name}`: {message}"),
    };
    Problem::new(message).hint(hint)
}

/// Returns the first word of a message that is in quotes or backticks.
fn quoted_word(message: &str) -> Option<&str> {
    let rest = message.split_once(['"', '\'', '`'])?.1;
    let word = rest.split_once(['"', '\'', '`'])?.0;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-:/".contains(c);
    (!word.is_empty() && word.chars().all(is_plain)).then_some(word)
}
