//! The chart's admission policies, with the accounts that they speak of.

use crate::server::{ADMIN, GATEWAY, OPERATOR, Server, object};
use awaken_operator::crds;
use http::Method;
use rstest::rstest;
use serde_json::{Value, json};

async fn session(server: &Server) -> Value {
    let made = object("Session", "coder", json!({"agentRef": {"name": "coder"}}));
    let path = format!("/apis/awaken.dev/v1alpha1/namespaces/{}/sessions", server.namespace);
    server.call(OPERATOR, Method::POST, &path, "application/json", Some(&made)).await.ok();
    made
}

const WORDS: &str = "the gateway writes status.receipts and status.activity and nothing else";

fn receipt(generation: i64) -> Value {
    let of = json!({"sessionUid": "s", "attachmentUid": "a", "generation": generation, "incarnation": "i", "epoch": 1});
    json!({"generation": generation, "stage": "Realize", "ref": of, "fingerprint": "sha256:f",
        "verdict": "Done", "at": "2026-01-02T03:04:05Z"})
}

#[tokio::test]
async fn the_gateway_writes_receipts_and_activity_and_nothing_else() {
    let server = Server::new().await;
    let made = session(&server).await;
    let phase = json!({"status": {"phase": "Serving", "lastGeneration": 3, "summary": "1/2"}});
    server.merge(OPERATOR, &made, "/status", &phase).await.ok();
    let receipts = json!({"status": {"receipts": [receipt(1), receipt(2)]}});
    server.merge(GATEWAY, &made, "/status", &receipts).await.ok();
    let pruned = json!({"status": {"receipts": [receipt(2)]}});
    server.merge(GATEWAY, &made, "/status", &pruned).await.ok();

    let activity = json!({"incarnation": "i", "epoch": 1, "idleSince": "2026-01-02T03:04:05Z",
        "at": "2026-01-02T03:14:05Z"});
    let said = json!({"status": {"receipts": [receipt(2)], "activity": activity}});
    server.merge(GATEWAY, &made, "/status", &said).await.ok();
    let taken_back = json!({"status": {"activity": {"idleSince": null}}});
    server.merge(GATEWAY, &made, "/status", &taken_back).await.ok();

    for other in [
        json!({"status": {"phase": "Pending"}}),
        json!({"status": {"summary": null}}),
        json!({"status": {"lastGeneration": 4, "receipts": [receipt(2)]}}),
        json!({"status": {"host": {"gateway": "g", "incarnation": "i", "epoch": 1}}}),
        json!({"status": null}),
    ] {
        server.merge(GATEWAY, &made, "/status", &other).await.refused(WORDS);
    }
}

/// Not a list of today's fields: one that comes later is covered too.
#[tokio::test]
async fn no_other_field_of_the_status_is_the_gateways() {
    let server = Server::new().await;
    let made = session(&server).await;
    let schema = serde_json::to_value(&crds::all()[2].spec.versions[0].schema).unwrap();
    let fields = &schema["openAPIV3Schema"]["properties"]["status"]["properties"];
    let mut seen = 0;
    for field in fields
        .as_object()
        .unwrap()
        .keys()
        .filter(|f| !["receipts", "activity"].contains(&f.as_str()))
    {
        let value = match &**field {
            "observedGeneration" | "lastGeneration" => json!(9),
            "phase" => json!("Pending"),
            "summary" => json!("0/1"),
            "lastHandledReconcileAt" => json!("t1"),
            "host" => json!({"gateway": "g", "incarnation": "i", "epoch": 1}),
            "environment" => {
                json!({"revision": 1, "spec": {"image": "a"}, "since": "2026-01-02T03:04:05Z"})
            }
            "conditions" => {
                json!([{"type": "Ready", "status": "True", "reason": "Ready", "message": "",
                "lastTransitionTime": "2026-01-02T03:04:05Z"}])
            }
            "attachments" => json!([crate::size::generation(1, "a", "m")]),
            other => panic!("the status has a new field {other}: add a value for it here"),
        };
        let patch = json!({"status": {field: value}});
        let said = server.merge(GATEWAY, &made, "/status", &patch).await;
        said.refused(WORDS);
        server.merge(OPERATOR, &made, "/status", &patch).await.ok();
        seen += 1;
    }
    assert_eq!(seen, 9);
}

