//! Requests that servers send during a call: elicitation, sampling, and the approval of sampling.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_mcp::{
    ElicitationHandler, ElicitationRequest, ElicitationResponse, McpSamplingRequest,
    McpSamplingResponse, McpSamplingStopReason, SamplingHandler, ServerOrigin, ServerRequestError,
    ServerRequestHandlers, Servers,
};
use selvedge_protocol::{
    ApprovalPolicy, ApprovalRequest, ApprovalResponse, CallDecision, EventSink, McpSampling,
    PreviewContent, RuntimeEvent, ScriptToolCallOutput,
};
use selvedge_script::{Harness, RunOptions};
use selvedge_tools::{Approver, Orchestrator, Registry};
use serde_json::{Value, json};
use support::odd_with;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// A person who gives the same response to every form, after a delay.
struct FormPerson {
    response: Result<ElicitationResponse, ServerRequestError>,
    delay: Duration,
    requests: Mutex<Vec<ElicitationRequest>>,
}

fn person(response: ElicitationResponse) -> Arc<FormPerson> {
    Arc::new(FormPerson {
        response: Ok(response),
        delay: Duration::ZERO,
        requests: Mutex::default(),
    })
}

impl ElicitationHandler for FormPerson {
    fn elicit<'a>(
        &'a self,
        request: &'a ElicitationRequest,
    ) -> BoxFuture<'a, Result<ElicitationResponse, ServerRequestError>> {
        self.requests.lock().unwrap().push(request.clone());
        async { tokio::time::sleep(self.delay).await }
            .map(|()| self.response.clone())
            .boxed()
    }
}

/// A model that records its requests.
#[derive(Default)]
struct SamplingModel(Mutex<Vec<McpSamplingRequest>>);

impl SamplingHandler for SamplingModel {
    fn sample<'a>(
        &'a self,
        request: &'a McpSamplingRequest,
    ) -> BoxFuture<'a, Result<McpSamplingResponse, ServerRequestError>> {
        self.0.lock().unwrap().push(request.clone());
        let answer = McpSamplingResponse {
            text: "forty-two".into(),
            model: "mock".into(),
            stop_reason: McpSamplingStopReason::MaxTokens,
        };
        std::future::ready(Ok(answer)).boxed()
    }
}

/// Gives the same answer to every approval request, and records the requests.
struct ServerApprover(CallDecision, Mutex<Vec<ApprovalRequest>>);

impl Approver for ServerApprover {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalResponse> {
        self.1.lock().unwrap().push(request.clone());
        std::future::ready(ApprovalResponse::Decided(vec![self.0.clone()])).boxed()
    }
}

/// A server in the mode `asking`, and the handlers and options of a run that calls it.
struct Setup {
    handlers: ServerRequestHandlers,
    approver: Arc<ServerApprover>,
    policy: ApprovalPolicy,
    sampling: McpSampling,
    origin: ServerOrigin,
    tool_timeout: Duration,
    options: RunOptions,
    progress: Arc<Mutex<Vec<String>>>,
}

impl Setup {
    fn new(
        person: Option<Arc<dyn ElicitationHandler>>,
        model: Option<Arc<dyn SamplingHandler>>,
        answer: CallDecision,
    ) -> Self {
        let progress: Arc<Mutex<Vec<String>>> = Arc::default();
        let messages = progress.clone();
        let events = EventSink::new(move |event| {
            if let RuntimeEvent::ScriptProgress { message, .. } = event {
                messages.lock().unwrap().push(message);
            }
        });
        Self {
            handlers: ServerRequestHandlers {
                elicitation: person,
                sampling: model,
            },
            approver: Arc::new(ServerApprover(answer, Mutex::default())),
            policy: ApprovalPolicy::OnRequest,
            sampling: McpSampling::Prompt,
            origin: ServerOrigin::User,
            tool_timeout: Duration::from_secs(60),
            options: RunOptions {
                events,
                timeout: Some(Duration::from_secs(60)),
                ..RunOptions::default()
            },
            progress,
        }
    }

    async fn run(&self, script: &str) -> ScriptToolCallOutput {
        self.run_with_approver(
            script,
            self.approver.clone(),
            &crate::support::unused_state(),
        )
        .await
    }

