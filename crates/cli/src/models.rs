//! `selvedge models`: who can be asked, and whether asking works.

use std::io::{BufRead, IsTerminal};
use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::future::join_all;
use selvedge_models::{
    Ability, Calls, Client, Model, ModelError, ModelEvent, Prompt, Provider, Thinking, Tool,
};
use selvedge_protocol::{Item, ModelErrorKind, Role, Usage};
use serde::Serialize;
use serde_json::json;

use crate::Exit;
use crate::args::{ModelsCommand, ModelsListArgs, ModelsLoginArgs, ModelsTestArgs};
use crate::out::{harmless, line, talk};
use crate::problem::Problem;
use crate::providers::{self, Choice};
use crate::setup::configuration;

/// How long a list may take where nobody is sure that somebody is there.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) fn models(command: ModelsCommand) -> Result<Exit> {
    let runtime = crate::run::runtime()?;
    match command {
        ModelsCommand::List(args) => runtime.block_on(list(&args)),
        ModelsCommand::Test(args) => runtime.block_on(test(&args)),
        ModelsCommand::Login(args) => login(&args),
        ModelsCommand::Logout(args) => logout(&args),
    }
}

#[derive(Debug, Serialize)]
struct Listed {
    provider: String,
    wire_api: &'static str,
    base_url: String,
    /// `set`, `missing`, or nothing where no key is wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<Key>,
    models: Vec<ListedModel>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct Key {
    variable: String,
    state: &'static str,
}

#[derive(Debug, Serialize)]
struct ListedModel {
    name: String,
    /// Whether the table or the configuration knows it; else the numbers are what most models have.
    known: bool,
    context_window: u64,
    max_output_tokens: u64,
    tools: bool,
    images: bool,
    reasoning: bool,
}

async fn list(args: &ModelsListArgs) -> Result<Exit> {
    let config = configuration(&args.place)?.config;
    let mut all = providers::all(&config)?;
    if let Some(name) = &args.provider {
        all = vec![providers::find(&all, name)?];
    }
    let asked_for = args.provider.is_some();
    let described = all
        .into_iter()
        .map(|provider| describe(provider, &config, asked_for));
    let listed = join_all(described).await;
    if args.json {
        return crate::out::json(&listed);
    }
    for provider in &listed {
        let state = match (&provider.key, &provider.error, provider.models.len()) {
            (Some(key), ..) if key.state == "missing" => format!("{} is not set", key.variable),
            (_, Some(error), _) => error.clone(),
            (_, None, 1) => "1 model".to_owned(),
            (_, None, count) => format!("{count} models"),
        };
        line(&harmless(&format!(
            "{:<12} {:<10} {:<32} {state}",
            provider.provider, provider.wire_api, provider.base_url
        )))?;
        for model in &provider.models {
            let mut words = format!("{}k context", model.context_window / 1000);
            for (has, word) in [
                (model.tools, ", tools"),
                (model.images, ", images"),
                (model.reasoning, ", reasoning"),
            ] {
                words += if has { word } else { "" };
            }
            let guess = if model.known { "" } else { " (a guess)" };
            line(&harmless(&format!("  {:<40} {words}{guess}", model.name)))?;
        }
    }
    Ok(Exit::Done)
}

async fn describe(provider: Provider, config: &selvedge_config::Config, asked_for: bool) -> Listed {
    let mut listed = Listed {
        provider: provider.name.clone(),
        wire_api: provider.wire.as_str(),
        base_url: provider.base_url.clone(),
        key: None,
        models: Vec::new(),
        error: None,
    };
    let variable = provider.env_key.clone();
    let ready = providers::with_key(provider.clone());
    listed.key = variable.map(|variable| Key {
        variable,
        state: if ready.is_ok() { "set" } else { "missing" },
    });
    let Ok(provider) = ready else { return listed };
    let local = provider.is_local();
    let asked = async { Client::new(provider)?.models().await };
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok(names)) => {
            let models = names.iter().map(|name| listed_model(name, config));
            listed.models = models.collect();
        }
        Ok(Err(error)) if local && !asked_for && error.kind == ModelErrorKind::Network => {
            listed.error = Some("does not run".to_owned());
        }
        Ok(Err(error)) => listed.error = Some(error.message),
        Err(_) => listed.error = Some("no answer in time".to_owned()),
    }
    listed
}

