//! The way to the database: its URL, TLS, and how a connection is set up.
//!
//! Whenever TLS is spoken the server's certificate is checked, by the machine's roots (or those
//! that `SSL_CERT_FILE` names) and for its host name: what libpq calls `verify-full`.

use secrecy::{ExposeSecret as _, SecretString};
use std::{future::Future, path::PathBuf, str::FromStr as _, time::Duration};
use tokio_postgres::{
    Client, Config,
    config::{Host, SslMode},
};
use tokio_postgres_rustls::MakeRustlsConnect;

/// A connection must be there within this.
const CONNECT: Duration = Duration::from_secs(5);
/// A statement must be answered within this, else its connection is given up.
pub(super) const STATEMENT: Duration = Duration::from_secs(5);

/// Why a journal cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL is none. It is not repeated, since it holds a password.
    #[error(
        "the URL of the journal's database cannot be used: {0}; \
             write postgres://user:password@host:5432/database?sslmode=require"
    )]
    Url(String),
    /// No connection.
    #[error("the journal's database cannot be reached: {0}")]
    Connect(String),
    /// The database says no.
    #[error("the journal's database cannot be used: {0}")]
    Database(String),
    /// A later version of this program wrote it.
    #[error("the journal's database has schema {0}, of a later version of this program")]
    Newer(i32),
}

/// Where the URL of the database is.
#[derive(Clone, Debug)]
pub enum Url {
    /// In a file, read again for each connection, so that a new password is used without a restart.
    File(PathBuf),
    /// Given.
    Text(SecretString),
}

/// Which database, and how it is reached.
#[derive(Clone)]
pub struct Database {
    url: Url,
    tls: MakeRustlsConnect,
    relaxed: bool,
}

impl Database {
    /// The database of a `postgres://` URL or a `key=value` list. With `relaxed` an append is
    /// answered before the database has it on disk (`synchronous_commit = off`).
    ///
    /// # Errors
    /// The URL cannot be read, or names no host or no database.
    pub fn new(url: Url, tls: rustls::ClientConfig, relaxed: bool) -> Result<Self, OpenError> {
        let database = Self { url, tls: MakeRustlsConnect::new(tls), relaxed };
        let config = database.config()?;
        if config.get_ssl_mode() != SslMode::Require
            && config.get_hosts().iter().any(|host| matches!(host, Host::Tcp(_)))
        {
            tracing::warn!(
                "the journal's database may be spoken to without TLS: its URL does not say sslmode=require"
            );
        }
        Ok(database)
    }

    fn config(&self) -> Result<Config, OpenError> {
        let text = match &self.url {
            Url::Text(text) => text.clone(),
            Url::File(path) => std::fs::read_to_string(path)
                .map_err(|e| OpenError::Url(format!("{} cannot be read: {e}", path.display())))?
                .into(),
        };
        config(text.expose_secret())
    }

    pub(super) async fn connect(&self) -> Result<Client, OpenError> {
        let failed = |problem: String| OpenError::Connect(problem);
        let config = self.config()?;
        let connecting = config.connect(self.tls.clone());
        let (client, connection) = within(CONNECT, connecting).await.map_err(failed)?;
        // It ends with the client; what went wrong is told to whoever waits for an answer.
        tokio::spawn(async move { connection.await.ok() });
        let commit = if self.relaxed { "SET synchronous_commit = off;" } else { "" };
        let set_up = format!(
            "{commit} SET statement_timeout = {}; SET lock_timeout = {0};
             SET idle_in_transaction_session_timeout = '1min'",
            STATEMENT.as_millis()
        );
        within(STATEMENT, client.batch_execute(&set_up)).await.map_err(failed)?;
        Ok(client)
    }
}

fn config(url: &str) -> Result<Config, OpenError> {
    let unusable = |problem: &str| OpenError::Url(problem.to_owned());
    // these two of libpq check what is checked here in any case
    let url = url.trim().replace("sslmode=verify-full", "sslmode=require");
    let url = url.replace("sslmode=verify-ca", "sslmode=require");
    let mut config = Config::from_str(&url).map_err(|e| unusable(&describe(&e)))?;
    if config.get_hosts().is_empty() {
        return Err(unusable("it names no host"));
    }
    if config.get_dbname().is_none() {
        return Err(unusable("it names no database"));
    }
    config.application_name("awaken-gateway").connect_timeout(CONNECT);
    config.keepalives_idle(Duration::from_secs(15)).tcp_user_timeout(STATEMENT);
    Ok(config)
}

/// Waits for the database, but not longer than this.
pub(super) async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, String> {
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result.map_err(|e| describe(&e)),
        Err(_) => Err(format!("no answer within {} s", limit.as_secs())),
    }
}

/// The error and what it came from. Neither holds a part of the URL.
pub(super) fn describe(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("postgres://me:secret@db:5432/journal", SslMode::Prefer)]
    #[case("postgres://me:secret@db/journal?sslmode=require\n", SslMode::Require)]
    #[case("postgres://me:secret@db/journal?sslmode=verify-full", SslMode::Require)]
    #[case("host=db password=secret dbname=journal sslmode=verify-ca", SslMode::Require)]
    fn a_url_is_taken(#[case] url: &str, #[case] mode: SslMode) {
        assert_eq!(config(url).unwrap().get_ssl_mode(), mode);
    }

    #[rstest]
    #[case("")]
    #[case("mysql://me:secret@db/journal")]
    #[case("postgres://me:secret@db")]
    #[case("postgres:///journal")]
    #[case("postgres://me:secret@db:port/journal")]
    #[case("postgres://me:secret@db/journal?sslmode=secret")]
    fn what_is_none_is_refused_and_not_repeated(#[case] url: &str) {
        let problem = config(url).unwrap_err().to_string();
        assert!(!problem.contains("secret"), "{problem}");
        assert!(problem.contains("write postgres://"), "{problem}");
    }
}
