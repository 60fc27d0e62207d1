//! Every tool, every way to be refused: the result says why, names what is wrong, and says what to
//! do; and what is refused by us costs no request.

use crate::desk::{ACCOUNT, Desk, agent, attachment, no, rbac, session, spec};
use awaken_operator::gateway::export::ManagementContext;
use rstest::rstest;
use serde_json::{Value, json};

/// Arguments for each tool that it takes.
pub fn examples() -> [(&'static str, Value); 12] {
    let one = |name: &str| json!({"namespace": "team-a", "name": name});
    [
        ("agents_list", json!({"namespace": "team-a", "limit": 5})),
        ("agent_get", one("coder")),
        ("attachments_list", json!({"agent": "coder"})),
        ("attachment_get", one("files")),
        (
            "attachment_apply",
            json!({"namespace": "team-a", "name": "files", "spec": spec("coder"),
                "labels": {"team": "a"}, "dryRun": true, "force": false, "waitSeconds": 0}),
        ),
        ("attachment_delete", one("files")),
        ("attachment_retry", one("files")),
        ("sessions_list", json!({})),
        ("session_get", one("coder")),
        ("session_create", json!({"namespace": "team-a", "agent": "writer"})),
        ("session_close", one("mine")),
        ("trace_list", json!({"namespace": "team-a", "session": "coder", "after": 3})),
    ]
}

fn world() -> Desk {
    let desk = Desk::new();
    desk.api.apply("agents", agent("team-a", "coder", "Standing"));
    desk.api.apply("agents", agent("team-a", "writer", "OnDemand"));
    desk.api.apply("mcpattachments", attachment("team-a", "files", "coder"));
    desk.api.apply("sessions", session("team-a", "mine", "writer"));
    let mut standing = session("team-a", "coder", "coder");
    standing["metadata"]["ownerReferences"] = json!([{"apiVersion": "awaken.dev/v1alpha1",
        "kind": "Agent", "name": "coder", "uid": "u1", "controller": true}]);
    desk.api.apply("sessions", standing);
    desk
}

#[tokio::test(start_paused = true)]
async fn each_example_is_taken() {
    for (tool, arguments) in examples() {
        let answer = world().call(tool, arguments).await;
        assert!(!answer.is_error, "{tool}: {}", answer.text);
        assert!(answer.text.ends_with('\n') && answer.text.len() > 10, "{tool}: {}", answer.text);
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_arguments_are_named_and_cost_no_request() {
    for (tool, good) in examples() {
        let mut wrong = vec![(
            {
                let mut a = good.clone();
                a["nope"] = json!(1);
                a
            },
            "nope",
        )];
        for (argument, value) in good.as_object().unwrap() {
            let mut other = good.clone();
            other[argument] = if value.is_object() { json!("x") } else { json!(["x"]) };
            wrong.push((other, argument.as_str()));
            if ["namespace", "name", "agent", "session"].contains(&argument.as_str()) {
                for name in ["", "Team", "a b", "../x", "a/b", "a%2Fb", "a?b=c", "ä", "-a", "a\n"]
                {
                    let mut other = good.clone();
                    other[argument] = json!(name);
                    wrong.push((other, argument.as_str()));
                }
            }
            let listing = tool.ends_with("_list") && tool != "trace_list";
            if !listing
                && ["namespace", "name", "agent", "session", "spec"].contains(&argument.as_str())
            {
                let mut other = good.clone();
                other.as_object_mut().unwrap().remove(argument);
                wrong.push((other, argument.as_str()));
            }
        }
        for limit in [json!(0), json!(201), json!(-1), json!(1.5), json!("5")] {
            if tool.ends_with("_list") {
                let mut other = good.clone();
                other["limit"] = limit;
                wrong.push((other, "limit"));
            }
        }
        let desk = Desk::new();
        for (arguments, field) in wrong {
            let answer = desk.call(tool, arguments.clone()).await;
            let failed = answer.failed();
            assert_eq!(
                failed,
                ("InvalidArguments".to_owned(), Some(field.to_owned())),
                "{tool} {arguments}"
            );
            assert!(answer.message().contains(&format!("`{field}`")), "{}", answer.message());
            assert!(answer.message().len() < 3000);
        }
        assert!(desk.asked().is_empty(), "{tool}: {:?}", desk.asked());
    }
}

#[tokio::test(start_paused = true)]
async fn waits_have_a_bound() {
    let desk = world();
    for (tool, arguments) in examples() {
        if ![
            "attachment_apply",
            "attachment_delete",
            "attachment_retry",
            "session_create",
            "session_close",
        ]
        .contains(&tool)
        {
            continue;
        }
        for wait in [json!(301), json!(-1), json!("5"), json!(0.5)] {
            let mut arguments = arguments.clone();
            arguments["waitSeconds"] = wait;
            let failed = desk.call(tool, arguments).await.failed();
            assert_eq!(failed.1.as_deref(), Some("waitSeconds"), "{tool}");
        }
    }
    assert!(desk.asked().is_empty());
}

#[rstest]
#[case(json!({"spec": {"agentRef": {"name": "coder"}, "htttp": {}}}), "spec.htttp")]
#[case(json!({"spec": {"http": {"url": "https://x"}}}), "spec.agentRef")]
#[case(json!({"spec": {"agentRef": {"name": "coder"}, "http": {"url": 5}}}), "spec.http.url")]
#[case(json!({"spec": {"agentRef": {"name": "coder"}, "sandboxStdio": {"command": "c", "args": ["a", 1]}}}), "spec.sandboxStdio.args[1]")]
#[case(json!({"labels": {"a": 1}}), "labels")]
#[case(json!({"labels": (0..33).map(|i| (format!("k{i}"), json!("v"))).collect::<serde_json::Map<_, _>>()}), "labels")]
#[case(json!({"labels": {"k": "v".repeat(64)}}), "labels")]
#[case(json!({"dryRun": "yes"}), "dryRun")]
#[case(json!({"force": 1}), "force")]
#[tokio::test(start_paused = true)]
async fn a_wrong_part_of_what_is_to_be_applied_is_named(#[case] part: Value, #[case] field: &str) {
    let desk = Desk::new();
    let mut arguments = json!({"namespace": "team-a", "name": "files", "spec": spec("coder")});
    for (key, value) in part.as_object().unwrap() {
        arguments[key] = value.clone();
    }
    let answer = desk.call("attachment_apply", arguments).await;
    let (reason, named) = answer.failed();
    assert_eq!(reason, "InvalidArguments");
    let named = named.unwrap();
    assert!(
        named == field || named.starts_with(&format!("{field}.")),
        "{named}: {}",
        answer.message()
    );
    assert!(desk.asked().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_is_not_open_is_refused_with_the_settings_name() {
    let desk = Desk::new();
    for (tool, mut arguments) in examples() {
        if arguments.get("namespace").is_none() && !tool.ends_with("s_list") {
            continue;
        }
        arguments["namespace"] = json!("kube-system");
        let answer = desk.call(tool, arguments).await;
        assert_eq!(
            answer.failed(),
            ("Forbidden".to_owned(), Some("namespace".to_owned())),
            "{tool}"
        );
        let message = answer.message();
        assert!(message.contains("gateway.mcp.management.namespaces"), "{message}");
        assert!(message.contains("team-a, team-b"), "{message}");
    }
    assert!(desk.asked().is_empty());
    let closed = Desk::with(&[], &["agents_list"]);
    let answer = closed.call("agents_list", json!({})).await;
    assert_eq!(answer.failed().0, "Forbidden");
}

#[tokio::test(start_paused = true)]
async fn what_is_not_there_is_not_found() {
    let desk = Desk::new();
    for (tool, arguments) in examples() {
        if tool.ends_with("s_list") || tool == "attachment_apply" {
            continue;
        }
        let answer = desk.call(tool, arguments).await;
        assert_eq!(answer.failed().0, "NotFound", "{tool}");
        assert!(answer.message().contains("_list."), "{tool}: {}", answer.message());
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_accounts_rights_do_not_allow_is_forbidden() {
    for (tool, mut arguments) in examples() {
        arguments.as_object_mut().unwrap().remove("dryRun");
        let desk = world();
        desk.script(|asked| (!asked.path.ends_with("/subjectaccessreviews")).then(rbac));
        let answer = desk.call(tool, arguments).await;
        assert_eq!(answer.failed().0, "Forbidden", "{tool}");
        let message = answer.message();
        assert!(message.contains(ACCOUNT) && message.contains("give that account"), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_cannot_is_told_as_such() {
    for (tool, arguments) in examples() {
        for code in [429, 500, 503] {
            let desk = world();
            desk.script(move |_| Some(no(code, "", "etcd is unwell", &[])));
            let answer = desk.call(tool, arguments.clone()).await;
            assert_eq!(answer.failed().0, "ApiServerUnavailable", "{tool} {code}");
            assert!(answer.message().contains("etcd is unwell"), "{}", answer.message());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_of_another_list_is_refused() {
    let desk = world();
    for wrong in ["x", "e30", "", "eyJuIjoia3ViZS1zeXN0ZW0ifQ"] {
        let answer = desk.call("agents_list", json!({"continue": wrong})).await;
        assert_eq!(answer.failed(), ("InvalidArguments".to_owned(), Some("continue".to_owned())));
    }
    assert!(desk.asked().is_empty());
    desk.script(|_| Some(no(410, "Expired", "The provided continue parameter is too old", &[])));
    let answer = desk.call("agents_list", json!({})).await;
    assert_eq!(answer.failed().1.as_deref(), Some("continue"));
    assert!(
        answer.message().contains("too old: begin the list without it"),
        "{}",
        answer.message()
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_cancelled_before_it_begins_does_nothing() {
    let desk = world();
    for (tool, arguments) in examples() {
        let context = ManagementContext::default();
        context.cancel.cancel();
        let ended = desk.call_with(tool, arguments, context).await;
        assert_eq!(ended.unwrap_err().to_string(), "cancelled", "{tool}");
    }
    assert!(desk.asked().is_empty());
}
