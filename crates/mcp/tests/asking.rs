//! What servers ask for on the way of a call: forms for a person, answers of a model, and who is asked before.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_mcp::{
    AskError, AskModel, AskPerson, Asked, Elicitation, Elicited, Sampled, SampledEnd, Sampling,
    Servers,
};
use selvedge_protocol::{
    Answer, ApprovalDecision, ApprovalPolicy, ApprovalRequest, Event, EventSink, McpSampling,
    ScriptToolCallOutput, View,
};
use selvedge_script::{Harness, RunOptions};
use selvedge_tools::{Approver, Orchestrator, Registry};
use serde_json::{Value, json};
use support::odd_with;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// A person who makes this of every form, once they have looked at it for so long.
struct Person {
    makes: Result<Elicited, AskError>,
    after: Duration,
    seen: Mutex<Vec<Elicitation>>,
}

fn person(makes: Elicited) -> Arc<Person> {
    Arc::new(Person {
        makes: Ok(makes),
        after: Duration::ZERO,
        seen: Mutex::default(),
    })
}

impl AskPerson for Person {
    fn elicit<'a>(&'a self, wanted: &'a Elicitation) -> BoxFuture<'a, Result<Elicited, AskError>> {
        self.seen.lock().unwrap().push(wanted.clone());
        async { tokio::time::sleep(self.after).await }
            .map(|()| self.makes.clone())
            .boxed()
    }
}

/// A model that says how much it was asked.
#[derive(Default)]
struct Model(Mutex<Vec<Sampling>>);

impl AskModel for Model {
    fn sample<'a>(&'a self, asked: &'a Sampling) -> BoxFuture<'a, Result<Sampled, AskError>> {
        self.0.lock().unwrap().push(asked.clone());
        let answer = Sampled {
            text: "forty-two".into(),
            model: "mock".into(),
            end: SampledEnd::Cut,
        };
        std::future::ready(Ok(answer)).boxed()
    }
}

/// Answers every question of the gate with the same, and remembers what was asked.
struct Gate(Answer, Mutex<Vec<ApprovalRequest>>);

impl Approver for Gate {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalDecision> {
        self.1.lock().unwrap().push(request.clone());
        std::future::ready(ApprovalDecision::Answered(vec![self.0.clone()])).boxed()
    }
}

struct Scene {
    asked: Asked,
    gate: Arc<Gate>,
    policy: ApprovalPolicy,
    sampling: McpSampling,
    tool_timeout: Duration,
    options: RunOptions,
    told: Arc<Mutex<Vec<String>>>,
}

impl Scene {
    fn new(
        person: Option<Arc<dyn AskPerson>>,
        model: Option<Arc<dyn AskModel>>,
        answer: Answer,
    ) -> Self {
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let heard = told.clone();
        let events = EventSink::new(move |event| {
            if let Event::Progress { message, .. } = event {
                heard.lock().unwrap().push(message);
            }
        });
        Self {
            asked: Asked { person, model },
            gate: Arc::new(Gate(answer, Mutex::default())),
            policy: ApprovalPolicy::OnRequest,
            sampling: McpSampling::Prompt,
            tool_timeout: Duration::from_secs(60),
            options: RunOptions {
                events,
                timeout: Some(Duration::from_secs(60)),
                ..RunOptions::default()
            },
            told,
        }
    }

    async fn run(&self, script: &str) -> ScriptToolCallOutput {
        self.run_before(script, self.gate.clone(), Path::new("/nonexistent"))
            .await
    }

    async fn run_before(
        &self,
        script: &str,
        gate: Arc<dyn Approver>,
        state: &Path,
    ) -> ScriptToolCallOutput {
        let mut settings = odd_with("odd", "asking", state);
        settings.options.sampling = self.sampling;
        settings.options.tool_timeout_sec = self.tool_timeout.as_secs_f64();
        let servers = Servers::new(vec![settings], self.asked.clone(), None);
        servers.prepare_all().await;
        let orchestrator = Orchestrator::new(servers.onto(&Registry::new()))
            .with_policy(self.policy)
            .with_approver(gate);
        let output = Harness::new(orchestrator)
            .unwrap()
            .run_with(script.as_bytes(), self.options.clone())
            .await;
        servers.stop().await;
        output
    }

    async fn value(&self, script: &str) -> Value {
        let output = self.run(script).await;
        assert!(output.error.is_none(), "{:?}", output.error);
        output.value().unwrap()
    }

