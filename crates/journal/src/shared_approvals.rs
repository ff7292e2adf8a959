//! Who decided about approval requests, and requests that wait on several servers: the
//! implementations of [`ApprovalDeciderStore`] and [`SharedApprovalStore`].

use std::collections::HashMap;

use async_trait::async_trait;
use selvedge_database::{Connection, OptionalRow, params};
use selvedge_protocol::{
    ApprovalDecider, ApprovalDeciderStore, ApprovalWithdrawal, DecisionRace, ServerStoreError,
    SharedApproval, SharedApprovalStore,
};

use crate::connection::{execute, query_column, query_first};
use crate::time::now_ms;
use crate::{Journal, JournalError};

#[async_trait]
impl ApprovalDeciderStore for Journal {
    async fn record_decider(
        &self,
        decision: ApprovalDecider,
    ) -> Result<DecisionRace, ServerStoreError> {
        let record = move |_: &Self, connection: &Connection| insert_decider(connection, &decision);
        Ok(self.write_async(record).await?)
    }

    async fn remove_decider(&self, approval: &str) -> Result<(), ServerStoreError> {
        let approval = approval.to_owned();
        let remove = move |_: &Self, connection: &Connection| delete_decider(connection, &approval);
        Ok(self.write_async(remove).await?)
    }

    async fn decider(&self, approval: &str) -> Result<Option<ApprovalDecider>, ServerStoreError> {
        let approval = approval.to_owned();
        let read = move |_: &Self, connection: &Connection| read_decider(connection, &approval);
        Ok(self.run_now_or_queue(read).await?)
    }
}

fn insert_decider(
    connection: &Connection,
    decision: &ApprovalDecider,
) -> Result<DecisionRace, JournalError> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO approval_deciders (approval, session, token, decision, decided_ms, reason)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO NOTHING",
    )?;
    let inserted = insert.execute(params![
        decision.approval,
        decision.session,
        decision.token,
        decision.decision,
        now_ms(),
        decision.reason
    ])?;
    Ok(match inserted {
        0 => DecisionRace::Lost,
        _ => DecisionRace::Won,
    })
}

fn read_decider(
    connection: &Connection,
    approval: &str,
) -> Result<Option<ApprovalDecider>, JournalError> {
    let sql = "SELECT approval, session, token, decision, reason FROM approval_deciders
        WHERE approval = ?1";
    let mut read = connection.prepare_cached(sql)?;
    let found = read.query_row(params![approval], |row| {
        Ok(ApprovalDecider {
            approval: row.get(0)?,
            session: row.get(1)?,
            token: row.get(2)?,
            decision: row.get(3)?,
            reason: row.get(4)?,
        })
    });
    Ok(found.optional()?)
}

fn delete_decider(connection: &Connection, approval: &str) -> Result<(), JournalError> {
    let sql = "DELETE FROM approval_deciders WHERE approval = ?1";
    execute(connection, sql, params![approval])
}

/// Returns the server of a listed request. No other transaction changes the request until this one
/// ends.
fn lock_request(connection: &Connection, id: &str) -> Result<Option<String>, JournalError> {
    let lock = connection.row_lock();
    let sql = format!("SELECT owner FROM shared_approvals WHERE id = ?1{lock}");
    query_first(connection, &sql, params![id])
}

#[async_trait]
impl SharedApprovalStore for Journal {
    async fn announce_approval(&self, approval: SharedApproval) -> Result<(), ServerStoreError> {
        let announce = move |journal: &Self, connection: &Connection| {
            journal.remove_approvals_of_dead_servers(connection)?;
            let request = journal.payloads.put_json(connection, &approval.request)?;
            execute(
                connection,
                "INSERT INTO shared_approvals (id, session, request, asked_ms, owner)
                 VALUES (?1, ?2, ?3, ?4, ?5)",
                params![
                    approval.request.id,
                    approval.session,
                    request,
                    approval.asked_ms,
                    journal.owner.id
                ],
            )
        };
        Ok(self.write_async(announce).await?)
    }

