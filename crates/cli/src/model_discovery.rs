//! Decides whether a model server that was found on this machine is used. Any user of the machine
//! may have started it, so the user is asked once for each address.

use std::io::IsTerminal;
use std::path::Path;

use anyhow::Result;
use selvedge_config::{SavedModelServer, SavedRules};
use selvedge_models::DiscoveredServer;

use crate::ask::confirm;
use crate::problem::Problem;

/// Whether the user may be asked about a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiscoveryQuestion {
    /// If there is a terminal.
    Allowed,
    /// The command only reports what would be used.
    NotAllowed,
}

/// Returns whether the user accepted the server earlier. If another user's process listens at its
/// address now, it counts as another server.
pub(crate) fn is_accepted(server: &DiscoveredServer, rules: &SavedRules) -> bool {
    rules.allow_model_servers.contains(&saved_server(server))
}

/// Asks whether to use the server, and stores that the user accepts it. Fails if the user declines
/// or cannot be asked.
pub(crate) fn confirm_server(
    server: &DiscoveredServer,
    home: Option<&Path>,
    question: DiscoveryQuestion,
) -> Result<()> {
    let can_ask = question == DiscoveryQuestion::Allowed
        && std::io::stdin().is_terminal()
        && std::io::stderr().is_terminal();
    if !can_ask || !ask(server) {
        let provider = &server.provider;
        let message = format!(
            "a model server answers at {}, and its use is not confirmed",
            provider.base_url
        );
        let name = &provider.name;
        let hint =
            format!("pass --provider {name}, or set `model_provider = \"{name}\"` in config.toml");
        return Err(Problem::new(message).hint(hint).into());
    }
    let saved = home.map(|home| selvedge_config::save_model_server(home, &saved_server(server)));
    if let Some(Err(error)) = saved {
        eprint_line!("warning: the answer applies to this command only: {error}");
    }
    Ok(())
}

fn saved_server(server: &DiscoveredServer) -> SavedModelServer {
    SavedModelServer {
        base_url: server.provider.base_url.clone(),
        user: server.user,
    }
}

/// Asks on the terminal.
fn ask(server: &DiscoveredServer) -> bool {
    let question = format!(
        "? A model server answers at {} ({}, {}).\n  \
         It would read your messages and files, and its answers run as scripts.\n  \
         Use it from now on?\n",
        server.provider.base_url,
        server.provider.name,
        describe_user(server.user),
    );
    confirm(&question, "Use this model server", "Do not use it") == Some(true)
}

fn describe_user(user: Option<u32>) -> String {
    let own = rustix::process::getuid().as_raw();
    match user {
        None => "run by an unknown user".to_owned(),
        Some(user) if user == own => "run by you".to_owned(),
        Some(user) => format!("run by the user {user}, not by you"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_models::Provider;

    #[test]
    fn a_server_is_accepted_by_its_address_and_its_user() {
        let mut server = DiscoveredServer {
            provider: Provider::built_ins().remove(0),
            models: vec!["a".to_owned()],
            user: Some(1000),
        };
        let rules = SavedRules {
            allow_model_servers: vec![saved_server(&server)],
            ..SavedRules::default()
        };
        assert!(is_accepted(&server, &rules));
        server.user = Some(1001);
        assert!(!is_accepted(&server, &rules), "another user");
        server.user = None;
        assert!(!is_accepted(&server, &rules), "an unknown user");
        server.user = Some(1000);
        server.provider.base_url = "http://127.0.0.1:1/v1".to_owned();
        assert!(!is_accepted(&server, &rules), "another address");
    }
}
