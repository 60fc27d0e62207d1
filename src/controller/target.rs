//! What an attachment's target says: its canonical form, and whether it can be used at all. Names
//! are resolved by the gateway at each connect; here only what is literally written is judged.

use super::{
    scrub::{scrub, suspicious, suspicious_env},
    seen::{Problem, few},
};
use crate::{
    api::attachment::{Http, McpAttachmentSpec, SandboxStdio},
    domain::{
        address::{CanonicalUrl, canonical_url, forbidden_host},
        identity::Fingerprint,
        reason::Reason,
    },
    process::api_server::ApiServer,
};
use std::net::IpAddr;

/// The canonical URL of an HTTP target.
///
/// # Errors
/// What is wrong with it, naming the field.
pub fn http_url(http: &Http, api_server: &ApiServer) -> Result<CanonicalUrl, Problem> {
    let url = canonical_url(&http.url).map_err(|problem| {
        Problem::new(Reason::InvalidUrl, format!("spec.http.url: {problem}."))
    })?;
    let address = url.host().trim_matches(['[', ']']).parse::<IpAddr>();
    let api_server = address.is_ok_and(|a| api_server.has(a)).then_some("the API server");
    if let Some(what) = forbidden_host(url.host()).or(api_server) {
        let cause = format!("spec.http.url names {what}, where the gateway never connects to.");
        return Err(Problem::new(Reason::TargetForbidden, cause));
    }
    if http.credential.is_some() && !url.is_https() && !http.insecure_credential {
        let cause = "spec.http.credential would travel over plain http.";
        return Err(Problem::new(Reason::InsecureCredential, cause));
    }
    Ok(url)
}

/// The target in one line, for people: the URL, or the command with its arguments.
pub fn line(spec: &McpAttachmentSpec) -> String {
    const LONGEST: usize = 500;
    let mut line = match (&spec.http, &spec.sandbox_stdio) {
        (Some(http), _) => http.url.clone(),
        (None, Some(stdio)) => {
            let words = std::iter::once(&stdio.command).chain(&stdio.args);
            words.map(String::as_str).collect::<Vec<_>>().join(" ")
        }
        (None, None) => String::new(),
    };
    line = scrub(&line);
    if line.len() > LONGEST {
        let mut end = LONGEST;
        while !line.is_char_boundary(end) {
            end -= 1;
        }
        line.truncate(end);
        line.push('…');
    }
    line
}

/// What to warn of when values of a stdio target look like secrets; no value is repeated.
pub fn suspicion(stdio: &SandboxStdio) -> Option<Problem> {
    let mut where_ = vec![];
    if suspicious(&stdio.command) {
        where_.push("command".to_owned());
    }
    let args = stdio.args.iter().enumerate().filter(|(_, a)| suspicious(a));
    where_.extend(args.map(|(i, _)| format!("args[{i}]")));
    let env = stdio.env.iter().filter(|e| suspicious_env(&e.name, &e.value));
    where_.extend(env.map(|e| format!("env {}", e.name)));
    let cause = || format!("These look like secrets: {}.", few(&where_));
    (!where_.is_empty()).then(|| Problem::new(Reason::SuspiciousValue, cause()))
}

/// What makes two HTTP targets the same: canonical URL and credential reference.
pub fn http_identity(url: &CanonicalUrl, http: &Http) -> String {
    let key = http.credential.as_ref().map(|c| &c.secret_key_ref);
    Fingerprint::new("http-target")
        .field(url.as_str())
        .optional(key.map(|k| &k.name))
        .optional(key.map(|k| &k.key))
        .finish()
}