    async fn withdraw_approval(
        &self,
        id: &str,
        withdrawal: ApprovalWithdrawal,
    ) -> Result<(), ServerStoreError> {
        let id = id.to_owned();
        let withdraw = move |_: &Self, connection: &Connection| {
            let sql = "DELETE FROM shared_approvals WHERE id = ?1";
            execute(connection, sql, params![id])?;
            match withdrawal {
                ApprovalWithdrawal::Decided => Ok(()),
                ApprovalWithdrawal::Abandoned => delete_decider(connection, &id),
            }
        };
        Ok(self.write_async(withdraw).await?)
    }

    async fn announced_approvals(&self) -> Result<Vec<SharedApproval>, ServerStoreError> {
        let read = |journal: &Self, connection: &Connection| {
            let mut read = connection.prepare_cached(
                "SELECT session, request, asked_ms, owner FROM shared_approvals
                 WHERE owner <> ?1 ORDER BY asked_ms, id",
            )?;
            let mut rows = read.query(params![journal.owner.id])?;
            let mut approvals = Vec::new();
            let mut alive: HashMap<String, bool> = HashMap::new();
            while let Some(row) = rows.next()? {
                let owner: String = row.get(3)?;
                let is_alive = match alive.get(&owner) {
                    Some(known) => *known,
                    None => {
                        let is_alive = journal.is_owner_alive(connection, &owner)?;
                        *alive.entry(owner).or_insert(is_alive)
                    }
                };
                if is_alive {
                    let request = row.get_ref(1)?;
                    approvals.push(SharedApproval {
                        session: row.get(0)?,
                        request: journal.payloads.require_json(connection, request)?,
                        asked_ms: row.get(2)?,
                    });
                }
            }
            Ok(approvals)
        };
        Ok(self.run_now_or_queue(read).await?)
    }

    async fn decide_announced(
        &self,
        decision: ApprovalDecider,
    ) -> Result<DecisionRace, ServerStoreError> {
        let decide = move |journal: &Self, connection: &Connection| match lock_request(
            connection,
            &decision.approval,
        )? {
            Some(owner) if journal.is_owner_alive(connection, &owner)? => {
                insert_decider(connection, &decision)
            }
            _ => Ok(DecisionRace::Closed),
        };
        Ok(self.write_async(decide).await?)
    }

    async fn take_decision(&self, id: &str) -> Result<Option<ApprovalDecider>, ServerStoreError> {
        let id = id.to_owned();
        let take = move |journal: &Self, connection: &Connection| {
            let owner = lock_request(connection, &id)?;
            let decision = match owner.as_ref() == Some(&journal.owner.id) {
                true => read_decider(connection, &id)?,
                false => None,
            };
            if decision.is_some() {
                let sql = "DELETE FROM shared_approvals WHERE id = ?1";
                execute(connection, sql, params![id])?;
            }
            Ok(decision)
        };
        Ok(self.write_async(take).await?)
    }

    async fn take_back_decision(&self, id: &str) -> Result<bool, ServerStoreError> {
        let id = id.to_owned();
        let take_back = move |_: &Self, connection: &Connection| {
            if lock_request(connection, &id)?.is_some() {
                delete_decider(connection, &id)?;
            }
            Ok(read_decider(connection, &id)?.is_some())
        };
        Ok(self.write_async(take_back).await?)
    }
}

impl Journal {
    fn remove_approvals_of_dead_servers(
        &self,
        connection: &Connection,
    ) -> Result<(), JournalError> {
        let sql = "SELECT DISTINCT owner FROM shared_approvals";
        let owners: Vec<String> = query_column(connection, sql, params![])?;
        for owner in owners {
            if owner != self.owner.id && self.may_replace_owner(connection, &owner)? {
                // The dead server has not taken the decisions about its requests.
                for sql in [
                    "DELETE FROM approval_deciders WHERE approval IN
                        (SELECT id FROM shared_approvals WHERE owner = ?1)",
                    "DELETE FROM shared_approvals WHERE owner = ?1",
                ] {
                    execute(connection, sql, params![owner])?;
                }
            }
        }
        Ok(())
    }
}
