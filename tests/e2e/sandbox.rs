//! What a stdio server can and cannot do in its pod.

use crate::support::{
    LIMIT, Server, Team,
    cluster::SYSTEM,
    objects::object,
    team::{AGENT, called, stdio},
    until,
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};

#[tokio::test]
async fn a_server_is_confined() {
    // Team namespaces enforce PodSecurity `restricted`, so a pod that runs has passed it.
    let team = Team::new("sandbox").await;
    team.apply(object(
        "Secret",
        "keys",
        json!({"stringData": {"one": "first-value", "two": "second-value"}}),
    ))
    .await;
    let mut attachment = stdio("box", AGENT, json!({}));
    attachment["spec"]["sandboxStdio"]["env"] =
        json!([{"name": "DECLARED", "value": "$(HOME) ${HOME} $$"}]);
    attachment["spec"]["sandboxStdio"]["secretEnv"] =
        json!([{"name": "KEY_ONE", "secretKeyRef": {"name": "keys", "key": "one"}}]);
    attachment["spec"]["sandboxStdio"]["args"] =
        json!(["stdio", json!({"name": "$(HOME)"}).to_string()]);
    team.apply(attachment).await;
    let open = Server::start(&team, "open", json!({})).await;
    team.agent(&["box"]).await;
    team.ready("box").await;
    let mut client = team.client_of("mcp/box").await;
    let mut call = async |tool: &str, arguments: Value| called(&mut client, tool, arguments).await;

    let env: BTreeMap<String, String> =
        serde_json::from_str(&call("env", json!({})).await.unwrap()).unwrap();
    assert_eq!(env["DECLARED"], "$(HOME) ${HOME} $$", "nothing is expanded");
    assert_eq!(env["KEY_ONE"], "first-value");
    assert!(env["HOME"].starts_with("/tmp"), "{env:?}");
    for (name, value) in &env {
        assert!(!name.starts_with("KUBERNETES_") && !name.starts_with("AWAKEN_"), "{name}");
        assert!(!name.ends_with("_SERVICE_HOST") && !name.contains("_PORT_"), "{name}");
        assert_ne!(value, "second-value");
    }
    let known = ["DECLARED", "KEY_ONE", "HOME", "TMPDIR", "PATH", "HOSTNAME", "PWD", "LANG"];
    let strange: Vec<_> = env.keys().filter(|k| !known.contains(&k.as_str())).collect();
    assert!(strange.is_empty(), "{strange:?}");

    let about: Value = serde_json::from_str(&call("about", json!({})).await.unwrap()).unwrap();
    assert_eq!((&about["uid"], &about["gid"]), (&json!(65532), &json!(65532)));
    assert_eq!(about["args"][2], json!({"name": "$(HOME)"}).to_string(), "argv as written");

    let no_token =
        call("list_dir", json!({"path": "/var/run/secrets/kubernetes.io/serviceaccount"})).await;
    assert!(no_token.is_err(), "{no_token:?}");
    for path in ["/x", "/usr/local/bin/x", "/awaken/x", "/etc/x"] {
        let written = call("write_file", json!({"path": path, "text": "x"})).await;
        assert!(written.is_err(), "{path} is writable");
    }
    for path in ["/tmp/x", &format!("{}/x", env["TMPDIR"])] {
        call("write_file", json!({"path": path, "text": "x"})).await.unwrap();
    }
    let shim = call("read_file", json!({"path": "/proc/1/environ"})).await;
    assert!(
        !shim.is_ok_and(|text| text.contains("AWAKEN_")),
        "the shim's environment is not the child's"
    );

    // no way out: API server, gateway, another pod, metadata, a name server that is not asked for
    let cluster = &team.cluster;
    let api = cluster.get("Service", Some("default"), "kubernetes").await.unwrap();
    let api = api["spec"]["clusterIP"].as_str().unwrap().to_owned();
    let gateway = cluster.get("Service", Some(SYSTEM), "awaken-gateway").await.unwrap();
    let gateway = gateway["spec"]["clusterIP"].as_str().unwrap().to_owned();
    let pod = team.get("Pod", "open").await.unwrap();
    let pod_ip = pod["status"]["podIP"].as_str().unwrap().to_owned();
    assert!(open.direct().initialize().await.is_ok(), "the other pod does listen");
    let addresses = [
        format!("{api}:443"),
        format!("{gateway}:80"),
        format!("{pod_ip}:8000"),
        "169.254.169.254:80".into(),
    ];
    for address in addresses {
        let how = call("connect", json!({"address": address, "ms": 1500})).await.unwrap();
        assert_ne!(how, "connected", "{address}");
    }

    // and no way in but for the gateway
    let own = team.session_pods().await;
    assert_eq!(own.len(), 1);
    let address = format!("{}:7411", own[0]["status"]["podIP"].as_str().unwrap());
    let mut outside = open.direct();
    outside.initialize().await.unwrap();
    let how =
        called(&mut outside, "connect", json!({"address": address, "ms": 1500})).await.unwrap();
    assert_ne!(how, "connected", "another pod reaches the shim");
    team.end().await;
}

