//! What is wrong says so, each with its own reason, within seconds, and touches nothing else.

use crate::support::{
    LIMIT, Server, Team,
    objects::{condition, object, shown, stub_image},
    team::{AGENT, agent, called, http, stdio},
    until,
};
use serde_json::{Value, json};
use std::time::Duration;

/// Within seconds, on a machine that runs a whole cluster on two cores.
const SECONDS: Duration = Duration::from_secs(30);

/// A good attachment beside the bad ones, to be called at the end.
async fn neighbour(team: &Team) {
    team.stdio("good", json!({"name": "good"})).await;
}

async fn neighbour_is_untouched(team: &Team) {
    let good = team.ready("good").await;
    assert_eq!(good["status"]["activeGeneration"], 1, "{}", shown(&good));
    let mut client = team.client_of("mcp/good").await;
    called(&mut client, "echo", json!({})).await.unwrap();
}

/// The message says what to do, and the status follows kstatus.
fn is_for_people(ready: &Value) {
    let message = ready["message"].as_str().unwrap_or_default();
    assert!(message.len() > 10, "a message for people: {ready}");
    assert_eq!(ready["status"], "False");
}

#[tokio::test]
async fn http_servers_that_are_wrong_each_have_their_reason() {
    let team = Team::new("bad-http").await;
    let cases = [
        ("refuses", json!({"http": {"bearer": "another"}}), "Unauthorized"),
        ("forbids", json!({"http": {"bearer": "x", "refuse_with": 403}}), "Unauthorized"),
        ("page", json!({"http": {"html": true}}), "NotAnMcpServer"),
        ("json", json!({"http": {"body": "{\"hello\": 1}"}}), "NotAnMcpServer"),
        (
            "moved",
            json!({"http": {"redirect": "http://refuses:8000/mcp", "status": 307}}),
            "Redirected",
        ),
        ("down", json!({"http": {"status": 503}}), "ServerUnavailable"),
        ("ancient", json!({"handshake": {"version": "1999-01-01"}}), "UnsupportedProtocolVersion"),
        ("listless", json!({"list_result": "{\"tools\": 7}"}), "InvalidToolList"),
    ];
    let mut names = vec!["good"];
    neighbour(&team).await;
    for (name, script, _) in &cases {
        names.push(name);
        let server = Server::start(&team, name, script.clone()).await;
        team.http(name, server.url()).await;
    }
    names.extend(["nobody", "nowhere", "inside", "late"]);
    team.http("nobody", &format!("http://nobody.{}.svc.cluster.local/mcp", team.name)).await;
    team.apply(object("Service", "nowhere", json!({"spec": {"ports": [{"port": 80}]}}))).await;
    team.http("nowhere", &format!("http://nowhere.{}.svc.cluster.local/mcp", team.name)).await;
    // a name that resolves to what is never connected to
    team.http("inside", "https://kubernetes.default.svc.cluster.local/mcp").await;
    let late = Server::start(&team, "late", json!({"handshake": {"delays_ms": [30_000]}})).await;
    let mut slow = http("late", AGENT, json!({"url": late.url()}));
    slow["spec"]["limits"] = json!({"startupTimeout": "4s"});
    team.apply(slow).await;
    team.agent(&names).await;

    for (name, _, reason) in &cases {
        is_for_people(&team.refused(name, reason, SECONDS).await);
    }
    is_for_people(&team.refused("nobody", "NameNotResolved", SECONDS).await);
    is_for_people(&team.refused("nowhere", "ConnectFailed", SECONDS).await);
    is_for_people(&team.refused("inside", "TargetForbidden", SECONDS).await);
    let late = team.refused("late", "StartupTimeout", SECONDS).await;
    assert!(late["message"].as_str().unwrap().contains("HandshakeTimeout: initialize"), "{late}");
    let named = team.refused("ancient", "UnsupportedProtocolVersion", SECONDS).await;
    assert!(named["message"].as_str().unwrap().contains("1999-01-01"), "{named}");
    neighbour_is_untouched(&team).await;

    // a cause that is gone is noticed: retryable ones by themselves, others on request
    let mended = Server::start(&team, "nobody", json!({})).await;
    assert!(mended.direct().initialize().await.is_ok());
    team.http("nobody", mended.url()).await;
    team.ready("nobody").await;
    team.end().await;
}

