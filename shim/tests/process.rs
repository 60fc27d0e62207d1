//! The life of the child under a running shim: status, signals, group, environment, pipes.
#![allow(clippy::unwrap_used, reason = "test code")]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use awaken_shim::frame::Exited;
use nix::sys::signal::Signal;
use support::{Shim, command, until};

#[tokio::test]
async fn the_exit_status_is_the_childs() {
    for (script, code, message) in [
        ("exit 0", 0, "ServerExited: exit code 0"),
        ("echo oh no >&2; exit 3", 3, "ServerExited: exit code 3\noh no"),
        ("kill -9 $$", 137, "ServerExited: signal 9"),
        ("kill -TERM $$", 143, "ServerExited: signal 15"),
    ] {
        let mut shim = Shim::start(&["sh", "-c", script]).await;
        assert_eq!(shim.exit_code().await, Some(code), "{script}");
        assert_eq!(shim.termination(), message);
    }
}

#[tokio::test]
async fn a_child_that_exits_in_a_call_is_told_with_code_and_last_lines() {
    let mut shim = Shim::scripted(&[]).await;
    let mut link = shim.attach(1, "a").await;
    link.call("1-1", "exit", "{\"code\":1,\"stderr\":\"disk full\"}").await;
    let told = link.exited().await;
    assert_eq!(told, Exited { code: Some(1), signal: None, stderr_tail: "disk full".into() });
    assert!(link.hear().await.is_none(), "then the link closes");
    assert_eq!(shim.exit_code().await, Some(1));
}

#[tokio::test]
async fn the_last_answer_before_the_end_arrives() {
    let shim = Shim::start(&[
        "sh",
        "-c",
        "read line; printf '{\"jsonrpc\":\"2.0\",\"id\":\"1-1\",\"result\":{}}'; exit 4",
    ])
    .await;
    let mut link = shim.attach(1, "a").await;
    link.call("1-1", "x", "{}").await;
    assert_eq!(link.message().await.1, support::answer("1-1", "{}"));
    assert_eq!(link.exited().await.code, Some(4));
}

#[tokio::test]
async fn a_command_that_cannot_run_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str, mode| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let plain = file("plain", "text", 0o644);
    let script = file("script", "#!/no/such/interpreter\n", 0o755);
    for (program, code, line, reason) in [
        ("no-such-server", 127, "command not found: no-such-server", "CommandNotFound"),
        ("/no/such/server", 127, "command not found: /no/such/server", "CommandNotFound"),
        (&script, 127, "its interpreter is missing", "CommandNotFound"),
        (&plain, 126, "command not executable: ", "CommandNotExecutable"),
    ] {
        let output = command(folder.path(), &[program, "arg"]).output().await.unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(
            stderr.starts_with("awaken-shim: command not ") && stderr.contains(line),
            "{stderr}"
        );
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        let message = std::fs::read_to_string(folder.path().join("termination")).unwrap();
        assert!(message.starts_with(&format!("{reason}: command not ")), "{message}");
    }
}

#[tokio::test]
async fn the_environment_is_cleaned_and_arguments_pass_as_they_are() {
    let scripted = support::scripted();
    let shim = Shim::start_with(&[scripted.to_str().unwrap()], |command| {
        command
            .env("KUBERNETES_SERVICE_HOST", "10.0.0.1")
            .env("KUBERNETES_PORT", "443")
            .env("API_KEY", "se same");
    })
    .await;
    let mut link = shim.attach(1, "a").await;
    link.call("1-1", "env", "{}").await;
    let env = link.message().await.1;
    assert!(env.contains("\"API_KEY\":\"se same\"") && env.contains("\"PATH\":"), "{env}");
    assert!(!env.contains("KUBERNETES_") && !env.contains("AWAKEN_"), "{env}");

    let print = "printf '%s|' \"$@\"; echo; read line";
    let mut echo = Shim::start(&["sh", "-c", print, "sh", "$HOME", "a b", "$(id)", "*", ""]).await;
    let mut link = echo.attach(1, "a").await;
    let awaken_shim::Control::Noise { sample, .. } = link.next_control().await.unwrap() else {
        panic!("no noise")
    };
    assert_eq!(sample, "$HOME|a b|$(id)|*||");
    link.call("1-1", "x", "{}").await;
    assert_eq!(echo.exit_code().await, Some(0));
}