#[rstest]
#[case::operator(OPERATOR)]
#[case::administrator(ADMIN)]
#[tokio::test]
async fn nobody_else_writes_receipts_or_activity(#[case] account: &str) {
    let server = Server::new().await;
    let made = session(&server).await;
    let words = "status.receipts is written by the gateway alone";
    let forged = json!({"status": {"receipts": [receipt(1)]}});
    server.merge(account, &made, "/status", &forged).await.refused(words);
    server.merge(GATEWAY, &made, "/status", &forged).await.ok();
    for other in [json!([]), json!(null), json!([receipt(2)])] {
        let patch = json!({"status": {"receipts": other}});
        server.merge(account, &made, "/status", &patch).await.refused(words);
    }
    let words = "status.activity is written by the gateway alone";
    let activity = json!({"incarnation": "i", "epoch": 1, "at": "2026-01-02T03:14:05Z"});
    let forged = json!({"status": {"activity": activity}});
    server.merge(account, &made, "/status", &forged).await.refused(words);
    server.merge(GATEWAY, &made, "/status", &forged).await.ok();
    for other in [json!(null), json!({"idleSince": "2026-01-02T03:04:05Z"})] {
        let patch = json!({"status": {"activity": other}});
        server.merge(account, &made, "/status", &patch).await.refused(words);
    }
    server.merge(account, &made, "/status", &json!({"status": {"phase": "Serving"}})).await.ok();
}

#[tokio::test]
async fn the_gateway_replaces_a_sessions_set_and_nothing_else() {
    let server = Server::new().await;
    let mut made = session(&server).await;
    let patch = json!({"metadata": {"labels": {"a": "b"}}});
    server.merge(GATEWAY, &made, "", &patch).await.refused("cannot patch resource \"sessions\"");
    let own = json!({"finalizers": ["awaken.dev/drain"], "labels": {"of": "user"}, "annotations": {"n": "1"}});
    made = server.merge(OPERATOR, &made, "", &json!({"metadata": own})).await.ok();
    let path = server.path(&made);
    let put = async |object: &Value| {
        server.call(GATEWAY, Method::PUT, &path, "application/json", Some(object)).await
    };
    made["spec"]["attachments"] =
        json!([{"name": "mine", "http": {"url": "https://h.example.com/"}}]);
    made["spec"]["toolSets"] = json!([{"attachment": "mine"}]);
    let made = put(&made).await.ok();
    let words =
        "the gateway changes spec.attachments and spec.toolSets of a Session and nothing else";
    for (field, value) in [
        ("finalizers", json!([])),
        ("labels", json!({})),
        ("annotations", json!({"n": "2"})),
        ("ownerReferences", json!([owner("v1", "ConfigMap", "u-1")])),
    ] {
        let mut other = made.clone();
        other["metadata"][field] = value;
        put(&other).await.refused(words);
    }
    // It opens one, bare of everything that is not the caller's to say.
    let all = format!("/apis/awaken.dev/v1alpha1/namespaces/{}/sessions", server.namespace);
    let mut fresh = object("Session", "fresh", json!({"agentRef": {"name": "coder"}}));
    fresh["metadata"]["labels"] = json!({"a": "b"});
    let create = async |object: &Value| {
        server.call(GATEWAY, Method::POST, &all, "application/json", Some(object)).await
    };
    create(&fresh).await.refused(words);
    fresh["metadata"].as_object_mut().unwrap().remove("labels");
    create(&fresh).await.ok();
}

/// An owner of kind Agent, or of another kind.
fn owner(version: &str, kind: &str, uid: &str) -> Value {
    json!({"apiVersion": version, "kind": kind, "name": "coder", "uid": uid})
}

#[tokio::test]
async fn users_make_sessions_and_close_them() {
    let server = Server::new().await;
    let made = object("Session", "mine", json!({"agentRef": {"name": "coder"}}));
    server.create(&made).await.ok();
    server.apply(&made).await.ok();
    let spec = json!({"spec": {"agentRef": {"name": "other"}}});
    server.merge(ADMIN, &made, "", &spec).await.refused("agentRef is immutable");
    let metadata = json!({"metadata": {"annotations": {"a": "b"}}});
    server.merge(ADMIN, &made, "", &metadata).await.ok();
    server.call(ADMIN, Method::DELETE, &server.path(&made), "application/json", None).await.ok();
    // Any name that an object can have.
    for name in ["0.x-y".to_owned(), format!("{}.{}", "a".repeat(190), "b".repeat(62))] {
        let made = object("Session", &name, json!({"agentRef": {"name": "coder"}}));
        server.create(&made).await.ok();
    }
    let unnamed = json!({
        "apiVersion": "awaken.dev/v1alpha1", "kind": "Session",
        "metadata": {"generateName": "coder-"}, "spec": {"agentRef": {"name": "coder"}},
    });
    let path = format!("/apis/awaken.dev/v1alpha1/namespaces/{}/sessions", server.namespace);
    let stored = server.post(&path, &unnamed).await.ok();
    assert!(stored["metadata"]["name"].as_str().unwrap().starts_with("coder-"));
}