#[tokio::test]
async fn pods_that_are_wrong_each_have_their_reason() {
    let team = Team::new("bad-pods").await;
    neighbour(&team).await;
    team.agent(&[
        "good",
        "missing-command",
        "dies",
        "needs-env",
        "panics",
        "silent",
        "no-protocol",
    ])
    .await;
    team.apply(object(
        "McpAttachment",
        "missing-command",
        json!({"spec": {
        "agentRef": {"name": AGENT}, "sandboxStdio": {"command": "no-such-program"}}}),
    ))
    .await;
    let dies =
        json!({"handshake": {"mode": "exit", "exit_code": 3, "stderr": "bad flag --frobnicate"}});
    team.stdio("dies", dies).await;
    team.stdio("needs-env", json!({"need_env": "API_KEY"})).await;
    team.stdio("panics", json!({"panic": true})).await;
    let mut silent = stdio("silent", AGENT, json!({"handshake": {"mode": "silent"}}));
    silent["spec"]["limits"] = json!({"startupTimeout": "5s"});
    team.apply(silent).await;
    let mut noisy = stdio("no-protocol", AGENT, json!({"handshake": {"mode": "garbage"}}));
    noisy["spec"]["limits"] = json!({"startupTimeout": "5s"});
    team.apply(noisy).await;
    // the image is the Agent's
    team.apply(agent(
        "imageless",
        "localhost/no-such-image:1",
        vec![json!({"attachment": "no-image", "defaultPermission": "Allow"})],
    ))
    .await;
    team.apply(stdio("no-image", "imageless", json!({}))).await;

    is_for_people(&team.refused("no-image", "ImagePullFailed", SECONDS).await);
    let absent = team.refused("missing-command", "CommandNotFound", SECONDS).await;
    assert!(absent["message"].as_str().unwrap().contains("no-such-program"), "{absent}");
    for (name, words) in [
        ("dies", ["code 3", "bad flag --frobnicate"]),
        ("needs-env", ["code 2", "API_KEY"]),
        ("panics", ["code 101", "the script asks for a panic"]),
    ] {
        let ready = team.refused(name, "ServerExited", SECONDS).await;
        for word in words {
            assert!(ready["message"].as_str().unwrap().contains(word), "{name}: {ready}");
        }
    }
    is_for_people(&team.refused("silent", "StartupTimeout", SECONDS).await);
    is_for_people(&team.refused("no-protocol", "StartupTimeout", SECONDS).await);
    neighbour_is_untouched(&team).await;
    team.end().await;
}

#[tokio::test]
async fn missing_partners_are_named_and_repaired() {
    let team = Team::new("partners").await;
    neighbour(&team).await;
    let server = Server::start(&team, "remote", json!({"http": {"bearer": "right"}})).await;
    let with_secret = |secret: &str| {
        json!({"url": server.url(), "insecureCredential": true,
            "credential": {"secretKeyRef": {"name": secret, "key": "token"}}})
    };
    team.apply(object("Secret", "keyless", json!({"stringData": {"other": "x"}}))).await;
    team.apply(http("no-agent", "nobody", json!({"url": server.url()}))).await;
    team.apply(http("no-secret", AGENT, with_secret("absent"))).await;
    team.apply(http("no-key", AGENT, with_secret("keyless"))).await;
    team.http("no-toolset", &format!("{}?n=1", server.url())).await;
    team.agent(&["good", "no-secret", "no-key", "dangling"]).await;

    let orphan = team.refused("no-agent", "AgentNotFound", SECONDS).await;
    assert!(orphan["message"].as_str().unwrap().contains("nobody"), "{orphan}");
    let secret = team.refused("no-secret", "SecretNotFound", SECONDS).await;
    assert!(secret["message"].as_str().unwrap().contains("absent"), "{secret}");
    let key = team.refused("no-key", "SecretKeyNotFound", SECONDS).await;
    let message = key["message"].as_str().unwrap();
    assert!(message.contains("keyless") && message.contains("token"), "{key}");
    team.refused("no-toolset", "ToolSetMissing", SECONDS).await;
    let refused = team.get("McpAttachment", "no-toolset").await.unwrap();
    assert_eq!(condition(&refused, "Accepted")["status"], "False", "{}", shown(&refused));
    until("the Agent names the dangling ToolSet", SECONDS, || async {
        let found = team.get("Agent", AGENT).await.ok_or("none")?;
        let accepted = condition(&found, "Accepted");
        let named = accepted["message"].as_str().is_some_and(|m| m.contains("dangling"));
        let ok = accepted["status"] == "False" && named;
        ok.then_some(()).ok_or_else(|| shown(&found))
    })
    .await;
    // whole pairs serve meanwhile
    neighbour_is_untouched(&team).await;

    team.apply(object("Secret", "absent", json!({"stringData": {"token": "right"}}))).await;
    team.apply(object(
        "Secret",
        "keyless",
        json!({"stringData": {"other": "x", "token": "right"}}),
    ))
    .await;
    server.patch(json!({})).await;
    team.ready_within("no-secret", SECONDS).await;
    // the two have the same target but for the Secret
    team.ready_within("no-key", SECONDS).await;
    team.end().await;
}