    async fn run_with_approver(
        &self,
        script: &str,
        approver: Arc<dyn Approver>,
        state: &Path,
    ) -> ScriptToolCallOutput {
        let mut settings = odd_with("odd", "asking", state);
        settings.options.sampling = self.sampling;
        settings.origin = self.origin;
        settings.options.tool_timeout_sec = self.tool_timeout.as_secs_f64();
        let servers = Servers::new(vec![settings], self.handlers.clone(), None);
        servers.ensure_all_catalogues().await;
        let orchestrator = Orchestrator::new(servers.script_registry(&Registry::new()))
            .with_policy(self.policy)
            .with_approver(approver);
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

    fn progress(&self) -> String {
        self.progress.lock().unwrap().join("\n")
    }

    fn approval_requests(&self) -> Vec<ApprovalRequest> {
        self.approver.1.lock().unwrap().clone()
    }
}

#[tokio::test]
async fn a_form_names_its_server_and_run_and_only_valid_values_are_sent() {
    let ada = person(ElicitationResponse::Accepted(
        json!({"choice": "the blue one"}),
    ));
    let setup = Setup::new(Some(ada.clone()), None, CallDecision::Once);
    let got = setup.value("return await odd.ask()").await;
    assert_eq!(
        got,
        json!({"action": "accept", "content": {"choice": "the blue one"}})
    );
    let request = ada.requests.lock().unwrap()[0].clone();
    assert!(
        request.server == "odd"
            && request.scope_id.unwrap().starts_with("scr_")
            && request.request["message"] == "Which one?"
    );

    for invalid in [
        json!({}),
        json!({"choice": 3}),
        json!({"choice": "x", "key": "y"}),
        Value::Null,
    ] {
        let person = person(ElicitationResponse::Accepted(invalid));
        let setup = Setup::new(Some(person), None, CallDecision::Once);
        assert_eq!(
            setup.value("return await odd.ask()").await,
            json!({"action": "decline"})
        );
        assert!(
            setup
                .progress()
                .contains("MCP server odd: elicitation declined: invalid form values: ")
        );
    }
    for (response, action) in [
        (ElicitationResponse::Declined, "decline"),
        (ElicitationResponse::Cancelled, "cancel"),
    ] {
        let setup = Setup::new(Some(person(response)), None, CallDecision::Once);
        assert_eq!(
            setup.value("return await odd.ask()").await,
            json!({"action": action})
        );
    }
    // The result for a URL has no content.
    let setup = Setup::new(
        Some(person(ElicitationResponse::Accepted(Value::Null))),
        None,
        CallDecision::Once,
    );
    assert_eq!(
        setup.value("return await odd.visit()").await,
        json!({"action": "accept"})
    );
}

#[tokio::test]
async fn requests_without_a_handler_or_against_the_policy_are_declined_and_reported() {
    let setup = Setup::new(None, None, CallDecision::Once);
    let got = setup
        .value("return [await odd.ask(), await odd.think()]")
        .await;
    assert_eq!(got[0], json!({"action": "decline"}));
    assert_eq!(got[1]["message"], "declined: no model is available");
    let progress = setup.progress();
    assert!(
        progress.contains("MCP server odd: elicitation declined: no person can be asked"),
        "{progress}"
    );
    assert!(
        progress.contains("MCP server odd: sampling declined: no model is available"),
        "{progress}"
    );

    let ada = person(ElicitationResponse::Accepted(json!({"choice": "x"})));
    let model = Arc::new(SamplingModel::default());
    let mut setup = Setup::new(Some(ada.clone()), Some(model.clone()), CallDecision::Once);
    setup.policy = ApprovalPolicy::Never;
    let got = setup
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
        ada.requests.lock().unwrap().is_empty()
            && model.0.lock().unwrap().is_empty()
            && setup.approval_requests().is_empty()
    );
}

#[tokio::test]
async fn timeouts_are_paused_while_a_person_fills_in_a_form() {
    let slow = FormPerson {
        response: Ok(ElicitationResponse::Accepted(json!({"choice": "at last"}))),
        delay: Duration::from_millis(1500),
        requests: Mutex::default(),
    };
    let mut setup = Setup::new(Some(Arc::new(slow)), None, CallDecision::Once);
    // Both the tool timeout and the script's timeout are shorter than the person's delay.
    setup.tool_timeout = Duration::from_millis(700);
    setup.options.timeout = Some(Duration::from_millis(1000));
    assert_eq!(
        setup.value("return (await odd.ask()).content.choice").await,
        "at last"
    );
    // Without a form the tool timeout applies.
    let output = setup
        .run("return await odd.hang().catch(e => e.message)")
        .await;
    assert_eq!(
        output.value().unwrap(),
        "the MCP server `odd` did not answer within 0.7 s"
    );
}

/// A person who never answers, and notifies when a form is shown and when it is closed.
#[derive(Default)]
struct Undecided {
    shown: Notify,
    closed: Arc<Notify>,
}

impl ElicitationHandler for Undecided {
    fn elicit<'a>(
        &'a self,
        _: &'a ElicitationRequest,
    ) -> BoxFuture<'a, Result<ElicitationResponse, ServerRequestError>> {
        struct NotifyOnDrop(Arc<Notify>);
        impl Drop for NotifyOnDrop {
            fn drop(&mut self) {
                self.0.notify_one();
            }
        }
        async {
            let _closed = NotifyOnDrop(self.closed.clone());
            self.shown.notify_one();
            std::future::pending().await
        }
        .boxed()
    }
}