    fn told(&self) -> String {
        self.told.lock().unwrap().join("\n")
    }

    fn questions(&self) -> Vec<ApprovalRequest> {
        self.gate.1.lock().unwrap().clone()
    }
}

#[tokio::test]
async fn a_form_says_whose_it_is_and_only_what_fits_is_sent() {
    let ada = person(Elicited::Accepted(json!({"choice": "the blue one"})));
    let scene = Scene::new(Some(ada.clone()), None, Answer::Once);
    let got = scene.value("return await odd.ask()").await;
    assert_eq!(
        got,
        json!({"action": "accept", "content": {"choice": "the blue one"}})
    );
    let seen = ada.seen.lock().unwrap()[0].clone();
    assert!(
        seen.server == "odd"
            && seen.run.unwrap().starts_with("scr_")
            && seen.request["message"] == "Which one?"
    );

    for unfit in [
        json!({}),
        json!({"choice": 3}),
        json!({"choice": "x", "key": "y"}),
        Value::Null,
    ] {
        let scene = Scene::new(Some(person(Elicited::Accepted(unfit))), None, Answer::Once);
        assert_eq!(
            scene.value("return await odd.ask()").await,
            json!({"action": "decline"})
        );
        assert!(scene.told().contains(
            "odd asked a person something and was declined: what was filled in does not fit"
        ));
    }
    for (makes, action) in [
        (Elicited::Declined, "decline"),
        (Elicited::Cancelled, "cancel"),
    ] {
        let scene = Scene::new(Some(person(makes)), None, Answer::Once);
        assert_eq!(
            scene.value("return await odd.ask()").await,
            json!({"action": action})
        );
    }
    // An answer to an address has no content.
    let scene = Scene::new(
        Some(person(Elicited::Accepted(Value::Null))),
        None,
        Answer::Once,
    );
    assert_eq!(
        scene.value("return await odd.visit()").await,
        json!({"action": "accept"})
    );
}

#[tokio::test]
async fn where_nobody_is_asked_it_is_declined_and_said() {
    let scene = Scene::new(None, None, Answer::Once);
    let got = scene
        .value("return [await odd.ask(), await odd.think()]")
        .await;
    assert_eq!(got[0], json!({"action": "decline"}));
    assert_eq!(got[1]["message"], "declined: there is no model to ask here");
    let told = scene.told();
    assert!(
        told.contains(
            "odd asked a person something and was declined: there is no terminal to ask at"
        ),
        "{told}"
    );
    assert!(
        told.contains(
            "odd asked your model something and was declined: there is no model to ask here"
        ),
        "{told}"
    );

    let ada = person(Elicited::Accepted(json!({"choice": "x"})));
    let model = Arc::new(Model::default());
    let mut scene = Scene::new(Some(ada.clone()), Some(model.clone()), Answer::Once);
    scene.policy = ApprovalPolicy::Never;
    let got = scene
        .value("return [await odd.ask(), await odd.think()]")
        .await;
    assert!(
        got[1]["message"]
            .as_str()
            .unwrap()
            .contains("the approval policy is `never`"),
        "{got}"
    );
    assert_eq!(got[0], json!({"action": "decline"}));
    assert!(
        ada.seen.lock().unwrap().is_empty()
            && model.0.lock().unwrap().is_empty()
            && scene.questions().is_empty()
    );
}

#[tokio::test]
async fn time_does_not_run_while_a_person_looks_at_a_form() {
    let slow = Person {
        makes: Ok(Elicited::Accepted(json!({"choice": "at last"}))),
        after: Duration::from_millis(1500),
        seen: Mutex::default(),
    };
    let mut scene = Scene::new(Some(Arc::new(slow)), None, Answer::Once);
    // Both the server's time and the script's are over before the person answers.
    scene.tool_timeout = Duration::from_millis(700);
    scene.options.timeout = Some(Duration::from_millis(1000));
    assert_eq!(
        scene.value("return (await odd.ask()).content.choice").await,
        "at last"
    );
    // Without a question both are as short as they were.
    let output = scene
        .run("return await odd.hang().catch(e => e.message)")
        .await;
    assert_eq!(
        output.value().unwrap(),
        "the MCP server `odd` did not answer within 0.7 s"
    );
}

/// A person who never answers, and tells when the form came and went.
#[derive(Default)]
struct Undecided {
    came: Notify,
    went: Arc<Notify>,
}

