//! `trace_list`: for whom, page by page, redacted, bounded.

use crate::{
    apiserver::text,
    desk::{ACCOUNT, Desk, session},
};
use awaken_operator::{
    domain::record::{Entry, Kind, Outcome, Payload},
    journal::{Append as _, Chain},
};
use jiff::Timestamp;
use serde_json::{Value, json};

/// A Session with calls on record, each an intent and an outcome.
async fn recorded(calls: usize, size: usize) -> (Desk, String) {
    let desk = Desk::new();
    desk.api.apply("sessions", session("team-a", "coder", "coder"));
    let uid = text(&desk.api.get("sessions", "team-a", "coder").unwrap(), "/metadata/uid");
    let chain = Chain::Session(uid.clone());
    let payload = |json: Value| {
        let json = json.to_string();
        Some(Payload { digest: "sha256:0".into(), size: json.len() as u64, json: Some(json) })
    };
    for i in 0..calls {
        let id = Some(format!("call-{i}"));
        let mut intent = Entry::new(Timestamp::from_second(i as i64).unwrap(), Kind::Intent);
        (intent.call, intent.tool) = (id.clone(), Some("read".to_owned()));
        intent.subject = Some("system:serviceaccount:team-a:runtime".to_owned());
        intent.rule = Some("tools[read]=Allow".to_owned());
        intent.arguments = payload(json!({"path": "x".repeat(size)}));
        desk.journal.append(&chain, 1, intent).await.unwrap();
        let mut outcome = Entry::new(Timestamp::from_second(i as i64).unwrap(), Kind::Outcome);
        (outcome.call, outcome.outcome) = (id, Some(Outcome::Succeeded));
        outcome.result = payload(json!({"content": ["\n".repeat(size)]}));
        desk.journal.append(&chain, 1, outcome).await.unwrap();
    }
    (desk, uid)
}

fn arguments(more: Value) -> Value {
    let mut all = json!({"namespace": "team-a", "session": "coder"});
    for (key, value) in more.as_object().unwrap() {
        all[key] = value.clone();
    }
    all
}

#[tokio::test(start_paused = true)]
async fn a_trace_tells_who_called_what_and_how_it_ended() {
    let (desk, _) = recorded(1, 3).await;
    let answer = desk.call("trace_list", arguments(json!({}))).await;
    let line = "#1 1970-01-01T00:00:00Z Intent call=call-0 \
                by=system:serviceaccount:team-a:runtime tool=read arguments={\"path\":\"xxx\"}\n";
    assert!(answer.text.contains(line), "{}", answer.text);
    let list = answer.good();
    assert_eq!(list["records"][1]["outcome"], "Succeeded");
    assert_eq!((&list["more"], list.get("next")), (&json!(false), None));
}

#[tokio::test(start_paused = true)]
async fn pages_are_whole_whatever_the_size_of_the_records() {
    for (calls, size) in [(5, 1), (40, 16_000), (120, 600)] {
        let (desk, _) = recorded(calls, size).await;
        for limit in [1, 7, 200] {
            let (mut seen, mut after) = (vec![], 0);
            loop {
                let asked = arguments(json!({"limit": limit, "after": after}));
                let list = desk.call("trace_list", asked).await.good();
                let records = list["records"].as_array().unwrap();
                seen.extend(records.iter().map(|r| r["seq"].as_u64().unwrap()));
                match list["next"].as_u64() {
                    Some(next) => after = next,
                    None => break,
                }
            }
            assert_eq!(seen, (1..=calls as u64 * 2).collect::<Vec<_>>(), "{calls} {size} {limit}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn only_an_account_that_may_read_the_trace_does() {
    let (desk, _) = recorded(1, 3).await;
    desk.call("trace_list", arguments(json!({}))).await.good();
    let asked = desk.asked();
    let review = asked.iter().find(|a| a.path.ends_with("/subjectaccessreviews")).unwrap();
    let expected = json!({"user": ACCOUNT,
        "groups": ["system:serviceaccounts", "system:serviceaccounts:awaken-system", "system:authenticated"],
        "resourceAttributes": {"group": "awaken.dev", "resource": "sessions", "subresource": "trace",
            "verb": "get", "namespace": "team-a", "name": "coder"}});
    assert_eq!(review.body["spec"], expected);
    for status in [json!({"allowed": false}), json!({"allowed": true, "denied": true}), Value::Null]
    {
        desk.script(move |asked| {
            let mut body = asked.body.clone();
            body["status"] = status.clone();
            asked.path.ends_with("/subjectaccessreviews").then_some((201, body))
        });
        let answer = desk.call("trace_list", arguments(json!({}))).await;
        assert_eq!(answer.failed().0, "Forbidden");
        assert!(answer.message().contains("`get sessions/trace`"), "{}", answer.message());
        assert!(answer.structured.get("records").is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_journal_that_cannot_be_read_is_told() {
    let (desk, _) = recorded(1, 3).await;
    desk.journal.break_with(Some("the disk at /var/lib/x is gone"));
    let answer = desk.call("trace_list", arguments(json!({}))).await;
    assert_eq!(answer.failed().0, "JournalUnavailable");
    assert!(!answer.text.contains("/var/lib"), "{}", answer.text);
}