#[tokio::test]
async fn a_form_is_closed_when_its_call_is_cancelled() {
    let undecided = Arc::new(Undecided::default());
    let mut setup = Setup::new(Some(undecided.clone()), None, CallDecision::Once);
    let cancel = CancellationToken::new();
    setup.options.cancel = cancel.clone();
    let stop = async {
        undecided.shown.notified().await;
        cancel.cancel();
        undecided.closed.notified().await;
    };
    let (output, ()) = tokio::join!(setup.run("return await odd.ask()"), stop);
    assert!(output.error.unwrap().message.contains("cancelled"));
}

#[tokio::test]
async fn more_than_ten_requests_during_one_call_are_declined() {
    let setup = Setup::new(
        Some(person(ElicitationResponse::Accepted(json!({"sure": true})))),
        None,
        CallDecision::Once,
    );
    let got = setup.value("return await odd.nag()").await;
    assert_eq!(
        got,
        format!("{}{}", "accept ".repeat(10), "decline ".repeat(5)).trim_end()
    );
    let progress = setup.progress();
    assert!(
        progress.contains("too many requests during one call"),
        "{progress}"
    );
}

#[tokio::test]
async fn sampling_needs_approval_unless_the_configuration_decides() {
    let model = Arc::new(SamplingModel::default());
    let setup = Setup::new(None, Some(model.clone()), CallDecision::SimilarCalls);
    let got = setup
        .value("return [await odd.think(), await odd.think()]")
        .await;
    assert_eq!(
        (&got[0]["content"]["text"], &got[0]["stopReason"]),
        (&json!("forty-two"), &json!("maxTokens"))
    );
    assert_eq!(got[0], got[1]);
    // One approval for the whole script.
    let [approval] = &setup.approval_requests()[..] else {
        panic!()
    };
    let call = &approval.calls[0];
    assert_eq!(call.tool, "mcp.odd");
    assert_eq!(
        call.reason,
        "the server odd asks your model: 16 characters, for an answer of at most 10 tokens"
    );
    assert_eq!(
        call.preview.view,
        Some(PreviewContent::Text("user: six times seven?".into()))
    );
    let requests = model.0.lock().unwrap().clone();
    let first = &requests[0];
    assert_eq!(
        (
            requests.len(),
            first.max_tokens,
            first.system_prompt.as_str()
        ),
        (2, 10, "")
    );
    assert_eq!(approval.scope_id.as_deref(), Some(first.scope_id.as_str()));

    let answer = CallDecision::Deny(Some("too expensive".into()));
    let setup = Setup::new(None, Some(model.clone()), answer);
    assert_eq!(
        setup.value("return (await odd.think()).message").await,
        "declined: too expensive"
    );
    let mut setup = Setup::new(None, Some(model.clone()), CallDecision::Deny(None));
    setup.sampling = McpSampling::Approve;
    assert_eq!(
        setup.value("return (await odd.think()).model").await,
        "mock"
    );
    assert!(
        setup.approval_requests().is_empty(),
        "the configuration approves sampling"
    );
    // Files of a project cannot approve the requests of their own server.
    setup.origin = ServerOrigin::Project;
    setup.policy = ApprovalPolicy::OnFailure;
    let declined = setup.value("return (await odd.think()).message").await;
    assert!(declined.to_string().contains("declined"), "{declined}");
    setup.sampling = McpSampling::Never;
    assert!(
        setup
            .value("return (await odd.think()).message")
            .await
            .to_string()
            .contains("no model is available")
    );
    assert_eq!(model.0.lock().unwrap().len(), 3);
}

/// An approver that creates a file when it is asked, and never answers.
struct SilentApprover(PathBuf);

impl Approver for SilentApprover {
    fn ask<'a>(&'a self, _: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalResponse> {
        std::fs::write(&self.0, "").unwrap();
        std::future::pending().boxed()
    }
}

#[tokio::test]
async fn the_timeout_continues_after_a_server_cancels_its_request() {
    let dir = tempfile::tempdir().unwrap();
    let asked = dir.path().join("asked");
    let model = Arc::new(SamplingModel::default());
    let mut setup = Setup::new(None, Some(model.clone()), CallDecision::Once);
    setup.tool_timeout = Duration::from_millis(700);
    // The server cancels its request when the file exists, and sends nothing after that.
    let output = setup
        .run_with_approver(
            "return await odd.fickle()",
            Arc::new(SilentApprover(asked.clone())),
            &asked,
        )
        .await;
    assert_eq!(output.error.unwrap().code.to_string(), "ToolTimeoutError");
    assert!(asked.exists() && model.0.lock().unwrap().is_empty());
}