fn listed_model(name: &str, config: &selvedge_config::Config) -> ListedModel {
    let model = providers::known(config, name);
    ListedModel {
        name: name.to_owned(),
        known: Model::is_known(name) || config.models.contains_key(name),
        context_window: model.context_window,
        max_output_tokens: model.max_output_tokens,
        tools: model.tools,
        images: model.images,
        reasoning: model.thinking != Thinking::Unsaid,
    }
}

#[derive(Debug, Default, Serialize)]
struct Learned {
    provider: String,
    wire_api: &'static str,
    model: String,
    /// As the provider calls it.
    answered_by: Option<String>,
    /// From sending to the first piece of anything.
    first_token_ms: Option<f64>,
    total_ms: f64,
    /// `called`, `offered` (it answered without a call), or `not supported`.
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

async fn test(args: &ModelsTestArgs) -> Result<Exit> {
    let config = configuration(&args.place)?.config;
    let choice = providers::choose(&config, &args.model).await?;
    let client =
        Client::new(choice.provider.clone()).map_err(|error| problem(&choice.provider, &error))?;
    let calls = if choice.model.tools {
        Calls::Parallel
    } else {
        Calls::Off
    };
    let outcome = match ask(&client, &choice, calls).await {
        Err(error) if error.lacks == Some(Ability::Tools) => {
            ask(&client, &choice, Calls::Off).await
        }
        outcome => outcome,
    };
    let learned = match outcome {
        Ok(learned) => learned,
        Err(error) => {
            if args.json {
                line(
                    &json!({"provider": choice.provider.name, "model": choice.model.name,
                    "error": {"kind": error.kind, "message": error.message, "status": error.status}})
                    .to_string(),
                )?;
            }
            problem(&choice.provider, &error).print();
            return Ok(Exit::Failed);
        }
    };
    if args.json {
        line(&serde_json::to_string_pretty(&learned)?)?;
    } else {
        show(&learned)?;
    }
    Ok(Exit::Done)
}

async fn ask(client: &Client, choice: &Choice, calls: Calls) -> Result<Learned, ModelError> {
    let schema =
        json!({"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]});
    let prompt = Prompt {
        history: vec![Item::message(
            Role::User,
            "Call the tool `echo` with the word ready. If you cannot, say: ready.",
        )],
        tools: vec![Tool::function("echo", "Says a word back.", schema)],
        calls,
        // Enough for a model that thinks first.
        max_output_tokens: Some(2048.min(choice.model.max_output_tokens)),
        effort: choice.effort,
        ..Prompt::default()
    };
    let mut learned = Learned {
        provider: choice.provider.name.clone(),
        wire_api: choice.provider.wire.as_str(),
        model: choice.model.name.clone(),
        tools: match calls {
            Calls::Off => "not supported",
            _ => "offered",
        },
        ..Learned::default()
    };
    let start = Instant::now();
    let since = |start: Instant| start.elapsed().as_secs_f64() * 1e3;
    let mut stream = client.stream(&prompt, &choice.model);
    while let Some(event) = stream.next().await {
        let event = event?;
        let piece = matches!(
            event,
            ModelEvent::Text { .. } | ModelEvent::Reasoning { .. } | ModelEvent::CallStarted { .. }
        );
        if piece && learned.first_token_ms.is_none() {
            learned.first_token_ms = Some(since(start));
        }
        match event {
            ModelEvent::Started { model, .. } => learned.answered_by = model,
            ModelEvent::Text { text, .. } => learned.text.push_str(&text),
            ModelEvent::Reasoning { .. } => learned.reasoning = true,
            ModelEvent::ItemDone { done, .. } => match done {
                Item::FunctionCall(_) => learned.tools = "called",
                Item::Reasoning(_) => learned.reasoning = true,
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

fn show(learned: &Learned) -> Result<()> {
    let say = |what: &str, value: &str| line(&harmless(&format!("{what:<12} {value}")));
    let model = &learned.model;
    say(
        "provider",
        &format!("{} ({})", learned.provider, learned.wire_api),
    )?;
    match &learned.answered_by {
        Some(by) if by != model => say("model", &format!("{model}, answered by {by}"))?,
        _ => say("model", model)?,
    }
    let first = learned.first_token_ms.map(|ms| format!("{ms:.0} ms"));
    let first = first.as_deref().unwrap_or("nothing came");
    say(
        "first token",
        &format!("{first} (all after {:.0} ms)", learned.total_ms),
    )?;
    say("tools", learned.tools)?;
    say(
        "reasoning",
        if learned.reasoning {
            "yes"
        } else {
            "none seen"
        },
    )?;
    let part = |tokens: u64, word: &str| match tokens {
        0 => String::new(),
        some => format!(" ({some} {word})"),
    };
    match learned.usage {
        Some(usage) => {
            let cached = part(usage.cached_input_tokens, "cached");
            let thought = part(usage.reasoning_output_tokens, "reasoning");
            let (tokens_in, tokens_out) = (usage.input_tokens, usage.output_tokens);
            say(
                "usage",
                &format!("{tokens_in} in{cached}, {tokens_out} out{thought}"),
            )?;
        }
        None => say("usage", "not told")?,
    }
    if let Some(cost) = learned.cost {
        say("cost", &format!("{cost:.6}"))?;
    }
    for retry in &learned.retries {
        say("retried", retry)?;
    }
    Ok(())
}

/// A failed answer, with what to do.
pub(crate) fn problem(provider: &Provider, error: &ModelError) -> Problem {
    let name = &provider.name;
    let hint = match error.kind {
        ModelErrorKind::Auth => match &provider.env_key {
            Some(variable) => format!("check the key in {variable}"),
            None => {
                format!("does it want a key? [model_providers.{name}] env_key names its variable")
            }
        },
        ModelErrorKind::Quota => "look at the account's plan and credit".to_owned(),
        ModelErrorKind::RateLimit => match error.retry_after {
            Some(delay) => format!("wait {:.0} s, then try again", delay.as_secs_f64().ceil()),
            None => "wait a little, then try again".to_owned(),
        },
        ModelErrorKind::ContextTooLong => {
            "begin a new conversation, or choose a model with a larger context".to_owned()
        }
        ModelErrorKind::InvalidRequest => {
            format!("`selvedge models list --provider {name}` shows its models")
        }
        ModelErrorKind::Network if provider.is_local() => {
            format!("is the server running at {}?", provider.base_url)
        }
        ModelErrorKind::Network => format!("can this machine reach {}?", provider.base_url),
        _ => "try again, or ask another provider with --provider".to_owned(),
    };
    Problem::new(format!("{name}: {} ({})", error.message, error.kind)).hint(hint)
}

fn login(args: &ModelsLoginArgs) -> Result<Exit> {
    let config = configuration(&args.place)?.config;
    let provider = providers::find(&providers::all(&config)?, &args.provider)?;
    if provider.env_key.is_none() {
        let name = &provider.name;
        let hint = format!("[model_providers.{name}] env_key says that it does");
        return Err(Problem::new(format!("provider `{name}` wants no key"))
            .hint(hint)
            .into());
    }
    let key = read_key(&provider.name)?;
    crate::keyring::keep(&provider.name, &key)?;
    tell!("the key of {} is in the system's keyring", provider.name);
    Ok(Exit::Done)
}

fn logout(args: &ModelsLoginArgs) -> Result<Exit> {
    match crate::keyring::forget(&args.provider)? {
        true => tell!("the key is forgotten"),
        false => tell!("there was no key"),
    }
    Ok(Exit::Done)
}

/// One line of standard input; a terminal does not show it.
fn read_key(provider: &str) -> Result<String> {
    let input = std::io::stdin();
    let quiet = input.is_terminal().then(|| {
        talk(&format!("key of {provider}: "));
        Quiet::begin()
    });
    let mut text = String::new();
    input.lock().read_line(&mut text)?;
    drop(quiet);
    match text.trim() {
        "" => Err(Problem::new("no key was given")
            .hint(format!("selvedge models login {provider} < file"))
            .into()),
        key => Ok(key.to_owned()),
    }
}

/// A terminal that does not show what is typed, as long as this lives.
struct Quiet {
    #[cfg(unix)]
    before: Option<rustix::termios::Termios>,
}

#[cfg(unix)]
impl Quiet {
    fn begin() -> Self {
        use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
        let before = tcgetattr(std::io::stdin()).ok();
        if let Some(mut quiet) = before.clone() {
            quiet.local_modes.remove(LocalModes::ECHO);
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &quiet);
        }
        Self { before }
    }
}

#[cfg(unix)]
impl Drop for Quiet {
    fn drop(&mut self) {
        use rustix::termios::{OptionalActions, tcsetattr};
        if let Some(before) = &self.before {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
            talk("\n");
        }
    }
}

#[cfg(not(unix))]
impl Quiet {
    fn begin() -> Self {
        Self {}
    }
}