#[tokio::test]
async fn literal_addresses_and_duplicates_are_not_accepted() {
    let team = Team::new("literal").await;
    neighbour(&team).await;
    let forbidden = [
        ("loopback", "http://127.0.0.1/mcp"),
        ("short", "http://127.1/mcp"),
        ("metadata", "http://169.254.169.254/mcp"),
        ("mapped", "http://[::ffff:a9fe:a9fe]/mcp"),
        ("decimal", "http://2852039166/mcp"),
        ("localhost", "http://localhost./mcp"),
    ];
    let mut names: Vec<_> = forbidden.iter().map(|(n, _)| *n).collect();
    names.extend(["good", "second", "third"]);
    team.agent(&names).await;
    for (name, url) in forbidden {
        team.http(name, url).await;
    }
    team.ready("good").await;
    // the same target as `good`, and the same name
    team.stdio("second", json!({"name": "good"})).await;
    let mut third = stdio("third", AGENT, json!({"name": "third"}));
    third["spec"]["serverName"] = json!("good");
    team.apply(third).await;
    for (name, _) in forbidden {
        is_for_people(&team.refused(name, "TargetForbidden", SECONDS).await);
        let found = team.get("McpAttachment", name).await.unwrap();
        assert_eq!(condition(&found, "Accepted")["status"], "False", "{}", shown(&found));
    }
    team.refused("second", "DuplicateTarget", SECONDS).await;
    team.refused("third", "DuplicateServerName", SECONDS).await;
    neighbour_is_untouched(&team).await;
    // the older goes, the newer takes its place
    team.delete("McpAttachment", "good").await;
    team.ready("second").await;
    team.ready("third").await;
    team.end().await;
}

#[tokio::test]
async fn a_value_that_looks_like_a_secret_gets_a_warning_and_an_event() {
    let team = Team::new("suspicious").await;
    let looks = "ghp_0123456789abcdefghijABCDEFGHIJ012345";
    let mut object = stdio("leaky", AGENT, json!({}));
    object["spec"]["sandboxStdio"]["env"] = json!([{"name": "GITHUB_TOKEN", "value": looks}]);
    team.agent(&["leaky"]).await;
    let out = tokio::process::Command::new("sh")
        .args(["-c", "printf %s \"$OBJECT\" | kubectl apply -n \"$NS\" -f -"])
        .env("OBJECT", object.to_string())
        .env("NS", &team.name)
        .env("KUBECONFIG", crate::support::cluster::kubeconfig())
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    assert!(said.contains("Warning") && said.contains("secretEnv"), "{said}");
    assert!(!said.contains(looks), "the warning does not repeat it");
    let event = until("an event SuspiciousValue", LIMIT, || async {
        let all = team.events("leaky").await;
        all.iter().find(|e| e["reason"] == "SuspiciousValue").cloned().ok_or(format!("{all:#?}"))
    })
    .await;
    assert!(!event.to_string().contains(looks), "{event}");
    team.ready("leaky").await;
    team.end().await;
}

#[tokio::test]
async fn an_image_that_cannot_be_scheduled_or_is_over_quota_says_so() {
    let team = Team::new("quota").await;
    let mut big = agent(
        "big",
        &stub_image(),
        vec![json!({"attachment": "huge", "defaultPermission": "Allow"})],
    );
    big["spec"]["environment"]["resources"] =
        json!({"requests": {"cpu": "1000"}, "limits": {"cpu": "1000"}});
    team.apply(big).await;
    team.apply(stdio("huge", "big", json!({}))).await;
    let ready = team.refused("huge", "Unschedulable", Duration::from_secs(30)).await;
    assert!(ready["message"].as_str().unwrap().to_lowercase().contains("cpu"), "{ready}");
    team.delete("McpAttachment", "huge").await;
    team.apply(object("ResourceQuota", "none", json!({"spec": {"hard": {"pods": "0"}}}))).await;
    team.stdio("held", json!({})).await;
    team.agent(&["held"]).await;
    let ready = team.refused("held", "QuotaExceeded", Duration::from_secs(30)).await;
    assert!(ready["message"].as_str().unwrap().contains("none"), "{ready}");
    team.delete("ResourceQuota", "none").await;
    team.ready_within("held", LIMIT * 2).await;
    team.end().await;
}
