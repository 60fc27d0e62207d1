//! What a Session pod tells of its generation. Pure: from the pod as the API server shows it.

use super::{
    build::SESSION_UID,
    scrub::{scrub, scrub_runtime},
};
use crate::domain::{lifecycle::PodFact, reason::Reason};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use kube::ResourceExt;

/// Name of the container that runs the server.
pub const SERVER: &str = "server";
/// Name of the init container that brings the shim.
pub const SHIM: &str = "shim";

/// The words with which the shim begins what it leaves behind.
const SHIM_WORDS: [Reason; 4] = [
    Reason::CommandNotFound,
    Reason::CommandNotExecutable,
    Reason::OutOfMemory,
    Reason::ServerExited,
];

const IMAGE_PROBLEMS: [&str; 7] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "RegistryUnavailable",
    "ImageInspectError",
    "SignatureValidationFailed",
];

/// What the pod tells.
pub fn fact(pod: &Pod) -> PodFact {
    if pod.metadata.deletion_timestamp.is_some() {
        let ended = pod.status.as_ref().and_then(ended);
        return match ended {
            // the kubelet tells the cause after the gateway told of the loss and the pod was deleted
            Some((Reason::OutOfMemory, message)) => PodFact::Ended(Reason::OutOfMemory, message),
            _ => PodFact::Deleting,
        };
    }
    let Some(status) = &pod.status else { return PodFact::Pending(None) };
    if let Some((reason, message)) = ended(status) {
        return PodFact::Ended(reason, message);
    }
    let running = container(status, SERVER)
        .and_then(|c| c.state.as_ref())
        .is_some_and(|state| state.running.is_some());
    match (&pod.metadata.uid, &status.pod_ip) {
        (Some(uid), Some(address)) if running && !address.is_empty() => {
            PodFact::Running { uid: uid.clone(), address: address.clone() }
        }
        _ => PodFact::Pending(kept_by(status)),
    }
}

/// What to think of a pod that its Session's NetworkPolicy does not select: somebody changed its
/// label. None for a pod as it was made, and for one that goes.
pub fn unguarded(pod: &Pod, session_uid: &str) -> Option<PodFact> {
    let selected = pod.labels().get(SESSION_UID).is_some_and(|uid| uid == session_uid);
    if selected || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let message = format!(
        "The label {SESSION_UID} of the pod {} was changed, so no NetworkPolicy guards it.",
        pod.name_any()
    );
    Some(PodFact::Ended(Reason::PodLost, message))
}

/// The digest of the image that the server's container runs, as the runtime reports it.
pub fn image_digest(pod: &Pod) -> Option<&str> {
    let image = container(pod.status.as_ref()?, SERVER)?.image_id.as_str();
    (!image.is_empty()).then_some(image)
}

fn container<'a>(status: &'a PodStatus, name: &str) -> Option<&'a ContainerStatus> {
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    all.into_iter().find(|c| c.name == name)
}

fn terminated<'a>(status: &'a PodStatus, name: &str) -> Option<&'a ContainerStateTerminated> {
    container(status, name)?.state.as_ref()?.terminated.as_ref()
}

fn ended(status: &PodStatus) -> Option<(Reason, String)> {
    if let Some(end) = terminated(status, SHIM).filter(|end| end.exit_code != 0) {
        let message = format!(
            "The init container that brings the shim ended with code {}{}",
            end.exit_code,
            said(end)
        );
        return Some((Reason::PodConfigError, message));
    }
    if let Some(end) = terminated(status, SERVER) {
        return Some(server_ended(end));
    }
    let phase = status.phase.as_deref();
    if phase != Some("Failed") && phase != Some("Succeeded") {
        return None;
    }
    let reason = status.reason.as_deref().unwrap_or("Failed");
    let message = scrub_runtime(status.message.as_deref().unwrap_or_default());
    Some((Reason::PodLost, format!("The pod ended: {reason}{}", after(&message))))
}

