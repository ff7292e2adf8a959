//! Claims of sessions: at any time one process may write to a session. A claim has a fencing
//! number. Each write of the owner carries it and fails if another process has claimed the session
//! since, in the same transaction. A process that was stopped can therefore not write to a session
//! that was taken over, also not after it has claimed and lost the session several times.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use selvedge_database::{Connection, params};
use selvedge_protocol::{AuthorKind, MessageAuthor};

use crate::connection::{execute, query_first};
use crate::{Journal, JournalError};

/// The SQL of a session and of all sessions of agents that it launched, directly or not. `?1` is
/// the session.
const SESSION_AND_CHILDREN: &str = "WITH RECURSIVE affected(id) AS (
        SELECT id FROM sessions WHERE id = ?1
        UNION SELECT sessions.id FROM sessions JOIN affected ON sessions.parent = affected.id)";

/// The fencing number of the process that begins a session.
pub(crate) const FIRST_FENCE: i64 = 1;

/// How many released claims are kept. Writes that are later than so many other releases are not
/// expected.
const MAX_RELEASED_CLAIMS: usize = 4096;

/// The claim of a session by this process, as each of its writes carries it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionClaim {
    session: String,
    fence: i64,
}

/// The claims of this process by session. A claim that was lost or released stays until the session
/// is claimed again, so that late writes are refused if another process has claimed it. Of those
/// that were released, only the last [`MAX_RELEASED_CLAIMS`] are kept.
#[derive(Debug, Default)]
pub(crate) struct SessionClaims(Mutex<KnownClaims>);

#[derive(Debug, Default)]
struct KnownClaims {
    by_session: HashMap<String, KnownClaim>,
    /// Claims in the order in which they were released. They may have been made again since.
    released: VecDeque<SessionClaim>,
}

#[derive(Debug, Clone, Copy)]
struct KnownClaim {
    fence: i64,
    is_released: bool,
}

impl SessionClaims {
    fn lock(&self) -> MutexGuard<'_, KnownClaims> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, session: &str, fence: i64) {
        let claim = KnownClaim {
            fence,
            is_released: false,
        };
        self.lock().by_session.insert(session.to_owned(), claim);
    }

    fn get(&self, session: &str) -> Option<SessionClaim> {
        self.lock()
            .by_session
            .get(session)
            .map(|claim| SessionClaim {
                session: session.to_owned(),
                fence: claim.fence,
            })
    }

    fn is_released(&self, session: &str) -> bool {
        let claims = self.lock();
        let claim = claims.by_session.get(session);
        claim.is_some_and(|claim| claim.is_released)
    }

    fn set_released(&self, released: &SessionClaim) {
        let mut claims = self.lock();
        let KnownClaims {
            by_session,
            released: order,
        } = &mut *claims;
        match by_session.get_mut(&released.session) {
            Some(claim) if claim.fence == released.fence && !claim.is_released => {
                claim.is_released = true;
            }
            _ => return,
        }
        order.push_back(released.clone());
        if order.len() > MAX_RELEASED_CLAIMS
            && let Some(oldest) = order.pop_front()
            && (by_session.get(&oldest.session))
                .is_some_and(|claim| claim.is_released && claim.fence == oldest.fence)
        {
            by_session.remove(&oldest.session);
        }
    }

    /// Removes the claims of sessions that were deleted.
    pub(crate) fn remove_all(&self, sessions: &BTreeSet<String>) {
        let mut claims = self.lock();
        for session in sessions {
            claims.by_session.remove(session);
        }
        claims
            .released
            .retain(|claim| !sessions.contains(&claim.session));
    }
}

impl Journal {
    /// Claims a session for this process. Fails if another running process has claimed it. If a
    /// process that no longer runs had claimed it, this takes over its messages and ends its runs.
    pub fn claim_session(&self, id: &str) -> Result<(), JournalError> {
        let fence = self.write(|connection| {
            let (owner, fence) = session_owner(connection, id)?;
            if owner.as_ref() == Some(&self.owner.id) {
                return Ok(fence);
            }
            if let Some(other) = &owner
                && !self.may_replace_owner(connection, other)?
            {
                return Err(JournalError::SessionInUse(id.to_owned()));
            }
            // The number tells whether another process was faster.
            let sql = "UPDATE sessions SET owner = ?2, fence = fence + 1
                WHERE id = ?1 AND fence = ?3";
            let mut update = connection.prepare_cached(sql)?;
            if update.execute(params![id, self.owner.id, fence])? == 0 {
                return Err(JournalError::SessionInUse(id.to_owned()));
            }
            if let Some(other) = &owner {
                self.take_over(connection, id, other)?;
            }
            Ok(fence + 1)
        })?;
        self.claims.insert(id, fence);
        Ok(())
    }

    /// Makes what the former owner of a session had claimed for it count no more, also if that
    /// process continues later: its runs, the sessions of its agents and its messages.
    fn take_over(
        &self,
        connection: &Connection,
        session: &str,
        other: &str,
    ) -> Result<(), JournalError> {
        let runs = "SELECT id FROM runs WHERE owner = ?2 AND ended_ms IS NULL
            AND session IN (SELECT id FROM affected)";
        for sql in [
            format!(
                "{SESSION_AND_CHILDREN} UPDATE suspensions SET claimed_by = NULL
                 WHERE claimed_by = ?2 AND run IN ({runs})"
            ),
            format!(
                "{SESSION_AND_CHILDREN} UPDATE runs SET owner = ''
                 WHERE owner = ?2 AND ended_ms IS NULL AND session IN (SELECT id FROM affected)"
            ),
            format!(
                "{SESSION_AND_CHILDREN} UPDATE sessions SET owner = NULL, fence = fence + 1
                 WHERE owner = ?2 AND id IN (SELECT id FROM affected)"
            ),
        ] {
            execute(connection, &sql, params![session, other])?;
        }
        let sql = "UPDATE inbox SET owner = ?2
            WHERE session = ?1 AND state = 'claimed' AND ended_ms IS NULL";
        execute(connection, sql, params![session, self.owner.id])?;
        let sql = "DELETE FROM session_waits WHERE waiter = ?1 AND owner = ?2";
        execute(connection, sql, params![session, other])
    }