#[tokio::test]
async fn a_server_reaches_what_its_environment_allows_and_nothing_else() {
    let team = Team::new("egress").await;
    team.stdio("box", json!({})).await;
    let (open, closed) = (
        Server::start(&team, "open", json!({})).await,
        Server::start(&team, "closed", json!({})).await,
    );
    let pod_ip = async |name: &str| {
        let pod = team.get("Pod", name).await.unwrap();
        pod["status"]["podIP"].as_str().unwrap().to_owned()
    };
    let (allowed, other) = (pod_ip("open").await, pod_ip("closed").await);
    assert!(closed.direct().initialize().await.is_ok(), "the other pod does listen");
    let mut agent = crate::support::team::agent(
        AGENT,
        &crate::support::objects::stub_image(),
        vec![json!({"attachment": "box", "defaultPermission": "Allow"})],
    );
    let all_ports = json!([{"port": 1, "endPort": 65535}]);
    agent["spec"]["environment"]["egress"] = json!({"mode": "Allow", "rules": [
        {"cidr": format!("{allowed}/32"), "ports": [{"port": 8000}]},
        {"cidr": "0.0.0.0/0", "ports": all_ports},
    ]});
    team.apply(agent.clone()).await;
    team.ready("box").await;
    let mut client = team.client_of("mcp/box").await;
    let mut reach = async |address: String| {
        let asked = json!({"address": address, "ms": 1500});
        called(&mut client, "connect", asked).await.unwrap_or_else(|why| why.to_string())
    };
    // rules reach a node a moment after its pod
    let begun = std::time::Instant::now();
    while reach(format!("{allowed}:8000")).await != "connected" {
        assert!(begun.elapsed() < LIMIT, "what is allowed is not reached");
    }
    let by_name = format!("open.{}.svc.cluster.local:8000", team.name);
    assert_eq!(reach(by_name).await, "connected", "its name is found");
    let cluster = &team.cluster;
    let api = cluster.get("Service", Some("default"), "kubernetes").await.unwrap();
    let gateway = cluster.get("Service", Some(SYSTEM), "awaken-gateway").await.unwrap();
    let ip = |service: &Value| service["spec"]["clusterIP"].as_str().unwrap().to_owned();
    for address in [
        format!("{other}:8000"),
        format!("{allowed}:8001"),
        format!("{}:443", ip(&api)),
        format!("{}:80", ip(&gateway)),
        "169.254.169.254:80".to_owned(),
    ] {
        assert_ne!(reach(address.clone()).await, "connected", "{address}");
    }

    // taken away: the next generation, and nothing is reached
    agent["spec"]["environment"]["egress"] = json!({"mode": "Deny"});
    team.apply(agent).await;
    until("nothing is reached", LIMIT, || async {
        let mut client = team.client_of("mcp/box").await;
        let asked = json!({"address": format!("{allowed}:8000"), "ms": 1500});
        let how = called(&mut client, "connect", asked).await;
        if how.as_ref().is_ok_and(|how| how == "connected") {
            Err(format!("{how:?}"))
        } else {
            Ok(())
        }
    })
    .await;
    let found = team.get("McpAttachment", "box").await.unwrap();
    assert!(found["status"]["desiredGeneration"].as_i64() >= Some(2), "{found}");
    assert!(open.direct().initialize().await.is_ok(), "it does listen");
    team.end().await;
}

