//! Tokens of clients of the agent server.

use std::path::Path;

use async_trait::async_trait;
use selvedge_database::{Connection, NamedLockMode, Row, ToParameter, params};
use selvedge_protocol::{ApiToken, ApiTokenStore, NewApiToken, ServerStoreError, new_id};

use crate::connection::execute;
use crate::time::now_ms;
use crate::{Journal, JournalError};

const SELECT_TOKEN: &str =
    "SELECT id, name, scopes, workspaces, created_ms, expires_ms, revoked_ms,
    max_cost, spent FROM api_tokens";

#[async_trait]
impl ApiTokenStore for Journal {
    async fn create_token(&self, token: NewApiToken) -> Result<ApiToken, ServerStoreError> {
        let id = new_id("tok");
        let create = move |_: &Self, connection: &Connection| {
            // Two tokens with nested workspaces must not be created at the same time.
            connection.lock_name("api_tokens", NamedLockMode::Exclusive);
            let sql = "SELECT 1 FROM api_tokens WHERE name = ?1 OR id = ?1";
            if connection
                .prepare_cached(sql)?
                .exists(params![token.name])?
            {
                return Ok(Err(ServerStoreError::TokenNameTaken(token.name.clone())));
            }
            let valid = format!("{SELECT_TOKEN} WHERE revoked_ms IS NULL");
            let mut others = read_tokens(connection, &valid)?;
            others.retain(|other| other.is_valid_at(now_ms()));
            if let Some(nested) = nested_workspaces(&token.workspaces, &others) {
                return Ok(Err(nested));
            }
            execute(
                connection,
                "INSERT INTO api_tokens (id, name, secret_hash, scopes, workspaces, created_ms,
                    expires_ms, max_cost) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                params![
                    id,
                    token.name,
                    token.secret_hash,
                    serde_json::to_string(&token.scopes)?,
                    serde_json::to_string(&token.workspaces)?,
                    now_ms(),
                    token.expires_ms,
                    token.max_cost,
                ],
            )?;
            let created = first_token(connection, &format!("{SELECT_TOKEN} WHERE id = ?1"), &id)?;
            Ok(created.ok_or(ServerStoreError::TokenNotFound(id.clone())))
        };
        self.write_async(create).await?
    }

    async fn is_available(&self) -> bool {
        let check = |_: &Self, connection: &Connection| {
            read_tokens(connection, SELECT_TOKEN)?;
            Ok(connection.check_server_is_writable()?)
        };
        self.run_now_or_queue(check).await.is_ok()
    }

    async fn tokens(&self) -> Result<Vec<ApiToken>, ServerStoreError> {
        let read = |_: &Self, connection: &Connection| {
            let sql = format!("{SELECT_TOKEN} ORDER BY created_ms DESC, id");
            read_tokens(connection, &sql)
        };
        Ok(self.run_now_or_queue(read).await?)
    }

    async fn token_by_hash(&self, hash: [u8; 32]) -> Result<Option<ApiToken>, ServerStoreError> {
        let read = move |_: &Self, connection: &Connection| {
            let sql = format!("{SELECT_TOKEN} WHERE secret_hash = ?1");
            first_token(connection, &sql, hash)
        };
        Ok(self.run_now_or_queue(read).await?)
    }

    async fn revoke_token(&self, name: &str) -> Result<ApiToken, ServerStoreError> {
        let wanted = name.to_owned();
        let revoke = move |_: &Self, connection: &Connection| {
            let sql = "UPDATE api_tokens SET revoked_ms = coalesce(revoked_ms, ?2)
                WHERE id = ?1 OR name = ?1";
            execute(connection, sql, params![wanted, now_ms()])?;
            let sql = format!("{SELECT_TOKEN} WHERE id = ?1 OR name = ?1");
            first_token(connection, &sql, &wanted)
        };
        let revoked = self.write_async(revoke).await?;
        revoked.ok_or_else(|| ServerStoreError::TokenNotFound(name.to_owned()))
    }

    async fn create_login(&self, hash: [u8; 32], expires_ms: i64) -> Result<(), ServerStoreError> {
        let create = move |_: &Self, connection: &Connection| {
            let sql = "DELETE FROM api_logins WHERE expires_ms <= ?1";
            execute(connection, sql, params![now_ms()])?;
            let sql = "INSERT INTO api_logins (secret_hash, expires_ms) VALUES (?1, ?2)";
            execute(connection, sql, params![hash, expires_ms])
        };
        Ok(self.write_async(create).await?)
    }

    async fn take_login(&self, hash: [u8; 32]) -> Result<bool, ServerStoreError> {
        let take = move |_: &Self, connection: &Connection| {
            let sql = "DELETE FROM api_logins WHERE secret_hash = ?1 AND expires_ms > ?2";
            let taken = connection
                .prepare_cached(sql)?
                .execute(params![hash, now_ms()])?;
            Ok(taken > 0)
        };
        Ok(self.write_async(take).await?)
    }
}

/// Returns the token with this name. Tokens are never deleted.
pub(crate) fn token_by_name(connection: &Connection, name: &str) -> Result<ApiToken, JournalError> {
    let found = first_token(connection, &format!("{SELECT_TOKEN} WHERE name = ?1"), name)?;
    found.ok_or_else(|| JournalError::Damaged(format!("the token `{name}` is missing")))
}

/// Returns the error for a workspace that lies in another one, of `workspaces` or of `tokens`.
fn nested_workspaces(workspaces: &[String], tokens: &[ApiToken]) -> Option<ServerStoreError> {
    let others = tokens.iter().flat_map(|token| &token.workspaces);
    let others: Vec<&String> = others.chain(workspaces).collect();
    workspaces.iter().find_map(|one| {
        others.iter().find_map(|other| {
            let (inner, outer) = match one.len() > other.len() {
                true => (one, *other),
                false => (*other, one),
            };
            let is_nested = inner != outer && Path::new(inner).starts_with(outer);
            is_nested.then(|| ServerStoreError::NestedWorkspaces {
                inner: inner.clone(),
                outer: outer.clone(),
            })
        })
    })
}

fn read_tokens(connection: &Connection, sql: &str) -> Result<Vec<ApiToken>, JournalError> {
    let mut read = connection.prepare_cached(sql)?;
    let mut rows = read.query(params![])?;
    let mut tokens = Vec::new();
    while let Some(row) = rows.next()? {
        tokens.push(read_token(row)?);
    }
    Ok(tokens)
}

fn first_token(
    connection: &Connection,
    sql: &str,
    param: impl ToParameter,
) -> Result<Option<ApiToken>, JournalError> {
    let mut read = connection.prepare_cached(sql)?;
    let mut rows = read.query(params![param])?;
    rows.next()?.map(read_token).transpose()
}

fn read_token(row: Row<'_>) -> Result<ApiToken, JournalError> {
    Ok(ApiToken {
        id: row.get(0)?,
        name: row.get(1)?,
        scopes: serde_json::from_str(&row.get::<String>(2)?)?,
        workspaces: serde_json::from_str(&row.get::<String>(3)?)?,
        created_ms: row.get(4)?,
        expires_ms: row.get(5)?,
        revoked_ms: row.get(6)?,
        max_cost: row.get(7)?,
        spent: row.get(8)?,
    })
}