fn server_ended(end: &ContainerStateTerminated) -> (Reason, String) {
    // The shim knows whether the command ran, whatever its code; and of memory the runtime tells
    // only when it is quick enough.
    let word = end.message.as_deref().and_then(|m| m.split_once(':')).map(|(word, _)| word);
    let by_shim = word.and_then(|word| SHIM_WORDS.into_iter().find(|r| r.as_str() == word));
    let reason = match (by_shim, end.reason.as_deref(), end.exit_code) {
        (_, Some("OOMKilled"), _) => Reason::OutOfMemory,
        (Some(reason), ..) => reason,
        (None, Some("StartError" | "ContainerCannotRun"), _) => {
            let message = scrub_runtime(end.message.as_deref().unwrap_or_default());
            let reason = start_problem(&message);
            return (reason, format!("The container cannot start{}", after(&message)));
        }
        (None, _, 127) => Reason::CommandNotFound,
        (None, _, 126) => Reason::CommandNotExecutable,
        (None, ..) => Reason::ServerExited,
    };
    let what = match reason {
        Reason::OutOfMemory => "The server went over its memory limit".to_owned(),
        Reason::CommandNotFound => "The command is not in the image".to_owned(),
        Reason::CommandNotExecutable => "The command cannot be executed".to_owned(),
        _ => format!("The server ended with code {}", end.exit_code),
    };
    (reason, what + &said(end))
}

/// Why the runtime could not start a container, by its own words.
fn start_problem(message: &str) -> Reason {
    let says = |words: &[&str]| words.iter().any(|w| message.contains(w));
    if says(&["OOM-killed", "memory limit too low", "inimum memory limit"]) {
        Reason::OutOfMemory
    } else if says(&["executable file not found"])
        || (says(&["exec: \""]) && says(&["no such file or directory"]))
    {
        Reason::CommandNotFound
    } else {
        Reason::PodConfigError
    }
}

/// The end of a sentence: what the container left behind, without what looks like a secret.
fn said(end: &ContainerStateTerminated) -> String {
    after(&scrub(untold(end.message.as_deref().unwrap_or_default().trim())))
}

/// Without the shim's word, which the sentence before has said.
fn untold(message: &str) -> &str {
    let (word, rest) = message.split_once(": ").unwrap_or_default();
    match word {
        "ServerExited" if rest.starts_with("exit code ") => {
            rest.split_once('\n').unwrap_or_default().1
        }
        "ServerExited" | "OutOfMemory" => rest,
        "CommandNotFound" => rest.strip_prefix("command not found: ").unwrap_or(rest),
        "CommandNotExecutable" => rest.strip_prefix("command not executable: ").unwrap_or(rest),
        _ => message,
    }
}

fn after(message: &str) -> String {
    match message.trim() {
        "" => ".".to_owned(),
        message => format!(": {message}"),
    }
}

fn kept_by(status: &PodStatus) -> Option<(Reason, String)> {
    let waiting = |name| {
        let waiting = container(status, name)?.state.as_ref()?.waiting.as_ref()?;
        Some((waiting.reason.as_deref()?, waiting.message.as_deref().unwrap_or_default()))
    };
    for name in [SHIM, SERVER] {
        if let Some((word, message)) = waiting(name)
            && let Some(reason) = waiting_reason(word, message)
        {
            let image = container(status, name).map_or("", |c| c.image.as_str());
            return Some((
                reason,
                format!("{word} (image {image}){}", after(&scrub_runtime(message))),
            ));
        }
    }
    let unscheduled = status.conditions.iter().flatten().find(|c| {
        c.type_ == "PodScheduled"
            && c.status == "False"
            && matches!(c.reason.as_deref(), Some("Unschedulable" | "SchedulingGated"))
    })?;
    let message = unscheduled.message.clone().unwrap_or_default();
    Some((Reason::Unschedulable, message))
}

fn waiting_reason(word: &str, message: &str) -> Option<Reason> {
    if IMAGE_PROBLEMS.contains(&word) {
        return Some(Reason::ImagePullFailed);
    }
    match word {
        "CreateContainerConfigError" if is_root_refusal(message) => Some(Reason::RunAsNonRoot),
        "CreateContainerConfigError" if message.contains("couldn't find key") => {
            Some(Reason::SecretKeyNotFound)
        }
        "CreateContainerConfigError"
            if message.contains("secret") && message.contains("not found") =>
        {
            Some(Reason::SecretNotFound)
        }
        "CreateContainerConfigError" => Some(Reason::PodConfigError),
        "CreateContainerError" => Some(start_problem(message)),
        "RunContainerError" | "StartError" => Some(start_problem(message)),
        _ => None,
    }
}

