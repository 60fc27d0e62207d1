//! `/v1/mcp` by oneshot: who gets in, what is listed, which streams live how long.

use super::{platform::*, support::*};
use awaken_operator::{domain::export::Namespaces, gateway::auth::Times, journal::memory::Memory};
use axum::http::{HeaderValue, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};
use std::{sync::atomic::Ordering, time::Duration};

const NOTHING: &str = r#"{"content":[]}"#;

fn plain() -> World {
    open(&FakeManagement::answering(NOTHING))
}

/// Everything of a response that a client can see.
async fn seen(
    world: &World,
    request: axum::http::Request<axum::body::Body>,
) -> (StatusCode, Vec<(String, String)>, String) {
    let reply = world.send(request).await;
    let headers = reply.headers.iter();
    let headers = headers.map(|(k, v)| (k.to_string(), v.to_str().unwrap().to_owned())).collect();
    (reply.status, headers, reply.text)
}

#[rstest]
#[case::no_secret(None, None)]
#[case::empty(Some(""), None)]
#[case::blank(Some(" \n"), None)]
#[case::only_the_previous_one(None, Some(BEARER))]
#[tokio::test]
async fn without_a_token_the_route_is_an_unknown_path(
    #[case] current: Option<&str>,
    #[case] previous: Option<&str>,
) {
    let world = closed(&FakeManagement::answering(NOTHING));
    coder(&world, &[export("coder_read", "read")]);
    world.serving(&FakePeer::answering(NOTHING), &["read"]).await;
    // there was one, and a session with it
    world.bearer.set(Some(BEARER.as_bytes()), None);
    let session = begin(&world, BEARER).await;
    world.bearer.set(current.map(str::as_bytes), previous.map(str::as_bytes));
    for method in ["POST", "GET", "DELETE", "PUT", "HEAD", "OPTIONS", "PATCH"] {
        for (header, value) in [
            ("x-nothing", "x"),
            ("authorization", "Bearer bearer-of-the-platform"),
            ("authorization", "Bearer "),
            ("authorization", "Basic eA=="),
            ("host", "evil.test"),
            ("origin", "https://evil.test"),
            ("mcp-session-id", &session),
        ] {
            let make = |path: &str| {
                let mut request = post(path, BEARER, None, &initialize());
                *request.method_mut() = method.parse().unwrap();
                if header != "authorization" {
                    request.headers_mut().remove("authorization");
                }
                request.headers_mut().insert(header, HeaderValue::from_str(value).unwrap());
                request
            };
            let unknown = seen(&world, make("/v1/nothing")).await;
            for path in [PLATFORM, "/v1/mcp/", "/v1/mcp?x=1"] {
                let shown = seen(&world, make(path)).await;
                assert_eq!(shown, unknown, "{method} {path} with {header}: {value}");
            }
            let foreign = ["host", "origin"].contains(&header);
            let status = if foreign { StatusCode::FORBIDDEN } else { StatusCode::NOT_FOUND };
            assert_eq!(unknown.0, status);
        }
    }
    assert!(platform_records(&world).is_empty(), "nor is anything on record");
    assert_eq!(world.gateway.store.count(), 1);
}

/// The timing class: a request for the route without a token goes through the very code of every
/// unknown path. The route stands in no table, so nothing can be asked of it by another way.
#[test]
fn the_route_is_in_no_table_of_routes() {
    let router = include_str!("../../src/gateway/router.rs");
    let code: String = router.lines().filter(|l| !l.trim_start().starts_with("//")).collect();
    assert!(!code.contains("/v1/mcp"), "the route is asked in `guard`, by `route::asked`");
    let route = include_str!("../../src/gateway/export/route.rs");
    let asked = route.split("pub fn asked").nth(1).unwrap().split("\n}").next().unwrap();
    for word in ["headers", "await", "if ", "match"] {
        assert!(!asked.contains(word), "what decides looks at path and token alone: {word}");
    }
}

