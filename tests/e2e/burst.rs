//! Many changes in a short time end in one server, and it is the last one.

use crate::support::{
    LIMIT, Team,
    objects::shown,
    team::{AGENT, called, stdio},
    until,
};
use serde_json::{Value, json};

const EDITS: usize = 200;

fn edited(edit: usize) -> Value {
    let mut attachment = stdio("local", AGENT, json!({}));
    attachment["spec"]["sandboxStdio"]["env"] =
        json!([{"name": "EDIT", "value": edit.to_string()}]);
    attachment
}

#[tokio::test]
async fn two_hundred_edits_end_in_one_pod_of_the_last() {
    let team = Team::new("burst").await;
    team.agent(&["local"]).await;
    team.apply(edited(0)).await;
    team.ready("local").await;
    let mut caller = team.client_of("mcp/local").await;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let load = tokio::spawn(async move {
        let mut calls = 0;
        while !*stopped.borrow() {
            called(&mut caller, "echo", json!({"n": calls})).await?;
            calls += 1;
        }
        anyhow::Ok(calls)
    });
    for edit in 1..=EDITS {
        team.apply(edited(edit)).await;
    }
    until("the last edit serves, alone", LIMIT, || async {
        let found = team.get("McpAttachment", "local").await.ok_or("none")?;
        let status = &found["status"];
        let session = team.get("Session", AGENT).await.ok_or("none")?;
        let entries = session["status"]["attachments"].as_array().map_or(0, Vec::len);
        let pods = team.session_pods().await.len();
        let settled = status["observedGeneration"] == found["metadata"]["generation"]
            && status["activeGeneration"] == status["desiredGeneration"];
        if settled && (entries, pods) == (1, 1) {
            Ok(())
        } else {
            Err(format!("{entries} entries, {pods} pods, {}", shown(&found)))
        }
    })
    .await;
    team.ready("local").await;
    stop.send_replace(true);
    let calls = load.await.unwrap().expect("no call fails");
    assert!(calls > 10, "{calls}");
    let mut client = team.client_of("mcp/local").await;
    let env = called(&mut client, "env", json!({})).await.unwrap();
    let last = format!("\"EDIT\":\"{EDITS}\"");
    assert!(env.replace(' ', "").contains(&last), "{env}");
    let found = team.get("McpAttachment", "local").await.unwrap();
    println!(
        "{EDITS} edits made {} generations, and {calls} calls passed meanwhile",
        found["status"]["activeGeneration"]
    );
    team.end().await;
}
