//! Approval requests that wait on several servers: the implementation of [`SharedApprovalStore`].

use std::collections::HashMap;

use async_trait::async_trait;
use selvedge_database::{Connection, params};
use selvedge_protocol::{
    ApprovalWithdrawal, ServerStoreError, SharedApproval, SharedApprovalStore,
};

use crate::connection::{execute, query_column};
use crate::{Journal, JournalError};

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
                ApprovalWithdrawal::Abandoned => {
                    let sql = "DELETE FROM approval_deciders WHERE approval = ?1";
                    execute(connection, sql, params![id])
                }
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
                let sql = "DELETE FROM shared_approvals WHERE owner = ?1";
                execute(connection, sql, params![owner])?;
            }
        }
        Ok(())
    }
}
