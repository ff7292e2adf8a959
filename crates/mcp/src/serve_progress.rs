//! Progress notifications of `mcp serve`, for clients that send a progress token.

use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::RequestContext;
use selvedge_protocol::{EventSink, RuntimeEvent};
use selvedge_script::LiveRun;
use tokio::sync::broadcast;

/// Events buffered for a client that reads slowly; older ones are dropped.
const PROGRESS_BUFFER_EVENTS: usize = 64;

/// Sends the events of a run as progress notifications to a client that asked for them.
pub(crate) struct ProgressNotifier {
    events: Option<broadcast::Receiver<RuntimeEvent>>,
    token: Option<ProgressToken>,
    sent_count: f64,
}

impl ProgressNotifier {
    /// For a run that has not started yet; the sink has to be given to it.
    pub(crate) fn for_new_run(context: &RequestContext<RoleServer>) -> (Self, EventSink) {
        let token = context.meta.get_progress_token();
        if token.is_none() {
            return (Self::new(None, token), EventSink::default());
        }
        let (sender, events) = broadcast::channel(PROGRESS_BUFFER_EVENTS);
        let sink = EventSink::new(move |event| {
            // Fails after the request is over, when the receiver is dropped.
            let _ = sender.send(event);
        });
        (Self::new(Some(events), token), sink)
    }

    /// For a run that was started by an earlier request.
    pub(crate) fn for_live_run(run: &LiveRun, context: &RequestContext<RoleServer>) -> Self {
        let token = context.meta.get_progress_token();
        Self::new(token.is_some().then(|| run.subscribe()), token)
    }

    fn new(
        events: Option<broadcast::Receiver<RuntimeEvent>>,
        token: Option<ProgressToken>,
    ) -> Self {
        Self {
            events,
            token,
            sent_count: 0.0,
        }
    }

    /// Returns the next event. Never returns if the client did not ask for progress. Cancel safe.
    pub(crate) async fn next(&mut self) -> RuntimeEvent {
        while let Some(events) = &mut self.events {
            match events.recv().await {
                Ok(event) => return event,
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => self.events = None,
            }
        }
        std::future::pending().await
    }

    /// Sends the events that have happened already.
    pub(crate) async fn flush(&mut self, context: &RequestContext<RoleServer>) {
        while let Some(Ok(event)) = self.events.as_mut().map(broadcast::Receiver::try_recv) {
            self.notify(&event, context).await;
        }
    }

    pub(crate) async fn notify(
        &mut self,
        event: &RuntimeEvent,
        context: &RequestContext<RoleServer>,
    ) {
        let message = match event {
            RuntimeEvent::CallStarted {
                tool, args_summary, ..
            } => format!("{tool} {args_summary}").trim_end().to_owned(),
            RuntimeEvent::CallFinished { call, .. } => {
                format!("{} {}", call.tool, call.status.as_str())
            }
            RuntimeEvent::ScriptProgress { message, .. } => message.clone(),
            _ => return,
        };
        let Some(token) = &self.token else { return };
        self.sent_count += 1.0;
        let progress =
            ProgressNotificationParam::new(token.clone(), self.sent_count).with_message(message);
        // A client that is gone is noticed elsewhere.
        let _ = context.peer.notify_progress(progress).await;
    }
}