impl AskPerson for Undecided {
    fn elicit<'a>(&'a self, _: &'a Elicitation) -> BoxFuture<'a, Result<Elicited, AskError>> {
        struct Went(Arc<Notify>);
        impl Drop for Went {
            fn drop(&mut self) {
                self.0.notify_one();
            }
        }
        async {
            let _went = Went(self.went.clone());
            self.came.notify_one();
            std::future::pending().await
        }
        .boxed()
    }
}

#[tokio::test]
async fn a_form_goes_with_the_call_it_belongs_to() {
    let undecided = Arc::new(Undecided::default());
    let mut scene = Scene::new(Some(undecided.clone()), None, Answer::Once);
    let cancel = CancellationToken::new();
    scene.options.cancel = cancel.clone();
    let stop = async {
        undecided.came.notified().await;
        cancel.cancel();
        undecided.went.notified().await;
    };
    let (output, ()) = tokio::join!(scene.run("return await odd.ask()"), stop);
    assert!(output.error.unwrap().message.contains("cancelled"));
}

#[tokio::test]
async fn a_server_that_asks_again_and_again_is_declined() {
    let scene = Scene::new(
        Some(person(Elicited::Accepted(json!({"sure": true})))),
        None,
        Answer::Once,
    );
    let got = scene.value("return await odd.nag()").await;
    assert_eq!(
        got,
        format!("{}{}", "accept ".repeat(10), "decline ".repeat(5)).trim_end()
    );
    assert!(
        scene
            .told()
            .contains("it has asked too often on the way of one call"),
        "{}",
        scene.told()
    );
}

#[tokio::test]
async fn the_model_is_asked_where_the_gate_agrees() {
    let model = Arc::new(Model::default());
    let scene = Scene::new(None, Some(model.clone()), Answer::ThisScript);
    let got = scene
        .value("return [await odd.think(), await odd.think()]")
        .await;
    assert_eq!(
        (&got[0]["content"]["text"], &got[0]["stopReason"]),
        (&json!("forty-two"), &json!("maxTokens"))
    );
    assert_eq!(got[0], got[1]);
    // Asked once for the whole script.
    let [question] = &scene.questions()[..] else {
        panic!()
    };
    let call = &question.calls[0];
    assert_eq!(call.tool, "mcp.odd");
    assert_eq!(
        call.reason,
        "the server odd asks your model: 16 characters, for an answer of at most 10 tokens"
    );
    assert_eq!(
        call.preview.view,
        Some(View::Commands("user: six times seven?".into()))
    );
    let asked = model.0.lock().unwrap().clone();
    assert_eq!(
        (asked.len(), asked[0].max_tokens, asked[0].system.as_str()),
        (2, 10, "")
    );
    assert_eq!(question.script_id.as_deref(), Some(asked[0].run.as_str()));

    let scene = Scene::new(
        None,
        Some(model.clone()),
        Answer::No(Some("too dear".into())),
    );
    assert_eq!(
        scene.value("return (await odd.think()).message").await,
        "declined: too dear"
    );
    let mut scene = Scene::new(None, Some(model.clone()), Answer::No(None));
    scene.sampling = McpSampling::Approve;
    assert_eq!(
        scene.value("return (await odd.think()).model").await,
        "mock"
    );
    assert!(scene.questions().is_empty(), "the user had agreed before");
    scene.sampling = McpSampling::Never;
    assert!(
        scene
            .value("return (await odd.think()).message")
            .await
            .to_string()
            .contains("no model to ask")
    );
    assert_eq!(model.0.lock().unwrap().len(), 3);
}

/// A person who looks at a question, says so in a file, and never answers.
struct Looking(PathBuf);

impl Approver for Looking {
    fn ask<'a>(&'a self, _: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalDecision> {
        std::fs::write(&self.0, "").unwrap();
        std::future::pending().boxed()
    }
}

#[tokio::test]
async fn what_a_server_takes_back_is_asked_no_longer_and_time_runs_again() {
    let dir = tempfile::tempdir().unwrap();
    let looked = dir.path().join("looked");
    let model = Arc::new(Model::default());
    let mut scene = Scene::new(None, Some(model.clone()), Answer::Once);
    scene.options.timeout = Some(Duration::from_secs(2));
    // The server thinks better of its question, and is silent from then on.
    let output = scene
        .run_before(
            "return await odd.fickle()",
            Arc::new(Looking(looked.clone())),
            &looked,
        )
        .await;
    assert_eq!(output.error.unwrap().code.to_string(), "ScriptTimeoutError");
    assert!(looked.exists() && model.0.lock().unwrap().is_empty());
}