fn is_root_refusal(message: &str) -> bool {
    message.contains("runAsNonRoot") || message.contains("run as root")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn pod(status: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u-1"}, "status": status}))
            .unwrap()
    }

    fn server(state: serde_json::Value) -> Pod {
        pod(json!({"phase": "Pending", "podIP": "10.0.0.7", "containerStatuses": [
            {"name": "server", "image": "tools:1", "imageID": "", "ready": false, "restartCount": 0, "state": state},
        ]}))
    }

    fn waiting(reason: &str, message: &str) -> Pod {
        server(json!({"waiting": {"reason": reason, "message": message}}))
    }

    fn terminated(code: i32, reason: &str, message: &str) -> Pod {
        server(json!({"terminated": {"exitCode": code, "reason": reason, "message": message}}))
    }

    #[rstest]
    #[case::back_off(waiting("ImagePullBackOff", "Back-off"), Reason::ImagePullFailed)]
    #[case::pull(waiting("ErrImagePull", "not found"), Reason::ImagePullFailed)]
    #[case::name(waiting("InvalidImageName", "bad"), Reason::ImagePullFailed)]
    #[case::root(
        waiting(
            "CreateContainerConfigError",
            "container has runAsNonRoot and image will run as root"
        ),
        Reason::RunAsNonRoot
    )]
    #[case::config(waiting("CreateContainerConfigError", "configmap gone"), Reason::PodConfigError)]
    #[case::secret(
        waiting("CreateContainerConfigError", "secret \"k\" not found"),
        Reason::SecretNotFound
    )]
    #[case::key(
        waiting("CreateContainerConfigError", "couldn't find key t in Secret a/k"),
        Reason::SecretKeyNotFound
    )]
    #[case::unschedulable(pod(json!({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: insufficient cpu"},
    ]})), Reason::Unschedulable)]
    fn what_keeps_a_pod(#[case] pod: Pod, #[case] expected: Reason) {
        let PodFact::Pending(Some((reason, message))) = fact(&pod) else {
            panic!("{:?}", fact(&pod))
        };
        assert_eq!(reason, expected);
        assert!(!message.is_empty());
    }

    #[rstest]
    #[case::oom(terminated(137, "OOMKilled", ""), Reason::OutOfMemory)]
    #[case::oom_of_the_child(
        terminated(137, "Error", "OutOfMemory: signal 9"),
        Reason::OutOfMemory
    )]
    #[case::not_found(terminated(127, "Error", "mcp-x: not found"), Reason::CommandNotFound)]
    #[case::not_executable(terminated(126, "Error", ""), Reason::CommandNotExecutable)]
    #[case::never_ran(
        terminated(127, "Error", "CommandNotFound: command not found: x"),
        Reason::CommandNotFound
    )]
    #[case::never_executed(
        terminated(126, "Error", "CommandNotExecutable: command not executable: x (denied)"),
        Reason::CommandNotExecutable
    )]
    #[case::ran_and_ended_with_127(
        terminated(127, "Error", "ServerExited: exit code 127\nsh: no-such-thing: not found"),
        Reason::ServerExited
    )]
    #[case::ran_and_ended_with_126(
        terminated(126, "Error", "ServerExited: exit code 126"),
        Reason::ServerExited
    )]
    #[case::nothing_to_start(
        terminated(128, "StartError", "exec: \"/x\": stat /x: no such file or directory"),
        Reason::CommandNotFound
    )]
    #[case::no_such_folder(
        terminated(128, "StartError", "mkdir /x: no such file or directory"),
        Reason::PodConfigError
    )]
    #[case::null(
        terminated(128, "StartError", "environment variable value can't contain null"),
        Reason::PodConfigError
    )]
    #[case::too_little_memory(
        terminated(128, "StartError", "container init was OOM-killed (memory limit too low?)"),
        Reason::OutOfMemory
    )]
    #[case::exit(terminated(3, "Error", "no such database"), Reason::ServerExited)]
    #[case::zero(terminated(0, "Completed", ""), Reason::ServerExited)]
    #[case::evicted(pod(json!({"phase": "Failed", "reason": "Evicted", "message": "disk"})), Reason::PodLost)]
    fn how_a_server_ends(#[case] pod: Pod, #[case] expected: Reason) {
        let PodFact::Ended(reason, _) = fact(&pod) else { panic!("{:?}", fact(&pod)) };
        assert_eq!(reason, expected);
    }

    #[test]
    fn the_message_names_the_code_and_the_last_words_without_secrets() {
        let pod = terminated(3, "Error", "bad key sk-proj-abcdefghijklmnop1234567890");
        let PodFact::Ended(_, message) = fact(&pod) else { panic!() };
        assert!(message.starts_with("The server ended with code 3: bad key "), "{message}");
        assert!(!message.contains("abcdefghijklmnop"), "{message}");
    }

    #[rstest]
    #[case(2, "ServerExited: exit code 2\nusage: x", "The server ended with code 2: usage: x")]
    #[case(2, "ServerExited: exit code 2\n", "The server ended with code 2.")]
    #[case(137, "ServerExited: signal 9", "The server ended with code 137: signal 9")]
    #[case(137, "OutOfMemory: signal 9\nx", "The server went over its memory limit: signal 9\nx")]
    #[case(127, "CommandNotFound: command not found: y", "The command is not in the image: y")]
    #[case(
        126,
        "CommandNotExecutable: command not executable: y (z)",
        "The command cannot be executed: y (z)"
    )]
    #[case(3, "", "The server ended with code 3.")]
    #[case(3, "Error: no database", "The server ended with code 3: Error: no database")]
    fn no_word_is_said_twice(#[case] code: i32, #[case] left: &str, #[case] expected: &str) {
        let PodFact::Ended(_, message) = fact(&terminated(code, "Error", left)) else { panic!() };
        assert_eq!(message, expected);
    }

    #[rstest]
    #[case(terminated(128, "StartError", NULL), Reason::PodConfigError)]
    #[case(waiting("RunContainerError", NULL), Reason::PodConfigError)]
    #[case(waiting("CreateContainerError", NULL), Reason::PodConfigError)]
    #[case(waiting("CreateContainerConfigError", NULL), Reason::PodConfigError)]
    fn the_runtime_tells_no_value_of_a_variable(#[case] pod: Pod, #[case] expected: Reason) {
        let (PodFact::Ended(reason, message) | PodFact::Pending(Some((reason, message)))) =
            fact(&pod)
        else {
            panic!("{:?}", fact(&pod))
        };
        assert_eq!(reason, expected);
        assert!(message.contains("can't contain null") && message.contains("KEY="), "{message}");
        assert!(!message.contains("canary") && !message.contains("tail"), "{message}");
    }

    const NULL: &str = r#"failed to create containerd task: environment variable value can't contain null(\x00): "KEY=canary\x00 \"tail", unknown"#;

    #[test]
    fn a_pod_that_lost_its_label_is_lost() {
        let mut pod = server(json!({"running": {}}));
        assert!(matches!(unguarded(&pod, "s-1"), Some(PodFact::Ended(Reason::PodLost, _))));
        pod.metadata.labels = Some([(SESSION_UID.to_owned(), "s-2".to_owned())].into());
        assert!(unguarded(&pod, "s-1").is_some());
        assert_eq!(unguarded(&pod, "s-2"), None);
        let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        assert_eq!(unguarded(&serde_json::from_value(going).unwrap(), "s-1"), None);
    }

    #[test]
    fn the_shims_words_are_reasons() {
        let shim = include_str!("../../shim/src/termination.rs");
        let (code, _) = shim.split_once("#[cfg(test)]").unwrap();
        let words = code.split('"').skip(1).step_by(2);
        let words: Vec<_> =
            words.filter(|w| w.len() > 3 && w.chars().all(|c| c.is_ascii_alphabetic())).collect();
        let known: Vec<_> = SHIM_WORDS.iter().map(|r| r.as_str()).collect();
        assert_eq!(words, known);
    }

    #[test]
    fn running_needs_container_and_address() {
        let running = server(json!({"running": {}}));
        let expected = PodFact::Running { uid: "u-1".into(), address: "10.0.0.7".into() };
        assert_eq!(fact(&running), expected);
        let creating = waiting("ContainerCreating", "");
        assert_eq!(fact(&creating), PodFact::Pending(None));
    }
}