/// The same, measured: 200 of each, one after the other. A review of the token, which the routes of
/// Sessions make, is what a path that takes longer would be like; half of that is the bound.
#[tokio::test]
async fn without_a_token_the_route_takes_as_long_as_an_unknown_path() {
    let world = closed(&FakeManagement::answering(NOTHING));
    *world.reviews.delay.lock().unwrap() = Duration::from_millis(2);
    let mut took: [Vec<Duration>; 4] = std::array::from_fn(|_| vec![]);
    for n in 0..200_u32 {
        let random = n.wrapping_mul(0x9e37_79b1);
        let (unknown, wrong) = (format!("/v1/{random:08x}"), format!("wrong-{random:08x}"));
        let mut seen_before = None;
        // who is first is another one each time
        for kind in (0..4).map(|k| (k + n as usize) % 4) {
            let path = [PLATFORM, PLATFORM, unknown.as_str(), MCP][kind];
            let mut request = post(path, &wrong, None, &initialize());
            if kind == 0 {
                request.headers_mut().remove("authorization");
            }
            let begun = std::time::Instant::now();
            let reply = seen(&world, request).await;
            took[kind].push(begun.elapsed());
            if kind == 3 {
                assert_eq!(reply.0, StatusCode::UNAUTHORIZED);
                continue;
            }
            assert_eq!(reply.0, StatusCode::NOT_FOUND);
            assert_eq!(seen_before.get_or_insert_with(|| reply.clone()), &reply, "{path}");
        }
    }
    assert_eq!(world.reviews.tokens.load(Ordering::SeqCst), 200, "those of Sessions alone");
    let median = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2]
    };
    let [bare, wrong, unknown, reviewed] = took.each_mut().map(median);
    let bound = (reviewed - unknown) / 2;
    for (what, median) in [("no token", bare), ("a wrong token", wrong)] {
        assert!(median.abs_diff(unknown) < bound, "{what}: {median:?}, unknown: {unknown:?}");
    }
}

#[tokio::test]
async fn other_paths_are_not_the_route() {
    let world = plain();
    for path in ["/v1/mcp//", "//v1/mcp", "/v1/mcp/x", "/v1/%6dcp", "/V1/mcp", "/v1/mcpx", "/v1"] {
        let reply = world.send(post(path, BEARER, None, &initialize())).await;
        assert_eq!(reply.status, StatusCode::NOT_FOUND, "{path}");
    }
    for path in [PLATFORM, "/v1/mcp/", "/v1/mcp?x=y"] {
        let reply = world.send(post(path, BEARER, None, &initialize())).await;
        assert_eq!(reply.status, StatusCode::OK, "{path}");
    }
}

#[rstest]
#[case::no_header(None)]
#[case::empty(Some("Bearer "))]
#[case::other(Some("Bearer bearer-of-the-platfor"))]
#[case::longer(Some("Bearer bearer-of-the-platform1"))]
#[case::kubernetes(Some("Bearer token-of-runtime"))]
#[case::basic(Some("Basic YmVhcmVy"))]
#[tokio::test]
async fn the_bearer_comes_before_anything_else(#[case] header: Option<&str>) {
    let management = FakeManagement::answering(NOTHING);
    let world = open(&management);
    for method in ["POST", "GET", "DELETE", "PUT"] {
        for host in ["gateway.test", "evil.test"] {
            // not even a body that cannot be read is looked at
            let mut request = post(PLATFORM, "x", Some("unknown"), "{");
            *request.method_mut() = method.parse().unwrap();
            request.headers_mut().remove("authorization");
            request.headers_mut().insert("host", HeaderValue::from_str(host).unwrap());
            if let Some(header) = header {
                let header = HeaderValue::from_str(header).unwrap();
                request.headers_mut().insert("authorization", header);
            }
            let reply = world.send(request).await;
            let expected = (StatusCode::UNAUTHORIZED, "Unauthenticated".to_owned());
            assert_eq!((reply.status, reply.reason()), expected, "{method} {host}");
            let challenge = reply.headers["www-authenticate"].to_str().unwrap();
            assert!(challenge.starts_with("Bearer ") && challenge.contains("error="));
        }
    }
    assert!(management.calls().is_empty() && platform_records(&world).is_empty());
    assert_eq!(world.reviews.tokens.load(Ordering::SeqCst), 0, "no review of Kubernetes");
}

#[rstest]
#[case("host", "evil.test")]
#[case("origin", "https://evil.test")]
#[case("origin", "null")]
#[tokio::test]
async fn then_host_and_origin(#[case] name: &'static str, #[case] value: &'static str) {
    let world = plain();
    let mut request = post(PLATFORM, BEARER, None, &initialize());
    request.headers_mut().insert(name, HeaderValue::from_static(value));
    assert_eq!(world.send(request).await.status, StatusCode::FORBIDDEN);
    assert_eq!(world.gateway.store.count(), 0);
}

