//! Configures web access from the configuration, the environment and the saved rules.

use std::time::Duration;

use selvedge_config::{Config, SavedRules};
use selvedge_protocol::SandboxPolicy;
use selvedge_toolbox::{SearchService, WebAccess, WebService, WebSettings};

use crate::rule_store::RuleStore;

pub(crate) fn configure_web(config: &Config, saved: &SavedRules, rules: RuleStore) -> WebAccess {
    let keys = &config.web;
    let service = |env_key: &str, base_url: &str| {
        let key = std::env::var(env_key)
            .ok()
            .filter(|key| !key.trim().is_empty())?;
        Some(WebService {
            base_url: base_url.to_owned(),
            api_key: key,
        })
    };
    let searxng = keys
        .searxng_url
        .clone()
        .map(|base_url| SearchService::Searxng { base_url });
    let perplexity =
        || service(&keys.perplexity_env_key, &keys.perplexity_url).map(SearchService::Perplexity);
    WebAccess::new(WebSettings {
        network_enabled: config.sandbox_mode == SandboxPolicy::DangerFullAccess
            || config.sandbox_workspace_write.network_access,
        search: searxng.or_else(perplexity),
        firecrawl: service(&keys.firecrawl_env_key, &keys.firecrawl_url),
        allow_hosts: [keys.allow_hosts.clone(), saved.allow_hosts.clone()].concat(),
        allow_private_hosts: keys.allow_private_hosts.clone(),
        save_host: Some(Box::new(move |host, scope| {
            rules.save(scope, |home, folder| {
                selvedge_config::save_host(home, folder, host)
            });
        })),
        timeout: Duration::from_millis(keys.timeout_ms),
        max_body_bytes: usize::try_from(keys.max_mb.saturating_mul(1 << 20)).unwrap_or(usize::MAX),
        resolver: None,
    })
}