#[tokio::test]
async fn the_pod_is_written_as_promised() {
    let team = Team::new("podspec").await;
    team.stdio("box", json!({})).await;
    team.agent(&["box"]).await;
    team.ready("box").await;
    let pods = team.session_pods().await;
    let (meta, spec) = (&pods[0]["metadata"], &pods[0]["spec"]);
    let attachment = team.get("McpAttachment", "box").await.unwrap();
    let session = team.get("Session", AGENT).await.unwrap();
    assert_eq!(meta["labels"]["app.kubernetes.io/component"], "session");
    assert_eq!(meta["labels"]["awaken.dev/attachment-uid"], attachment["metadata"]["uid"]);
    assert_eq!(meta["labels"]["awaken.dev/session-uid"], session["metadata"]["uid"]);
    assert_eq!(meta["labels"]["awaken.dev/generation"], "1");
    assert_eq!(meta["ownerReferences"][0]["uid"], session["metadata"]["uid"]);
    assert_eq!(spec["automountServiceAccountToken"], false);
    assert_eq!(spec["enableServiceLinks"], false);
    assert_eq!(spec["restartPolicy"], "Never");
    let containers = spec["containers"].as_array().unwrap().iter();
    for container in containers.chain(spec["initContainers"].as_array().unwrap()) {
        let context = &container["securityContext"];
        assert_eq!(context["readOnlyRootFilesystem"], true, "{container}");
        assert_eq!(context["allowPrivilegeEscalation"], false, "{container}");
        assert_eq!(context["capabilities"]["drop"], json!(["ALL"]), "{container}");
        assert!(container["resources"]["limits"]["memory"].is_string(), "{container}");
    }
    let policies = team.cluster.list("NetworkPolicy", Some(&team.name), "").await;
    assert!(!policies.is_empty(), "a policy stands in front of the pod");
    team.end().await;
}

#[tokio::test]
async fn over_the_memory_limit_says_so_and_recovers() {
    let team = Team::new("oom").await;
    let mut agent = crate::support::team::agent(
        AGENT,
        &crate::support::objects::stub_image(),
        vec![json!({"attachment": "greedy", "defaultPermission": "Allow"})],
    );
    agent["spec"]["environment"]["resources"] = json!({"limits": {"memory": "64Mi", "cpu": "1"}});
    team.apply(agent).await;
    team.stdio("greedy", json!({})).await;
    team.ready("greedy").await;
    let mut client = team.client_of("mcp/greedy").await;
    let answer = client.call("allocate", &json!({})).await.unwrap();
    assert_eq!(answer["error"]["data"]["reason"], "OutcomeUnknown", "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("out of memory"), "{answer}");
    let record = team.record("the outcome is unknown", |r| r["outcome"] == "OutcomeUnknown").await;
    assert!(record["call"].is_string());
    until("the next generation serves", LIMIT, || async {
        let found = team.get("McpAttachment", "greedy").await.unwrap();
        let newer = found["status"]["activeGeneration"].as_i64().is_some_and(|g| g > 1);
        newer.then_some(()).ok_or_else(|| crate::support::objects::shown(&found))
    })
    .await;
    until("an event names the cause", LIMIT, || async {
        let all = team.events("greedy").await;
        let says = |e: &Value| e["message"].as_str().is_some_and(|m| m.contains("out of memory"));
        let named = all.iter().any(says);
        named.then_some(()).ok_or(format!("{all:#?}"))
    })
    .await;
    let pods = team.session_pods().await;
    assert_eq!(pods.len(), 1, "the dead pod is collected");
    team.end().await;
}

#[tokio::test]
async fn a_server_that_dies_is_replaced_and_its_call_is_unknown() {
    let team = Team::new("dies").await;
    team.stdio("mortal", json!({"name": "mortal"})).await;
    team.stdio("steady", json!({"name": "steady"})).await;
    team.agent(&["mortal", "steady"]).await;
    team.ready("mortal").await;
    team.ready("steady").await;
    let mut client = team.client().await;
    let generation = |found: &Value| found["status"]["activeGeneration"].as_i64().unwrap();
    let first = generation(&team.get("McpAttachment", "mortal").await.unwrap());
    let untouched = generation(&team.get("McpAttachment", "steady").await.unwrap());
    let words = json!({"code": 9, "stderr": "the last words"});
    let answer = client.call("mcp__mortal__exit", &words).await.unwrap();
    assert_eq!(answer["error"]["data"]["reason"], "OutcomeUnknown", "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("exit code 9") && message.contains("the last words"), "{answer}");
    assert!(called(&mut client, "mcp__steady__echo", json!({})).await.is_ok());
    let again = until("the next generation serves", Duration::from_secs(30), || async {
        let found = team.get("McpAttachment", "mortal").await.unwrap();
        let newer = found["status"]["activeGeneration"].as_i64().is_some_and(|g| g > first);
        if newer { Ok(found) } else { Err(crate::support::objects::shown(&found)) }
    })
    .await;
    assert_eq!(again["status"]["desiredGeneration"], again["status"]["activeGeneration"]);
    team.ready("mortal").await;
    // the same MCP session goes on
    assert!(called(&mut client, "mcp__mortal__echo", json!({})).await.is_ok());
    let steady = team.get("McpAttachment", "steady").await.unwrap();
    assert_eq!(generation(&steady), untouched, "the other one is untouched");
    team.end().await;
}
