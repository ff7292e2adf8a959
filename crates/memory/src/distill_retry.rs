//! Sends requests again that have no answer, because a person asked for it.

use std::sync::Arc;

use crate::distill::DistillReport;
use crate::distill_requests::{DistillRequest, RequestState};
use crate::distill_unit::DistillUnit;
use crate::model::SmallModel;
use crate::{Memory, MemoryError};

/// The result of one call of [`Memory::retry_distilling`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DistillRetryReport {
    /// Requests that were sent again and answered.
    pub answered: u32,
    /// Lessons that were new or learned again.
    pub learned: u32,
    /// Requests that still have no answer.
    pub unanswered: u32,
}

impl Memory {
    /// Sends the requests of a session's project again that have no answer, one after the other,
    /// and learns from the answers. Ends with the first request that fails. Those in a provider's
    /// batch are not sent: their answers are still awaited.
    ///
    /// Fails with [`MemoryError::DistillLocked`] while another process distills the project.
    pub async fn retry_distilling(
        self: &Arc<Self>,
        session: &str,
        model: &dyn SmallModel,
    ) -> Result<DistillRetryReport, MemoryError> {
        let (_lock, unit) = self.begin_distilling(session).await?;
        let open = self
            .with_unit(&unit, |memory, unit| memory.recorded_requests(unit))
            .await?;
        let ready = open.into_iter();
        let ready = ready.take_while(|request| request.state != RequestState::Sent);
        let learned = self.learn_from_requests(session, ready.collect()).await?;
        let unit = self.reload_unit(session).await?;
        let context = model.context_tokens();
        let compose = move |memory: &Arc<Self>, unit: &DistillUnit| {
            let requests = memory.requests_to_retry(unit)?;
            memory.compose_again(unit, requests, context)
        };
        let requests = self.with_unit(&unit, compose).await?;
        let mut report = DistillRetryReport {
            learned: learned.learned,
            unanswered: requests.len() as u32,
            ..DistillRetryReport::default()
        };
        for (text, request) in requests {
            let Some(learned) = self.retry_request(session, model, text, request).await? else {
                break;
            };
            report.learned += learned.learned;
            report.answered += 1;
            report.unanswered -= 1;
        }
        Ok(report)
    }

    async fn reload_unit(self: &Arc<Self>, session: &str) -> Result<Arc<DistillUnit>, MemoryError> {
        let name = session.to_owned();
        let load = move |memory: &Arc<Self>| {
            memory.read(|reader| DistillUnit::load(&reader.connection, &name))
        };
        Ok(Arc::new(self.run_blocking(load).await?))
    }

    /// Sends one request again. Returns what was learned; `None` if there is no answer.
    async fn retry_request(
        self: &Arc<Self>,
        session: &str,
        model: &dyn SmallModel,
        text: String,
        request: DistillRequest,
    ) -> Result<Option<DistillReport>, MemoryError> {
        let unit = self.reload_unit(session).await?;
        let (id, sent) = (request.id, request.clone());
        let record = move |memory: &Arc<Self>, _: &_| memory.record_attempt(&[sent]);
        self.with_unit(&unit, record).await?;
        if !self.is_recorded(&unit, id).await? {
            return Ok(Some(DistillReport::default()));
        }
        let answer = match text.is_empty() {
            true => None,
            false => model.ask_counted(&text).await.ok(),
        };
        let is_answered = answer.is_some();
        let record = move |memory: &Arc<Self>, unit: &_| {
            memory.record_answer(unit, id, answer.as_ref())?;
            let state = match answer {
                Some(answer) => RequestState::Answered(answer.text),
                None => RequestState::Failed,
            };
            Ok(DistillRequest { state, ..request })
        };
        let request = self.with_unit(&unit, record).await?;
        let learned = self
            .learn_from_requests(session, vec![request.clone()])
            .await?;
        if text.is_empty() {
            // All turns were forgotten: there is nothing to ask.
            let discard = move |memory: &Arc<Self>, _: &_| memory.discard_requests(&[request]);
            self.with_unit(&unit, discard).await?;
            return Ok(Some(learned));
        }
        Ok(is_answered.then_some(learned))
    }
}