/// What makes two stdio targets the same: image, command, arguments, environment variables and
/// secret references.
pub fn stdio_identity(image: Option<&str>, stdio: &SandboxStdio) -> String {
    let to = Fingerprint::new("stdio-target").optional(image).field(&stdio.command);
    let to = to.field(stdio.args.len().to_be_bytes());
    let to = stdio.args.iter().fold(to, Fingerprint::field);
    let mut env: Vec<_> = stdio.env.iter().map(|e| (&e.name, &e.value)).collect();
    env.sort();
    let to = to.field(env.len().to_be_bytes());
    let to = env.iter().fold(to, |to, (name, value)| to.field(name).field(value));
    let mut secrets: Vec<_> =
        stdio.secret_env.iter().map(|e| (&e.name, &e.secret_key_ref)).collect();
    secrets.sort();
    secrets
        .iter()
        .fold(to, |to, (name, key)| to.field(name).field(&key.name).field(&key.key))
        .finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::attachment::{Credential, EnvVar, SecretKeyRef};
    use rstest::rstest;

    fn api_server() -> ApiServer {
        ApiServer::new(["10.96.0.1", "2001:db8::6443"].map(|a| a.parse().unwrap()))
    }

    fn http(url: &str) -> Http {
        Http { url: url.to_owned(), credential: None, insecure_credential: false }
    }

    #[rstest]
    #[case("http://127.0.0.1:8080/mcp", Reason::TargetForbidden)]
    #[case("http://127.1/mcp", Reason::TargetForbidden)]
    #[case("http://0x7f.1/mcp", Reason::TargetForbidden)]
    #[case("http://2130706433/mcp", Reason::TargetForbidden)]
    #[case("http://0.0.0.0/mcp", Reason::TargetForbidden)]
    #[case("http://localhost/mcp", Reason::TargetForbidden)]
    #[case("http://a.localhost./mcp", Reason::TargetForbidden)]
    #[case("http://169.254.169.254/latest", Reason::TargetForbidden)]
    #[case("http://169.254.1.1/", Reason::TargetForbidden)]
    #[case("http://[::1]/mcp", Reason::TargetForbidden)]
    #[case("http://[::]/mcp", Reason::TargetForbidden)]
    #[case("http://[::ffff:127.0.0.1]/mcp", Reason::TargetForbidden)]
    #[case("http://[fe80::1]/mcp", Reason::TargetForbidden)]
    #[case("http://[fd00:ec2::254]/mcp", Reason::TargetForbidden)]
    #[case("https://10.96.0.1/mcp", Reason::TargetForbidden)]
    #[case("https://0x0a600001:6443/mcp", Reason::TargetForbidden)]
    #[case("https://[::ffff:10.96.0.1]/mcp", Reason::TargetForbidden)]
    #[case("https://[2001:db8:0::6443]/mcp", Reason::TargetForbidden)]
    #[case("ftp://example.com/mcp", Reason::InvalidUrl)]
    #[case("http://u:p@example.com/mcp", Reason::InvalidUrl)]
    #[case("http://example.com/mcp#x", Reason::InvalidUrl)]
    #[case("example.com/mcp", Reason::InvalidUrl)]
    fn refused(#[case] url: &str, #[case] reason: Reason) {
        assert_eq!(http_url(&http(url), &api_server()).unwrap_err().reason, reason);
    }

    #[rstest]
    #[case("HTTPS://Example.COM:443/mcp?x=1", "https://example.com/mcp?x=1")]
    #[case("http://10.0.0.7:3001/mcp", "http://10.0.0.7:3001/mcp")]
    #[case("http://everything.team-a.svc:3001/mcp", "http://everything.team-a.svc:3001/mcp")]
    fn canonical(#[case] url: &str, #[case] expected: &str) {
        assert_eq!(http_url(&http(url), &api_server()).unwrap().as_str(), expected);
    }

    #[test]
    fn a_credential_needs_https_or_an_explicit_word() {
        let mut http = http("http://example.com/mcp");
        http.credential = Some(Credential {
            secret_key_ref: SecretKeyRef { name: "s".into(), key: "k".into() },
            header: "Authorization".into(),
            scheme: "Bearer".into(),
        });
        assert_eq!(http_url(&http, &api_server()).unwrap_err().reason, Reason::InsecureCredential);
        http.insecure_credential = true;
        assert!(http_url(&http, &api_server()).is_ok());
    }

    #[test]
    fn two_accounts_are_two_targets_and_so_are_two_tenants() {
        let one = |secret: &str, env: &[(&str, &str)]| SandboxStdio {
            command: "c".into(),
            args: vec!["a".into()],
            env: env
                .iter()
                .map(|(name, value)| EnvVar { name: (*name).into(), value: (*value).into() })
                .collect(),
            secret_env: vec![crate::api::attachment::SecretEnvVar {
                name: "KEY".into(),
                secret_key_ref: SecretKeyRef { name: secret.into(), key: "k".into() },
            }],
        };
        let id = |image, secret, env| stdio_identity(Some(image), &one(secret, env));
        let first = id("i", "x", &[]);
        assert_eq!(first, id("i", "x", &[]));
        assert_ne!(first, id("i", "y", &[]));
        assert_ne!(first, id("j", "x", &[]));
        let blue = id("i", "x", &[("TENANT", "blue"), ("A", "1")]);
        assert_eq!(blue, id("i", "x", &[("A", "1"), ("TENANT", "blue")]), "the order is no matter");
        assert_ne!(blue, id("i", "x", &[("TENANT", "red"), ("A", "1")]));
        assert_ne!(blue, first);
    }
}