#[tokio::test]
async fn sigterm_closes_stdin_first() {
    let mut shim = Shim::scripted(&[]).await;
    let started = Instant::now();
    shim.signal(Signal::SIGTERM);
    assert_eq!(shim.exit_code().await, Some(0), "it ended by itself");
    assert!(started.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn sigterm_and_sigint_are_forwarded() {
    for (signal, name, code) in [(Signal::SIGTERM, "TERM", 42), (Signal::SIGINT, "INT", 43)] {
        let script =
            format!("trap 'exit {code}' {name}; echo up >&2; while :; do sleep 0.05; done");
        let mut shim = Shim::start(&["sh", "-c", &script]).await;
        shim.until_logged("up").await;
        shim.signal(signal);
        assert_eq!(shim.exit_code().await, Some(code));
    }
}

#[tokio::test]
async fn a_signal_reaches_the_whole_group() {
    let script = "sh -c 'trap \"echo inner >&2; exit 0\" TERM; while :; do sleep 0.05; done' & \
                  trap 'wait; exit 44' TERM; echo up >&2; while :; do sleep 0.05; done";
    let mut shim = Shim::start(&["sh", "-c", script]).await;
    shim.until_logged("up").await;
    shim.signal(Signal::SIGTERM);
    assert_eq!(shim.exit_code().await, Some(44));
    shim.until_logged("inner").await;
}

#[tokio::test]
async fn a_child_that_ignores_sigterm_is_killed() {
    let script = "trap '' TERM; echo up >&2; while :; do sleep 0.05; done";
    let mut shim = Shim::start(&["sh", "-c", script]).await;
    shim.until_logged("up").await;
    shim.signal(Signal::SIGTERM);
    assert_eq!(shim.exit_code().await, Some(137));
}

fn alive(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn pid_in(shim: &Shim, label: &str) -> String {
    let log = shim.log.lock().unwrap();
    let line = log.lines().find_map(|line| line.strip_prefix(label)).unwrap_or_default();
    line.trim().to_owned()
}

#[tokio::test]
async fn nothing_of_the_group_outlives_the_child() {
    let script = "sleep 600 & echo polite $! >&2; \
                  sh -c 'trap \"\" TERM; echo stubborn $$ >&2; while :; do sleep 0.05; done' & \
                  read line; exit 5";
    let mut shim = Shim::start(&["sh", "-c", script]).await;
    until(|| !pid_in(&shim, "stubborn").is_empty() && !pid_in(&shim, "polite").is_empty()).await;
    let (polite, stubborn) = (pid_in(&shim, "polite"), pid_in(&shim, "stubborn"));
    assert!(alive(&polite) && alive(&stubborn));
    let mut link = shim.attach(1, "a").await;
    let asked = Instant::now();
    link.call("1-1", "x", "{}").await;
    assert_eq!(link.exited().await.code, Some(5));
    assert!(asked.elapsed() < Duration::from_secs(4), "told before the group is gone");
    assert_eq!(shim.exit_code().await, Some(5));
    assert!(!alive(&polite) && !alive(&stubborn));
}

#[tokio::test]
async fn orphans_are_reaped_and_the_childs_status_is_its_own() {
    let script = "for n in 1 2 3; do (sh -c 'echo orphan $$ >&2; exit 9' &); done; \
                  (setsid sh -c 'sleep 0.1; exit 8' &); read line; exit 6";
    let mut shim = Shim::start(&["sh", "-c", script]).await;
    until(|| shim.log.lock().unwrap().matches("orphan ").count() == 3).await;
    let pid = shim.pid();
    let children = move || {
        let path = format!("/proc/{pid}/task/{pid}/children");
        std::fs::read_to_string(path).unwrap_or_default().split_whitespace().count()
    };
    until(|| children() == 1).await;
    let mut link = shim.attach(1, "a").await;
    link.call("1-1", "x", "{}").await;
    assert_eq!(link.exited().await.code, Some(6));
    drop(link);
    assert_eq!(shim.exit_code().await, Some(6));
}

#[tokio::test]
async fn a_server_that_closes_its_stdout_or_stdin_is_ended() {
    for script in ["exec >&-; exec sleep 600", "exec <&-; exec sleep 600"] {
        let mut shim = Shim::start(&["sh", "-c", script]).await;
        let mut link = shim.attach(1, "a").await;
        for n in 0..3 {
            link.call(&format!("1-{n}"), "x", "{}").await;
        }
        assert_eq!(link.exited().await.signal, Some(15), "{script}");
        drop(link);
        assert_eq!(shim.exit_code().await, Some(143));
    }
}

#[tokio::test]
async fn stderr_is_drained_and_its_last_lines_are_scrubbed() {
    let scripted = support::scripted();
    let mut shim = Shim::start_with(
        &[scripted.to_str().unwrap(), "--stderr", "\x1b[31musing key open-sesame\x07"],
        |command| {
            command.env("MY_API_KEY", "open-sesame");
        },
    )
    .await;
    let mut link = shim.attach(1, "a").await;
    let started = Instant::now();
    link.call("1-1", "stderr", "{\"size\":1048576}").await;
    link.message().await;
    assert!(started.elapsed() < Duration::from_secs(2));
    link.call("1-2", "exit", "{\"code\":1,\"stderr\":\"bad key open-sesame\"}").await;
    let tail = link.exited().await.stderr_tail;
    assert!(tail.ends_with("\nbad key [redacted]") && tail.len() <= 2048, "{tail}");
    drop(link);
    assert_eq!(shim.exit_code().await, Some(1));
    assert!(shim.termination().ends_with("bad key [redacted]"));
    until(|| shim.log.lock().unwrap().contains("bad key open-sesame")).await;
}

#[tokio::test]
async fn a_log_that_nobody_reads_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let address = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().to_string()
    };
    let scripted = support::scripted();
    let mut child = command(folder.path(), &[scripted.to_str().unwrap()]);
    // The last --listen counts.
    let arguments: Vec<_> = child.as_std().get_args().map(std::ffi::OsStr::to_owned).collect();
    let mut again = tokio::process::Command::new(env!("CARGO_BIN_EXE_awaken-shim"));
    again.args(
        arguments.iter().map(|a| if a == "127.0.0.1:0" { address.as_ref() } else { a.as_os_str() }),
    );
    for (name, value) in child.as_std().get_envs() {
        again.env(name, value.unwrap());
    }
    child = again;
    child.stderr(std::process::Stdio::piped()).kill_on_drop(true);
    let running = child.spawn().unwrap();
    until(|| std::net::TcpStream::connect(&address).is_ok()).await;
    let shim = Shim { child: running, address, log: Default::default(), folder };
    let mut link = shim.attach(1, "a").await;
    link.call("1-1", "stderr", "{\"size\":8388608}").await;
    assert_eq!(link.message().await.1, support::answer("1-1", "{}"));
}

#[tokio::test]
async fn it_copies_itself() {
    let folder = tempfile::tempdir().unwrap();
    let dest = folder.path().join("awaken-shim");
    let copy = async |from: &std::path::Path| {
        tokio::process::Command::new(from).arg("copy").arg(&dest).status().await.unwrap()
    };
    assert!(copy(env!("CARGO_BIN_EXE_awaken-shim").as_ref()).await.success());
    assert_eq!(std::fs::metadata(&dest).unwrap().permissions().mode() & 0o7777, 0o755);
    assert!(copy(&dest.clone()).await.success(), "the copy runs, and replaces a running file");
    let mut wrong = tokio::process::Command::new(&dest);
    let status = wrong.arg("copy").arg("/no/such/folder/x").status().await.unwrap();
    assert!(!status.success());
}