    /// Releases a session of this process.
    pub async fn release_session(&self, id: &str) -> Result<(), JournalError> {
        let Some(claim) = self.claim_of(id).filter(|_| !self.claims.is_released(id)) else {
            return Ok(());
        };
        self.write_async(move |journal, connection| journal.release_in(connection, &claim))
            .await
    }

    /// Releases a session in a transaction, unless another process has claimed it.
    pub(crate) fn release_in(
        &self,
        connection: &Connection,
        claim: &SessionClaim,
    ) -> Result<(), JournalError> {
        let sql = "UPDATE sessions SET owner = NULL
            WHERE id = ?1 AND owner = ?2 AND fence = ?3";
        let mut release = connection.prepare_cached(sql)?;
        if release.execute(params![claim.session, self.owner.id, claim.fence])? > 0 {
            self.claims.set_released(claim);
        }
        Ok(())
    }

    /// Returns the fencing number of this process's last claim on a session, also if it was
    /// released; `None` if it never claimed it. Each claim by a process that does not own the
    /// session adds 1, and so does deleting a part of the session.
    pub fn claim_number(&self, session: &str) -> Option<i64> {
        Some(self.claim_of(session)?.fence)
    }

    /// Returns the last claim of this process on a session, also if it was released; `None` if it
    /// never claimed it. To be read when a write is requested, not when it is executed.
    pub(crate) fn claim_of(&self, session: &str) -> Option<SessionClaim> {
        self.claims.get(session)
    }

    /// Returns the claim of this process on the session that sends or posts; `None` for other
    /// authors.
    pub(crate) fn claim_of_author(&self, author: &MessageAuthor) -> Option<SessionClaim> {
        match author.kind {
            AuthorKind::Session => self.claim_of(&author.id),
            _ => None,
        }
    }

    /// Must precede every write of the owner of a session in its transaction. Fails with
    /// [`JournalError::TakenOver`] if another process has claimed the session since. No process can
    /// claim it until the transaction ends.
    pub(crate) fn check_claim(
        &self,
        connection: &Connection,
        claim: Option<&SessionClaim>,
    ) -> Result<(), JournalError> {
        let Some(claim) = claim else {
            return Ok(());
        };
        let lock = connection.row_lock();
        let sql = format!("SELECT fence FROM sessions WHERE id = ?1{lock}");
        let fence: Option<i64> = query_first(connection, &sql, params![claim.session])?;
        match fence {
            Some(fence) if fence != claim.fence => {
                Err(JournalError::TakenOver(claim.session.clone()))
            }
            // Without a row, the session was deleted.
            _ => Ok(()),
        }
    }

    /// Returns those of some sessions that this process had claimed and another one took over.
    pub(crate) async fn sessions_taken_over(
        &self,
        sessions: Vec<String>,
    ) -> Result<Vec<String>, JournalError> {
        let claims = sessions.iter().filter_map(|id| self.claim_of(id));
        let claims: Vec<SessionClaim> = claims.collect();
        let read = move |journal: &Self, connection: &Connection| {
            let mut lost = Vec::new();
            for claim in &claims {
                match journal.check_claim(connection, Some(claim)) {
                    Err(JournalError::TakenOver(session)) => lost.push(session),
                    checked => checked?,
                }
            }
            Ok(lost)
        };
        self.run_now_or_queue(read).await
    }

    /// Fails if there is no such session or another running process has claimed it.
    pub(crate) fn check_session_free(
        &self,
        connection: &Connection,
        id: &str,
    ) -> Result<(), JournalError> {
        match session_owner(connection, id)?.0 {
            Some(other)
                if other != self.owner.id && !self.may_replace_owner(connection, &other)? =>
            {
                Err(JournalError::SessionInUse(id.to_owned()))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the owner and the fencing number of a session.
fn session_owner(connection: &Connection, id: &str) -> Result<(Option<String>, i64), JournalError> {
    let lock = connection.row_lock();
    let sql = format!("SELECT owner, fence FROM sessions WHERE id = ?1{lock}");
    let mut read = connection.prepare_cached(&sql)?;
    let mut rows = read.query(params![id])?;
    match rows.next()? {
        Some(row) => Ok((row.get(0)?, row.get(1)?)),
        None => Err(JournalError::SessionNotFound(id.to_owned())),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn claims_of_deleted_sessions_and_old_released_ones_are_not_kept() {
        let claims = SessionClaims::default();
        claims.insert("deleted", FIRST_FENCE);
        claims.insert("claimed", FIRST_FENCE);
        claims.remove_all(&BTreeSet::from(["deleted".to_owned()]));
        assert_eq!(claims.get("deleted"), None);
        for number in 0..=MAX_RELEASED_CLAIMS {
            let session = format!("ses_{number}");
            claims.insert(&session, FIRST_FENCE);
            claims.set_released(&claims.get(&session).unwrap());
        }
        assert_eq!(claims.get("ses_0"), None);
        assert!(claims.is_released("ses_1"));
        assert!(claims.get("claimed").is_some());
        assert_eq!(claims.lock().by_session.len(), MAX_RELEASED_CLAIMS + 1);
    }
}
