//! The bearer of `/v1/mcp`: rotated under load, taken away, brought back.

use crate::support::{Endpoint, LIMIT, Team, cluster::Cluster, endpoint::HELLO};
use awaken_stub::mcp_client::{Client, Reply};
use http::Method;
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::{sync::watch, task::JoinHandle};

/// Calls that go on until told to stop.
struct Load {
    calls: watch::Receiver<usize>,
    stop: watch::Sender<bool>,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Load {
    /// Calls a management tool without a pause.
    fn start(mut client: Client) -> Self {
        let (count, calls) = watch::channel(0);
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(async move {
            while !*stopped.borrow() {
                let answer = client.call("agents_list", &json!({"limit": 1})).await?;
                let failed = answer.get("result").is_none_or(|r| r["isError"] == true);
                anyhow::ensure!(!failed, "after {} calls: {answer}", *count.borrow());
                count.send_modify(|n| *n += 1);
            }
            Ok(())
        });
        Self { calls, stop, task }
    }

    /// Waits until that many more calls have succeeded.
    async fn goes_on(&mut self, more: usize) {
        let goal = *self.calls.borrow() + more;
        let enough = self.calls.wait_for(|n| *n >= goal);
        let enough = tokio::time::timeout(LIMIT, enough).await.expect("calls are answered");
        if enough.is_err() {
            // who counts has ended, and says why
            (&mut self.task).await.unwrap().expect("no call fails");
        }
    }

    /// Ends it; the first call that failed is the error.
    async fn end(self) {
        self.stop.send_replace(true);
        self.task.await.unwrap().expect("no call fails");
    }
}

/// Everything of an answer that a caller could tell from another.
fn told(reply: &Reply) -> (u16, Vec<(String, String)>, String) {
    let headers = reply.headers.iter().filter(|(name, _)| *name != "date");
    let text = |v: &http::HeaderValue| String::from_utf8_lossy(v.as_bytes()).into_owned();
    (reply.status, headers.map(|(n, v)| (n.to_string(), text(v))).collect(), reply.text())
}

#[tokio::test]
async fn the_bearer_is_rotated_under_load_without_a_failed_call() {
    let team = Team::new("bearer").await;
    let endpoint = Endpoint::alone(&team.cluster).await;
    let (old, new) = (endpoint.token.as_str(), "e2e-bearer-that-comes-next");
    let mut before = Load::start(endpoint.connected().await);
    before.goes_on(3).await;

    // the new one beside the old one: both are valid, and no session notices
    endpoint.set(&[("token", new), ("previous-token", old)]).await;
    endpoint.answers(Some(new), 200).await;
    assert_eq!(endpoint.hello(Some(old)).await.unwrap().status, 200);
    let mut moved = endpoint.client(Some(new));
    moved.initialize().await.unwrap();
    let mut after = Load::start(moved);
    after.goes_on(3).await;
    before.goes_on(3).await;
    before.end().await;

    // an open stream ends with its bearer
    let listener = endpoint.connected().await;
    let stream = reqwest::Client::builder().no_proxy().build().unwrap();
    let stream = stream.get(&endpoint.url).bearer_auth(old).header("accept", "text/event-stream");
    let stream = stream.header("mcp-session-id", listener.session.unwrap()).send().await.unwrap();
    assert_eq!(stream.status(), 200);
    endpoint.set(&[("token", new)]).await;
    endpoint.answers(Some(old), 401).await;
    let ended = tokio::time::timeout(Duration::from_secs(10), stream.bytes()).await;
    ended.expect("the stream ends").expect("as a stream does");
    after.goes_on(3).await;
    after.end().await;
    let challenge = endpoint.answers(Some(old), 401).await;
    assert!(challenge.headers["www-authenticate"].to_str().unwrap().starts_with("Bearer"));
    assert!(!challenge.text().contains(old) && !challenge.text().contains(new));
    nothing_was_logged(&team.cluster, &[old, new]).await;
    team.end().await;
}

#[tokio::test]
async fn without_its_secret_the_route_is_a_path_like_any_unknown_one() {
    let team = Team::new("no-bearer").await;
    let endpoint = Endpoint::alone(&team.cluster).await;
    let mut client = endpoint.connected().await;
    let gateway = endpoint.url.strip_suffix("/v1/mcp").unwrap().to_owned();
    let token = endpoint.token.clone();

    for keys in [None, Some(&[("token", "")][..]), Some(&[("previous-token", "alone-no-good")][..])]
    {
        match keys {
            None => endpoint.remove().await,
            Some(keys) => endpoint.set(keys).await,
        }
        endpoint.answers(Some(&token), 404).await;
        for method in [Method::POST, Method::GET, Method::DELETE, Method::PUT] {
            for path in ["/v1/mcp", "/v1/mcp/"] {
                for shown in [Some(token.as_str()), Some("alone-no-good"), None] {
                    let ask = async |path: &str| {
                        let mut client = Client::new(&format!("{gateway}{path}"), shown).unwrap();
                        let body = if method == Method::GET { "" } else { HELLO };
                        told(&client.send(method.clone(), body).await.unwrap())
                    };
                    assert_eq!(ask(path).await, ask("/v1/no-such").await, "{method} {path}");
                }
            }
        }
        // a session of before is no way in
        assert_eq!(client.request("ping", &json!({})).await.unwrap().status, 404);
        endpoint.set(&[("token", &token)]).await;
        endpoint.answers(Some(&token), 200).await;
    }
    // and the session is there again, since the gateway was not restarted
    assert_eq!(client.request("ping", &json!({})).await.unwrap().status, 200);
    team.end().await;
}

/// The timing class on the wire: 200 of each, one after the other, while there is no Secret. What a
/// review of a token takes, which the routes of Sessions make, is measured beside them; half of it
/// is the bound.
#[tokio::test]
async fn without_its_secret_the_route_takes_as_long_as_an_unknown_path() {
    let team = Team::new("no-bearer-time").await;
    let endpoint = Endpoint::alone(&team.cluster).await;
    let token = endpoint.token.clone();
    endpoint.remove().await;
    endpoint.answers(Some(&token), 404).await;
    let gateway = endpoint.url.strip_suffix("/v1/mcp").unwrap();
    let mut client = Client::new(gateway, None).unwrap();
    let mut took: [Vec<Duration>; 4] = std::array::from_fn(|_| vec![]);
    for n in 0..200_u32 {
        let random = n.wrapping_mul(0x9e37_79b1);
        let mut first = None;
        for kind in (0..4).map(|k| (k + n as usize) % 4) {
            client.path = match kind {
                0 | 1 => "/v1/mcp".to_owned(),
                2 => format!("/v1/{random:08x}"),
                _ => format!("/v1/sessions/{}/coder/mcp", team.name),
            };
            client.headers.clear();
            if kind > 0 {
                // another one each time, so that no answer is remembered
                let shown = format!("Bearer wrong-{kind}-{random:08x}");
                client.headers.push(("authorization".to_owned(), shown));
            }
            let begun = Instant::now();
            let reply = client.send(Method::POST, HELLO).await.unwrap();
            took[kind].push(begun.elapsed());
            if kind == 3 {
                assert_eq!(reply.status, 401, "{}", reply.text());
                continue;
            }
            assert_eq!(reply.status, 404, "{}", reply.text());
            let reply = told(&reply);
            assert_eq!(first.get_or_insert_with(|| reply.clone()), &reply, "{}", client.path);
        }
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2]
    };
    let [bare, wrong, unknown, reviewed] = took.each_mut().map(median);
    eprintln!("medians: {bare:?} {wrong:?}, unknown {unknown:?}, with a review {reviewed:?}");
    let bound = reviewed.saturating_sub(unknown) / 2;
    for (what, median) in [("no token", bare), ("a wrong token", wrong)] {
        assert!(median.abs_diff(unknown) < bound, "{what}: {median:?}, unknown: {unknown:?}");
    }
    endpoint.set(&[("token", &token)]).await;
    team.end().await;
}

/// No token stands in the product's logs.
async fn nothing_was_logged(cluster: &Cluster, tokens: &[&str]) {
    for component in ["gateway", "operator"] {
        for pod in cluster.component(component).await {
            let name = pod["metadata"]["name"].as_str().unwrap();
            let log = cluster.logs(crate::support::cluster::SYSTEM, name).await;
            for token in tokens {
                assert!(!log.contains(token), "the log of {name} holds a bearer");
            }
        }
    }
}