#[tokio::test]
async fn the_platforms_bearer_opens_no_session_route() {
    let world = plain();
    let reply = world.send(post(MCP, BEARER, None, &initialize())).await;
    assert_eq!(reply.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn initialize_tells_what_it_is_and_promises_tools_alone() {
    let world = plain();
    let reply = world.send(post(PLATFORM, BEARER, None, &initialize())).await.json();
    assert_eq!(reply["result"]["capabilities"], json!({"tools": {"listChanged": true}}));
    assert_eq!(reply["result"]["serverInfo"]["name"], "awaken-gateway");
    assert!(reply["result"]["instructions"].as_str().unwrap().contains("isError"));
}

// --- the list

#[tokio::test]
async fn without_exports_nothing_is_listed() {
    let world = World::new();
    world.bearer.set(Some(BEARER.as_bytes()), None);
    let session = begin(&world, BEARER).await;
    assert_eq!(names(&world, &session).await, Vec::<String>::new());
}

#[tokio::test]
async fn the_list_is_exactly_the_export_set_in_a_stable_order_with_its_definitions() {
    let world = plain();
    coder(
        &world,
        &[
            export("z_read", "read"),
            export("a_more", "more"),
            export("denied", "write"),
            export("not_there", "nothing"),
            json!({"attachment": "issues", "tool": "read", "name": "not_attached"}),
        ],
    );
    world.cluster.agent("team-b/other", 1, json!({"exports": [export("elsewhere", "read")]}));
    let peer = FakePeer::answering(NOTHING);
    world.serving(&peer, &["read", "more", "write", "hidden"]).await;
    let session = begin(&world, BEARER).await;
    let elsewhere = call(&world, &session, "elsewhere", json!({})).await;
    assert_eq!(elsewhere["error"]["data"]["reason"], "UnknownTool", "not of an allowed namespace");
    for _ in 0..3 {
        let all: Vec<_> = MANAGEMENT.into_iter().chain(["a_more", "z_read"]).collect();
        assert_eq!(names(&world, &session).await, all);
    }
    let text = world
        .send(post(PLATFORM, BEARER, Some(&session), &message(1, "tools/list", json!({}))))
        .await
        .text;
    for name in MANAGEMENT {
        assert!(text.contains(&definition(name)), "{name}: {text}");
    }
    // the server's own bytes but for the name, the number beyond 64 bits included
    let own = r#"{"name":"z_read","description":"about read","inputSchema":{"type":"object"},"x-unknown":12345678901234567890123}"#;
    assert!(text.contains(own), "{text}");
}

#[tokio::test]
async fn the_list_follows_the_policy_the_exports_and_the_server_at_once() {
    let world = plain();
    let peer = FakePeer::answering(NOTHING);
    coder(&world, &[export("x", "read"), export("w", "write")]);
    world.serving(&peer, &["read", "write"]).await;
    let session = begin(&world, BEARER).await;
    let own = async || names(&world, &session).await.split_off(MANAGEMENT.len());
    assert_eq!(own().await, ["x"]);
    world.cluster.agent(
        "team-a/coder",
        10,
        json!({"toolSets": allow_all(), "exports": [export("w", "write")]}),
    );
    assert_eq!(own().await, ["w"]);
    let mode = json!({"toolSets": allow_all(), "session": {"mode": "OnDemand"}, "exports": [export("w", "write")]});
    world.cluster.agent("team-a/coder", 10, mode);
    assert_eq!(own().await, [""; 0], "no Session is sure to be there");
    coder(&world, &[export("x", "read")]);
    assert_eq!(own().await, ["x"]);
    world.cluster.delete();
    until("the host to leave", || world.sessions.is_empty().then_some(())).await;
    assert_eq!(own().await, [""; 0]);
}

#[tokio::test]
async fn the_older_agent_keeps_a_name_and_the_list_agrees_with_the_call() {
    let (world, peer) = (plain(), FakePeer::answering(NOTHING));
    coder(&world, &[export("shared", "read"), export("mine", "read")]);
    world.serving(&peer, &["read"]).await;
    let session = begin(&world, BEARER).await;
    world.cluster.agent("team-a/younger", 11, json!({"exports": [export("shared", "other")]}));
    let own = async || names(&world, &session).await.split_off(MANAGEMENT.len());
    assert_eq!(own().await, ["mine", "shared"]);
    let older = json!({"toolSets": allow_all(), "exports": [export("shared", "other")]});
    world.cluster.agent("team-a/older", 9, older);
    assert_eq!(own().await, ["mine"], "the owner is not in service");
    let refused = call(&world, &session, "shared", json!({})).await;
    assert_eq!(refused["error"]["data"]["reason"], "Rescheduling", "{refused}");
    assert!(peer.calls().is_empty(), "never the other Agent's");
    world.cluster.delete_agent("team-a", "older");
    assert_eq!(own().await, ["mine", "shared"]);
}

#[tokio::test]
async fn a_session_of_the_agents_name_that_is_anothers_serves_no_export() {
    let (world, peer) = (plain(), FakePeer::answering(NOTHING));
    world.cluster.write(|session| session["spec"]["agentRef"]["name"] = json!("writer"));
    world.cluster.agent("team-a/writer", 1, json!({"toolSets": allow_all()}));
    coder(&world, &[export("x", "read")]);
    world.serving(&peer, &["read"]).await;
    let session = begin(&world, BEARER).await;
    assert_eq!(names(&world, &session).await, MANAGEMENT);
    let refused = call(&world, &session, "x", json!({})).await;
    assert_eq!(refused["error"]["data"]["reason"], "Rescheduling");
    assert!(peer.calls().is_empty());
}

// --- notices

#[tokio::test]
async fn a_notice_comes_only_when_the_visible_list_changed() {
    let (world, peer) = (plain(), FakePeer::answering(NOTHING));
    let session = begin(&world, BEARER).await;
    let mut stream = listen(&world, BEARER, &session).await;
    coder(&world, &[export("x", "read")]);
    world.cluster.agent("team-b/other", 1, json!({"exports": [export("y", "read")]}));
    let quiet = Duration::from_millis(200);
    let heard = tokio::time::timeout(quiet, hear(&mut stream, "list_changed")).await;
    assert!(heard.is_err(), "an export that is not in service changes nothing that is seen");
    world.serving(&peer, &["read", "write", "hidden"]).await;
    assert!(hear(&mut stream, "notifications/tools/list_changed").await.is_some());
    assert!(names(&world, &session).await.contains(&"x".to_owned()));
    let sets = |other: &str| {
        json!({"toolSets": [{"attachment": "files", "defaultPermission": "Allow",
            "tools": [{"name": "hidden", "permission": other}]}], "exports": [export("x", "read")]})
    };
    world.cluster.agent("team-a/coder", 10, sets("Deny"));
    world.cluster.agent("team-a/coder", 10, sets("Allow"));
    let heard = tokio::time::timeout(quiet, hear(&mut stream, "list_changed")).await;
    assert!(heard.is_err(), "a tool that is not exported");
    world.cluster.policy(json!([{"attachment": "files", "defaultPermission": "Deny"}]));
    assert!(hear(&mut stream, "list_changed").await.is_some());
    assert_eq!(names(&world, &session).await, MANAGEMENT);
}

#[tokio::test]
async fn many_changes_in_a_short_time_are_one_notice() {
    let (world, peer) = (plain(), FakePeer::answering(NOTHING));
    coder(&world, &[]);
    world.serving(&peer, &["read"]).await;
    let session = begin(&world, BEARER).await;
    let mut stream = listen(&world, BEARER, &session).await;
    let many: Vec<Vec<Value>> =
        (1..=20).map(|n| (0..n).map(|i| export(&format!("x{i}"), "read")).collect()).collect();
    for exports in &many {
        coder(&world, exports);
        // whoever waits for it runs now
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
    }
    let heard = hear(&mut stream, "list_changed").await.unwrap();
    assert_eq!(heard.matches("list_changed").count(), 1);
    assert_eq!(names(&world, &session).await.len(), MANAGEMENT.len() + 20);
    let quiet = tokio::time::timeout(Duration::from_millis(200), hear(&mut stream, "list_changed"));
    assert!(quiet.await.is_err(), "gathered, and told once");
}

// --- tokens, sessions, the end

#[tokio::test]
async fn a_token_that_is_withdrawn_ends_its_streams_at_once_and_no_others() {
    let world = plain();
    world.bearer.set(Some(b"new"), Some(BEARER.as_bytes()));
    let (old, new) = (begin(&world, BEARER).await, begin(&world, "new").await);
    let mut with_old = listen(&world, BEARER, &old).await;
    let mut with_new = listen(&world, "new", &new).await;
    world.bearer.set(Some(b"new"), None);
    assert!(hear(&mut with_old, "never").await.is_none(), "it ends");
    assert_eq!(world.send(get(BEARER, &old)).await.status, StatusCode::UNAUTHORIZED);
    coder(&world, &[export("x", "read")]);
    world.serving(&FakePeer::answering(NOTHING), &["read"]).await;
    assert!(hear(&mut with_new, "list_changed").await.is_some(), "it lives on");
    // the session is the subject's and not the token's
    let again = world.send(post(PLATFORM, "new", Some(&old), &message(1, "ping", json!({})))).await;
    assert_eq!(again.status, StatusCode::OK);
    world.bearer.set(None, None);
    assert!(hear(&mut with_new, "never").await.is_none(), "the Secret is gone");
}

#[tokio::test]
async fn two_sessions_do_not_see_each_other_and_delete_ends_one() {
    let world = plain();
    let (one, two) = (begin(&world, BEARER).await, begin(&world, BEARER).await);
    assert_ne!(one, two);
    let mut stream = listen(&world, BEARER, &one).await;
    let end = |session: &str| {
        let mut request = request("DELETE", PLATFORM, Some(BEARER));
        request.headers_mut().insert("mcp-session-id", HeaderValue::from_str(session).unwrap());
        world.send(request)
    };
    assert_eq!(end(&one).await.status, StatusCode::NO_CONTENT);
    assert!(hear(&mut stream, "never").await.is_none());
    let gone = end(&one).await;
    assert_eq!((gone.status, &*gone.reason()), (StatusCode::NOT_FOUND, "UnknownMcpSession"));
    assert_eq!(world.send(get(BEARER, &one)).await.status, StatusCode::NOT_FOUND);
    assert_eq!(names(&world, &two).await, MANAGEMENT);
}

#[tokio::test]
async fn a_session_of_another_route_or_another_gateway_is_unknown() {
    let world = plain();
    coder(&world, &[]);
    world.serving(&FakePeer::answering(NOTHING), &["read"]).await;
    let (elsewhere, here) = (world.open(MCP).await, begin(&world, BEARER).await);
    let list = message(1, "tools/list", json!({}));
    let second =
        World::exporting((Memory::new(), "inc-2"), Times::default(), None, Namespaces::default());
    second.bearer.set(Some(BEARER.as_bytes()), None);
    for (world, session) in [(&world, &elsewhere), (&second, &here)] {
        for request in [post(PLATFORM, BEARER, Some(session), &list), get(BEARER, session), {
            let mut request = get(BEARER, session);
            *request.method_mut() = "DELETE".parse().unwrap();
            request
        }] {
            let reply = world.send(request).await;
            let expected = (StatusCode::NOT_FOUND, "UnknownMcpSession".to_owned());
            assert_eq!((reply.status, reply.reason()), expected);
        }
    }
    let reply = world.send(post(MCP, TOKEN, Some(&here), &list)).await;
    assert_eq!(reply.status, StatusCode::NOT_FOUND, "nor the other way round");
    assert_eq!(names(&world, &here).await, MANAGEMENT);
}

#[tokio::test]
async fn when_the_gateway_stops_nothing_new_is_taken() {
    let world = plain();
    let session = begin(&world, BEARER).await;
    let mut stream = listen(&world, BEARER, &session).await;
    world.gateway.draining.store(true, Ordering::SeqCst);
    world.gateway.store.end_endpoint(PLATFORM);
    assert!(hear(&mut stream, "never").await.is_none(), "the stream for notices ends");
    let reply = world.send(post(PLATFORM, BEARER, None, &initialize())).await;
    let expected = (StatusCode::SERVICE_UNAVAILABLE, "NotServing".to_owned());
    assert_eq!((reply.status, reply.reason()), expected);
    assert!(reply.headers.contains_key("retry-after"));
    let stranger = world.send(post(PLATFORM, "x", None, &initialize())).await;
    assert_eq!(stranger.status, StatusCode::UNAUTHORIZED, "the bearer still comes first");
}
