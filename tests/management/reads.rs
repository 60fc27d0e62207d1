//! What the reading tools show.

use crate::{
    apiserver::text,
    desk::{Desk, agent, attachment, entry, ready, secret, session},
};
use awaken_operator::{
    domain::{
        gate::{Permission, ToolSet},
        identity::SessionKey,
        lifecycle::Generation,
        redact::Redactor,
    },
    gateway::{
        handle::{Fresh, Handle, Renew, Surface},
        hosted::Hosted,
    },
    mcp::{
        Answer as PeerAnswer, Outgoing, Peer, PeerError, RawJson,
        legacy::{Tool, ToolListing},
    },
};
use futures::future::BoxFuture;
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};
use tokio::sync::watch;

fn names(list: &Value) -> Vec<String> {
    let rows = list.as_array().unwrap();
    rows.iter().map(|r| format!("{}/{}", text(r, "/namespace"), text(r, "/name"))).collect()
}

#[tokio::test(start_paused = true)]
async fn agents_of_the_open_namespaces_and_no_other() {
    let desk = Desk::new();
    desk.api.apply("agents", agent("team-b", "writer", "OnDemand"));
    desk.api.apply("agents", agent("team-a", "coder", "Standing"));
    desk.api.apply("agents", agent("team-c", "hidden", "Standing"));
    desk.api.set_status("agents", "team-a", "coder", ready(true, "Ready", "All serve.", 1));
    let answer = desk.call("agents_list", json!({})).await;
    assert!(answer.text.contains("- team-a/coder (Standing): Ready, Ready: All serve.\n"));
    assert!(!answer.text.contains("hidden"));
    let list = answer.good();
    assert_eq!(names(&list["agents"]), ["team-a/coder", "team-b/writer"]);
    assert_eq!(list["agents"][0]["health"]["ready"], true);
    assert_eq!(list["agents"][1]["sessionMode"], "OnDemand");
    assert_eq!(list["page"], json!({"more": false}));
    let one = desk.call("agents_list", json!({"namespace": "team-b"})).await.good();
    assert_eq!(names(&one["agents"]), ["team-b/writer"]);
}