#[tokio::test]
async fn nobody_but_the_operator_says_that_an_agent_owns_a_session() {
    let server = Server::new().await;
    let words = "an Agent owns the Session that the operator makes for it, and no other";
    let owned = |name: &str, owners: Value| {
        let mut made = object("Session", name, json!({"agentRef": {"name": "coder"}}));
        made["metadata"]["ownerReferences"] = owners;
        made
    };
    let agent = owner("awaken.dev/v1alpha1", "Agent", "u-1");
    server.create(&owned("forged", json!([agent]))).await.refused(words);
    server
        .create(&owned("later", json!([owner("awaken.dev/v2", "Agent", "u")])))
        .await
        .refused(words);
    // Another's Agent, and owners of other kinds, are nothing to us.
    let others = json!([owner("v1", "ConfigMap", "u-2"), owner("other.dev/v1", "Agent", "u-3")]);
    let made = owned("others", others.clone());
    server.create(&made).await.ok();
    let mut all = others.as_array().unwrap().clone();
    all.push(agent.clone());
    let patch = json!({"metadata": {"ownerReferences": all}});
    server.merge(ADMIN, &made, "", &patch).await.refused(words);

    let made = owned("coder", json!([agent]));
    let path = format!("/apis/awaken.dev/v1alpha1/namespaces/{}/sessions", server.namespace);
    server.call(OPERATOR, Method::POST, &path, "application/json", Some(&made)).await.ok();
    // Metadata may be touched, an owner taken out, and the object deleted: a stuck finalizer can be
    // taken out by hand.
    let metadata = json!({"metadata": {"annotations": {"a": "b"}, "finalizers": null}});
    server.merge(ADMIN, &made, "", &metadata).await.ok();
    server.merge(ADMIN, &made, "", &json!({"metadata": {"ownerReferences": null}})).await.ok();
    let again = json!({"metadata": {"ownerReferences": [agent]}});
    server.merge(ADMIN, &made, "", &again).await.refused(words);
    server.call(ADMIN, Method::DELETE, &server.path(&made), "application/json", None).await.ok();
}

#[tokio::test]
async fn the_operator_creates_its_two_keys_and_no_other_secret() {
    let server = Server::new().await;
    let create = async |name: &str, namespace: &str| {
        let path = format!("/api/v1/namespaces/{namespace}/secrets?dryRun=All");
        let secret = json!({"metadata": {"name": name}});
        server.call(OPERATOR, Method::POST, &path, "application/json", Some(&secret)).await
    };
    for name in ["awaken-link-keys", "awaken-source-key"] {
        let said = create(name, "awaken-system").await;
        assert!(said.code == 201 || said.body["reason"] == "AlreadyExists", "{}", said.body);
        create(name, &server.namespace).await.refused("cannot create resource \"secrets\"");
    }
    create("another", "awaken-system")
        .await
        .refused("creates the installation's two keys and no other");
}

fn words(words: Value) -> Value {
    json!({"agentRef": {"name": "a"}, "sandboxStdio": {"command": "server", "args": words}})
}

fn env(name: &str, value: &str) -> Value {
    json!({"agentRef": {"name": "a"}, "sandboxStdio": {"command": "server", "env": [{"name": name, "value": value}]}})
}

/// The same as an attachment, and as the second of those that a Session brings.
fn both(mut spec: Value) -> [Value; 2] {
    let attachment = object("McpAttachment", "files", spec.clone());
    spec.as_object_mut().unwrap().remove("agentRef");
    spec["name"] = json!("files");
    let first = json!({"name": "first", "http": {"url": "https://mcp.example.com/"}});
    let session = json!({"agentRef": {"name": "a"}, "attachments": [first, spec],
        "toolSets": [{"attachment": "first"}, {"attachment": "files"}]});
    [attachment, object("Session", "files", session)]
}

