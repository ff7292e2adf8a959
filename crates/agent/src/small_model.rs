//! A small model for memory's errands: a prompt in, a text out.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_memory::SmallModel;
use selvedge_models::{Client, Model, Prompt};
use selvedge_protocol::{Item, Role};

/// Asks a model without tools or history.
#[derive(Debug, Clone)]
pub struct Small {
    client: Client,
    model: Model,
}

impl Small {
    /// Asks this model.
    pub fn new(client: Client, model: Model) -> Self {
        Self { client, model }
    }
}

impl SmallModel for Small {
    fn ask<'a>(&'a self, prompt: &'a str) -> BoxFuture<'a, Result<String, String>> {
        async move {
            let prompt = Prompt { history: vec![Item::message(Role::User, prompt)], ..Prompt::default() };
            let answered = crate::agents::answer(&self.client, &prompt, &self.model).await;
            answered.map(|(text, _)| text).map_err(|error| error.message)
        }
        .boxed()
    }
}