#[tokio::test(start_paused = true)]
async fn pages_walk_over_namespaces_without_gap_or_repetition() {
    let desk = Desk::new();
    let mut expected = vec![];
    for namespace in ["team-a", "team-b"] {
        for i in 0..7 {
            desk.api.apply("agents", agent(namespace, &format!("a{i}"), "Standing"));
            expected.push(format!("{namespace}/a{i}"));
        }
    }
    for limit in [1, 3, 7, 14, 200] {
        let (mut seen, mut from) = (vec![], None::<String>);
        loop {
            let mut arguments = json!({"limit": limit});
            if let Some(from) = &from {
                arguments["continue"] = json!(from);
            }
            let answer = desk.call("agents_list", arguments).await;
            let told = answer.text.contains("There is more");
            let list = answer.good();
            let page = names(&list["agents"]);
            assert!(page.len() <= limit);
            seen.extend(page);
            from = list["page"]["continue"].as_str().map(str::to_owned);
            assert_eq!((list["page"]["more"] == true, told), (from.is_some(), from.is_some()));
            if from.is_none() {
                break;
            }
        }
        assert_eq!(seen, expected, "{limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_filter_by_agent_leaves_the_others_out() {
    let desk = Desk::new();
    for i in 0..60 {
        let of = if i % 20 == 7 { "coder" } else { "other" };
        desk.api.apply("mcpattachments", attachment("team-a", &format!("m{i:02}"), of));
        desk.api.apply("sessions", session("team-a", &format!("s{i:02}"), of));
    }
    let list = desk.call("attachments_list", json!({"agent": "coder"})).await.good();
    assert_eq!(names(&list["attachments"]), ["team-a/m07", "team-a/m27", "team-a/m47"]);
    let list = desk.call("sessions_list", json!({"agent": "coder", "limit": 2})).await.good();
    assert_eq!(names(&list["sessions"]), ["team-a/s07", "team-a/s27"]);
    assert_eq!(list["page"]["more"], true);
}

#[tokio::test(start_paused = true)]
async fn an_agent_in_full() {
    let desk = Desk::new();
    let mut coder = agent("team-a", "coder", "Standing");
    coder["spec"]["exports"] =
        json!([{"attachment": "files", "tool": "read", "name": "coder_read"}]);
    desk.api.apply("agents", coder);
    desk.api.apply("mcpattachments", attachment("team-a", "files", "coder"));
    desk.api.apply("mcpattachments", attachment("team-a", "foreign", "other"));
    let message = "The Secret files-token does not exist.";
    let status = ready(false, "SecretNotFound", message, 1);
    desk.api.set_status("mcpattachments", "team-a", "files", status);
    let answer = desk.call("agent_get", json!({"namespace": "team-a", "name": "coder"})).await;
    assert!(answer.text.contains("ToolSet files: read Allow; other tools Deny"), "{}", answer.text);
    assert!(answer.text.contains("Export coder_read: files's read"), "{}", answer.text);
    let coder = answer.good()["agent"].clone();
    assert_eq!(coder["health"]["ready"], false);
    assert_eq!(coder["health"]["message"], "The operator has not looked at it yet.");
    assert_eq!(
        coder["attachments"],
        json!([{"name": "files", "ready": false, "message": format!("SecretNotFound: {message}")}])
    );
    assert_eq!(coder["exports"][0]["name"], "coder_read");
    assert_eq!(coder["image"], "tools:1");
}

#[tokio::test(start_paused = true)]
async fn an_attachment_tells_cause_and_next_step() {
    let desk = Desk::new();
    desk.api.apply("secrets", secret("team-a", "files-token"));
    desk.api.apply("mcpattachments", attachment("team-a", "files", "coder"));
    let uid = text(&desk.api.get("mcpattachments", "team-a", "files").unwrap(), "/metadata/uid");
    let mut status = ready(false, "CommandNotFound", "mcp-files is not in tools:1.", 1);
    status["desiredGeneration"] = json!(3);
    status["activeGeneration"] = json!(2);
    status["toolCount"] = json!(5);
    desk.api.set_status("mcpattachments", "team-a", "files", status);
    desk.api.apply("sessions", session("team-a", "coder", "coder"));
    let entries = [entry("files", &uid, 2, "Active"), entry("files", &uid, 3, "Realizing")];
    let others = entry("files", "uid-of-an-older-one", 1, "Draining");
    let status = json!({"lastGeneration": 3, "attachments": [entries[0], entries[1], others]});
    desk.api.set_status("sessions", "team-a", "coder", status);
    let answer = desk.call("attachment_get", json!({"namespace": "team-a", "name": "files"})).await;
    for line in [
        "McpAttachment team-a/files: not Ready. CommandNotFound: mcp-files is not in tools:1.\n",
        "Next step: Check spec.sandboxStdio.command against the image.\n",
        "Generation asked for: 3; serving: 2\n",
        "Tools: 5\n",
    ] {
        assert!(answer.text.contains(line), "`{line}` is not in\n{}", answer.text);
    }
    let files = answer.good()["attachment"].clone();
    let generations: Vec<_> = files["generations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|g| (g["generation"].as_i64().unwrap(), text(g, "/state")))
        .collect();
    assert_eq!(generations, [(3, "Realizing".to_owned()), (2, "Active".to_owned())]);
    assert_eq!(files["spec"]["http"]["credential"]["secretKeyRef"]["name"], "files-token");
    assert_eq!(files["health"]["stalled"], true);
    assert_eq!(files.get("tools"), None);
}

/// A server that is never asked.
struct Mute(watch::Sender<Option<PeerError>>);

impl Peer for Mute {
    fn request(&self, _: Outgoing) -> BoxFuture<'_, Result<PeerAnswer, PeerError>> {
        Box::pin(std::future::pending())
    }

    fn notify<'a>(
        &'a self,
        _: &'static str,
        _: Option<RawJson>,
    ) -> BoxFuture<'a, Result<(), PeerError>> {
        Box::pin(async { Ok(()) })
    }

    fn negotiated(&self, _: &str) {}

    fn closed(&self) -> watch::Receiver<Option<PeerError>> {
        self.0.subscribe()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

struct Never;

impl Renew for Never {
    fn renew(&self) -> BoxFuture<'_, Option<Fresh>> {
        Box::pin(async { None })
    }
}

/// A Session that serves the attachment with these tools; `read` is allowed.
fn serve(desk: &Desk, name: &str, attachment: &str, uid: &str, tools: &[String]) {
    let policy = ToolSet {
        default: Permission::Deny,
        tools: BTreeMap::from([("read".to_owned(), Permission::Allow)]),
    };
    let policies = BTreeMap::from([(attachment.to_owned(), Arc::new(policy))]);
    let key = SessionKey { namespace: "team-a".to_owned(), name: name.to_owned() };
    let hosted = Hosted::new(key, "uid-session".to_owned(), 1, Arc::new(policies.into()));
    let generation: Generation =
        serde_json::from_value(entry(attachment, uid, 2, "Active")).unwrap();
    let tool = |name: &String| Tool {
        name: name.clone(),
        definition: RawJson::of(&json!({"name": name, "inputSchema": {"type": "object"}})).unwrap(),
    };
    let listing = ToolListing { tools: tools.iter().map(tool).collect(), ..ToolListing::default() };
    let surface = Surface::new(attachment, listing);
    let peer = Arc::new(Mute(watch::Sender::new(None)));
    let handle = Handle::new(&generation, peer, surface, Redactor::default(), Arc::new(Never));
    hosted.catalogs.swap(&[Arc::new(handle)], &[], vec![]);
    desk.sessions.put(Arc::new(hosted));
}

#[tokio::test(start_paused = true)]
async fn an_attachment_that_is_served_here_shows_its_tools_and_the_policy() {
    let desk = Desk::new();
    desk.api.apply("mcpattachments", attachment("team-a", "files", "coder"));
    let uid = text(&desk.api.get("mcpattachments", "team-a", "files").unwrap(), "/metadata/uid");
    desk.api.apply("sessions", session("team-a", "coder", "coder"));
    serve(&desk, "coder", "files", &uid, &["read".to_owned(), "write".to_owned()]);
    let answer = desk.call("attachment_get", json!({"namespace": "team-a", "name": "files"})).await;
    assert!(answer.text.contains("Tools (2): read Allow, write Deny\n"), "{}", answer.text);
    let tools = answer.good()["attachment"]["tools"].clone();
    let expected =
        json!([{"name": "read", "permission": "Allow"}, {"name": "write", "permission": "Deny"}]);
    assert_eq!(tools, expected);
}

#[tokio::test(start_paused = true)]
async fn a_server_of_many_tools_is_cut_and_says_so() {
    let desk = Desk::new();
    desk.api.apply("mcpattachments", attachment("team-a", "files", "coder"));
    let uid = text(&desk.api.get("mcpattachments", "team-a", "files").unwrap(), "/metadata/uid");
    desk.api.apply("sessions", session("team-a", "coder", "coder"));
    let many: Vec<_> = (0..1000).map(|i| format!("{i:0>120}")).collect();
    serve(&desk, "coder", "files", &uid, &many);
    let files = desk.call("attachment_get", json!({"namespace": "team-a", "name": "files"})).await;
    let files = files.good()["attachment"].clone();
    assert_eq!(files["tools"].as_array().unwrap().len(), 256);
    assert_eq!(files["toolsOmitted"], 744);
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_list_sessions_the_attachment_is_still_shown() {
    let desk = Desk::new();
    desk.api.apply("mcpattachments", attachment("team-a", "files", "coder"));
    desk.script(|asked| asked.path.ends_with("/sessions").then(crate::desk::rbac));
    let files = desk.call("attachment_get", json!({"namespace": "team-a", "name": "files"})).await;
    assert!(
        files.text.contains("There may be more generations: Listing Sessions"),
        "{}",
        files.text
    );
    let files = files.good()["attachment"].clone();
    assert_eq!(files["generations"], json!([]));
    assert!(text(&files, "/incomplete").contains("cannot"), "{files}");
}

#[tokio::test(start_paused = true)]
async fn generations_that_are_not_shown_are_counted() {
    let desk = Desk::new();
    desk.api.apply("mcpattachments", attachment("team-a", "files", "coder"));
    let uid = text(&desk.api.get("mcpattachments", "team-a", "files").unwrap(), "/metadata/uid");
    for i in 0..10 {
        let name = format!("s{i}");
        desk.api.apply("sessions", session("team-a", &name, "coder"));
        let all: Vec<_> = (1..=3).map(|n| entry("files", &uid, n, "Draining")).collect();
        let status = json!({"lastGeneration": 3, "attachments": all});
        desk.api.set_status("sessions", "team-a", &name, status);
    }
    let files = desk.call("attachment_get", json!({"namespace": "team-a", "name": "files"})).await;
    assert!(files.text.contains("And 6 more generations.\n"), "{}", files.text);
    let files = files.good()["attachment"].clone();
    assert_eq!(files["generations"].as_array().unwrap().len(), 24);
    assert_eq!((&files["generationsOmitted"], files.get("incomplete")), (&json!(6), None));
}

/// A list of attachments whose pages are as the script says, by the number of the request.
fn paging(desk: &Desk, page: impl Fn(usize) -> Option<&'static str> + Send + 'static) {
    let count = std::sync::atomic::AtomicUsize::new(0);
    desk.script(move |asked| {
        let lists = asked.method == "GET" && asked.path.ends_with("/mcpattachments");
        let n = lists.then(|| count.fetch_add(1, std::sync::atomic::Ordering::SeqCst))?;
        Some(match page(n) {
            Some(next) => {
                let mut item = attachment("team-a", &format!("files-{n}"), "coder");
                item["metadata"]["uid"] = json!(format!("u-{n}"));
                let list = json!({"apiVersion": "awaken.dev/v1alpha1", "kind": "McpAttachmentList",
                    "metadata": {"continue": next}, "items": [item]});
                (200, list)
            }
            None => crate::desk::no(410, "Expired", "too old", &[]),
        })
    });
}

#[tokio::test(start_paused = true)]
async fn a_list_that_expires_is_begun_again_once_and_one_without_end_is_told() {
    let desk = Desk::new();
    desk.api.apply("agents", agent("team-a", "coder", "Standing"));
    let get = async || {
        let answer = desk.call("agent_get", json!({"namespace": "team-a", "name": "coder"})).await;
        (answer.text.clone(), answer.good()["agent"].clone())
    };
    let shown = |agent: &Value| agent["attachments"].as_array().unwrap().len();
    paging(&desk, |n| match n {
        0 | 2 => Some("more"),
        1 => None,
        _ => Some(""),
    });
    let (_, agent) = get().await;
    assert_eq!((shown(&agent), agent.get("incomplete")), (2, None), "of the second time alone");
    paging(&desk, |n| (n % 2 == 0).then_some("more"));
    let (said, agent) = get().await;
    let why = "the list of McpAttachments expired twice while it was read.";
    assert_eq!((shown(&agent), agent["incomplete"].as_str()), (1, Some(why)));
    assert!(said.contains(&format!("There may be more attachments: {why}\n")), "{said}");
    paging(&desk, |_| Some("more"));
    let (_, agent) = get().await;
    let why = "team-a has more than the 40 McpAttachments that were read.";
    assert_eq!((shown(&agent), agent["incomplete"].as_str()), (40, Some(why)));
}

#[tokio::test(start_paused = true)]
async fn a_page_whose_own_place_expires_ends_there() {
    let desk = Desk::new();
    paging(&desk, |n| (n != 1).then_some("more"));
    let arguments = json!({"namespace": "team-a", "limit": 10});
    let list = desk.call("attachments_list", arguments.clone()).await.good();
    assert_eq!(
        (list["attachments"].as_array().unwrap().len(), &list["page"]["more"]),
        (1, &json!(true))
    );
    paging(&desk, |n| (n > 0).then_some(""));
    let mut next = arguments;
    next["continue"] = list["page"]["continue"].clone();
    let answer = desk.call("attachments_list", next).await;
    assert_eq!(answer.failed(), ("InvalidArguments".to_owned(), Some("continue".to_owned())));
}

#[tokio::test(start_paused = true)]
async fn sessions_in_a_list_and_one_in_full() {
    let desk = Desk::new();
    let mut standing = session("team-a", "coder", "coder");
    standing["metadata"]["ownerReferences"] = json!([{"apiVersion": "awaken.dev/v1alpha1",
        "kind": "Agent", "name": "coder", "uid": "u1", "controller": true}]);
    desk.api.apply("sessions", standing);
    desk.api.apply("sessions", session("team-a", "mine", "writer"));
    let mut status = ready(true, "Ready", "All serve.", 1);
    status["phase"] = json!("Serving");
    status["summary"] = json!("1/1");
    status["lastGeneration"] = json!(4);
    status["host"] = json!({"gateway": "gw-0", "incarnation": "i", "epoch": 2});
    status["environment"] =
        json!({"revision": 3, "spec": {"image": "tools:1"}, "since": "2026-01-01T00:00:00Z"});
    status["attachments"] = json!([entry("files", "u", 4, "Active")]);
    desk.api.set_status("sessions", "team-a", "coder", status);
    let answer = desk.call("sessions_list", json!({"namespace": "team-a"})).await;
    let line = "- team-a/coder of coder (standing), Serving, attachments 1/1: Ready, Ready: All";
    assert!(answer.text.contains(line), "{}", answer.text);
    let list = answer.good();
    let standing: Vec<_> =
        list["sessions"].as_array().unwrap().iter().map(|s| s["standing"] == true).collect();
    assert_eq!(standing, [true, false]);

    let answer = desk.call("session_get", json!({"namespace": "team-a", "name": "coder"})).await;
    let line = "- files, generation 4: Active, Active.";
    assert!(answer.text.contains(line), "{}", answer.text);
    let coder = answer.good()["session"].clone();
    assert_eq!(coder["endpoint"], "/v1/sessions/team-a/coder/mcp");
    assert_eq!((&coder["gateway"], &coder["environmentRevision"]), (&json!("gw-0"), &json!(3)));
    assert_eq!(coder["generations"][0]["generation"], 4);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_read_hides_no_other() {
    let desk = Desk::new();
    desk.api.apply("mcpattachments", attachment("team-a", "good", "coder"));
    let mut bad = attachment("team-a", "bad", "coder");
    bad["spec"]["agentRef"] = json!(7);
    desk.api.apply("mcpattachments", bad);
    let list = desk.call("attachments_list", json!({})).await.good();
    assert_eq!(names(&list["attachments"]), ["team-a/bad", "team-a/good"]);
    assert_eq!(list["attachments"][0]["health"]["reason"], "UnreadableObject");
    let one = desk.call("attachment_get", json!({"namespace": "team-a", "name": "bad"})).await;
    assert_eq!(one.failed().0, "UnreadableObject");
}
