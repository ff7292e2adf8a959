//! Finds the models that scripts name when they launch agents or ask questions: `model`, or
//! `provider/model` for a provider of the configuration.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use selvedge_agent::AgentModel;
use selvedge_config::{Config, ProviderOrigin};
use selvedge_models::{ModelClient, Provider};
use selvedge_protocol::ToolSpec;
use selvedge_tools::ToolError;

use crate::args::ScriptLimitArgs;
use crate::problem::Problem;
use crate::providers::{self, ModelChoice};
use crate::setup::CliSetup;
use crate::tool_packs::resolve_pack;

/// The models that the scripts of an agent can use.
pub(crate) struct ScriptModels {
    config: Config,
    script_limits: ScriptLimitArgs,
    /// The name of the agent's own model.
    own_model: String,
    /// Clients of other providers, by name.
    clients: Mutex<HashMap<String, ModelClient>>,
}

impl ScriptModels {
    /// Returns the models for an agent with this choice.
    pub(crate) fn new(config: &Config, args: &ScriptLimitArgs, choice: &ModelChoice) -> Self {
        Self {
            config: config.clone(),
            script_limits: args.clone(),
            own_model: choice.model.name.clone(),
            clients: Mutex::default(),
        }
    }

    /// Finds a model by the name that a script wrote. `own` is the client of the agent's provider.
    pub(crate) fn find(&self, own: &ModelClient, name: &str) -> Result<AgentModel, ToolError> {
        self.find_model(own, name).map_err(|error| {
            let problem = Problem::from_error(&error);
            let hints = problem.hints().iter().cloned();
            hints.fold(ToolError::new(problem.to_string()), ToolError::suggest)
        })
    }

    fn find_model(&self, own: &ModelClient, name: &str) -> anyhow::Result<AgentModel> {
        let all = providers::all_providers(&self.config)?;
        let (client, name) = match self.split_provider(&all, name) {
            Some((provider, name)) => (self.client(own, &all, provider)?, name),
            None => (own.clone(), name),
        };
        let provider = client.provider();
        let model = providers::model_properties(&self.config, provider, name);
        client.start_window_query(&model);
        let limits = provider.script_limits.with(&model.script_limits);
        let limits = CliSetup::limits_of_model(&self.config, &limits, &self.script_limits);
        let pack = model.tool_pack.as_ref().or(provider.tool_pack.as_ref());
        let pack = pack.map(|name| resolve_pack(&self.config, name));
        let filter = pack.transpose()?.map(|pack| {
            Arc::new(move |spec: &ToolSpec| pack.contains(spec))
                as Arc<dyn Fn(&ToolSpec) -> bool + Send + Sync>
        });
        Ok(AgentModel {
            limits: Some(limits),
            tool_filter: filter,
            ..AgentModel::new(client, model)
        })
    }

    /// Splits `provider/model`. If the agent's own model has a name with a slash, as those of
    /// OpenRouter have, `openai/…` and `anthropic/…` are also models of its provider.
    fn split_provider<'n>(&self, all: &[Provider], name: &'n str) -> Option<(&'n str, &'n str)> {
        let (provider, model) = name.split_once('/')?;
        let is_vendor = self.own_model.contains('/') && ["openai", "anthropic"].contains(&provider);
        let is_known = all.iter().any(|known| known.name == provider);
        (is_known && !is_vendor).then_some((provider, model))
    }

    /// Returns the client of a provider. Only the agent's own provider and those with a section in
    /// the user's configuration can be used, because a script that a model wrote names them.
    fn client(
        &self,
        own: &ModelClient,
        all: &[Provider],
        name: &str,
    ) -> anyhow::Result<ModelClient> {
        if own.provider().name == name {
            return Ok(own.clone());
        }
        let section = self.config.model_providers.get(name);
        let section = section.filter(|section| section.origin == ProviderOrigin::User);
        let Some(section) = section else {
            let message = format!("scripts may not use the provider `{name}`");
            let hint = format!("add the line `[model_providers.{name}]` to your own config.toml");
            return Err(Problem::new(message).hint(hint).into());
        };
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(name) {
            return Ok(client.clone());
        }
        let mut provider = providers::load_key(providers::find_provider(all, name)?)?;
        if provider.is_local() && section.base_url.is_none() {
            provider = self.accepted_server(provider)?;
        }
        let client = ModelClient::new(provider).map_err(|error| Problem::new(error.to_string()))?;
        clients.insert(name.to_owned(), client.clone());
        Ok(client)
    }

    /// Returns the provider of a server on this machine whose address is not configured, if the
    /// user accepted it earlier. It is used only while a process of the same user listens there.
    fn accepted_server(&self, provider: Provider) -> anyhow::Result<Provider> {
        if self.config.model_provider.as_ref() == Some(&provider.name) {
            return Ok(provider);
        }
        let rules = crate::setup::saved_rules(selvedge_config::home().as_deref())?;
        let mut accepted = rules.allow_model_servers.iter();
        let accepted = accepted.find(|server| server.base_url == provider.base_url);
        // Without its user, another process at the address would look the same.
        match accepted.and_then(|server| server.user) {
            Some(user) => Ok(Provider {
                accepted_user: Some(user),
                ..provider
            }),
            None => {
                let Provider { name, base_url, .. } = provider;
                let message = format!(
                    "scripts may not use the model server at {base_url}, which is not confirmed"
                );
                let hint = format!("set `base_url` under [model_providers.{name}] in config.toml");
                Err(Problem::new(message).hint(hint).into())
            }
        }
    }
}