/// A made-up value of a token's shape; put together here so that no file holds the whole.
fn shaped(head: &str) -> String {
    format!("{head}{}", "a1B2c3D4e5".repeat(4))
}

#[rstest]
#[case::openai(words(json!([shaped("sk-")])), "command, args or url")]
#[case::github(words(json!(["-x", shaped("ghp_")])), "command, args or url")]
#[case::slack(words(json!([shaped("xoxb-")])), "command, args or url")]
#[case::slack_app(words(json!([shaped("xapp-")])), "command, args or url")]
#[case::stripe(words(json!([shaped("rk_live_")])), "command, args or url")]
#[case::in_a_url(words(json!([format!("https://{}@github.com/o/r", shaped("ghp_"))])), "command, args or url")]
#[case::aws(words(json!([format!("AKIA{}", "ABCDEFGH12345678")])), "command, args or url")]
#[case::jwt(words(json!([format!("{}.{}", shaped("eyJ"), shaped("eyJ"))])), "command, args or url")]
#[case::flag(words(json!(["--token=abcdef123"])), "command, args or url")]
#[case::flag_and_value(words(json!(["--api-key", "abcdef123"])), "command, args or url")]
#[case::last_flag_and_value(words(json!(["a", "b", "--db-password", "hunter22"])), "command, args or url")]
#[case::dsn(words(json!(["postgres://user:hunter2@db/x"])), "command, args or url")]
#[case::dsn_keywords(words(json!(["host=db password=hunter22"])), "command, args or url")]
#[case::header(words(json!(["-H", "Authorization: Bearer abcdef123"])), "command, args or url")]
#[case::command(json!({"agentRef": {"name": "a"}, "sandboxStdio": {"command": shaped("ghp_")}}), "command, args or url")]
#[case::url(json!({"agentRef": {"name": "a"}, "http": {"url": "https://mcp.example.com/?api_key=abcdef123"}}), "command, args or url")]
#[case::env_by_name(env("DB_PASSWORD", "hunter22"), "env DB_PASSWORD holds")]
#[case::env_token(env("GITHUB_TOKEN", "abcdef"), "env GITHUB_TOKEN holds")]
#[case::env_by_value(env("SETTING", &shaped("sk-")), "env SETTING holds")]
#[case::env_key(env("SIGNING_KEY", &"0123456789abcdef".repeat(2)), "env SIGNING_KEY holds")]
#[case::env_dsn(env("DATABASE", "postgres://user:hunter2@db/x"), "env DATABASE holds")]
#[tokio::test]
async fn what_looks_like_a_secret_is_warned_about_and_taken(
    #[case] spec: Value,
    #[case] words: &str,
) {
    let server = Server::new().await;
    for made in both(spec) {
        let said = server.create(&made).await;
        assert_eq!(said.code, 201, "{}", said.body);
        let warned = said.warnings.join("\n");
        assert!(warned.contains(words) && warned.contains("put it into a Secret"), "{warned:?}");
        for value in ["hunter2", "abcdef", "a1B2c3"] {
            assert!(!warned.contains(value), "the value is repeated: {warned}");
        }
    }
}

#[rstest]
#[case::plain(words(json!(["--root", "/workspace", "--max-tokens=4096", "--verbose"])))]
#[case::token_file(words(json!(["--token-file=/run/token", "--password-file", "/run/password"])))]
#[case::flag_then_flag(words(json!(["--no-token", "--verbose"])))]
#[case::hyphens(words(json!(["task-runner-with-a-long-name-indeed", "disk-usage-of-the-machine"])))]
#[case::url(words(json!(["https://example.com/a:b@c"])))]
#[case::env(env("LOG_LEVEL", "information"))]
#[case::env_path(env("TOKEN", "/run/secrets/token"))]
#[case::env_number(env("MAX_TOKEN", "409600"))]
#[case::env_file(env("TOKEN_FILE", "/run/token"))]
#[case::env_key_name(env("PRIMARY_KEY", "id"))]
#[tokio::test]
async fn ordinary_values_are_not_warned_about(#[case] spec: Value) {
    let server = Server::new().await;
    for made in both(spec) {
        let said = server.create(&made).await;
        assert_eq!(said.code, 201, "{}", said.body);
        assert_eq!(said.warnings, Vec::<String>::new());
    }
}
