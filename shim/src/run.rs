//! `run`: from the command line to the exit code, through the child's whole life.

use std::cell::RefCell;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use awaken_shim::buffer::{Inbox, Outbox};
use awaken_shim::challenge;
use awaken_shim::fence::{Fence, Identity};
use awaken_shim::frame::{ChildInfo, Exited, Initialize, OUT_OF_MEMORY};
use nix::sys::signal::Signal;
use tokio::net::TcpListener;
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::timeout;

use crate::args::Run;
use crate::child::{self, Ended, GRACE, Reaper};
use crate::hub::{Hub, State};
use crate::scrub::Scrubber;
use crate::stderr::{self, Log, Tail};
use crate::{attach, oom, pump, termination};

/// Time for a child to end by itself after its stdin closed.
const AFTER_STDIN: Duration = Duration::from_secs(2);
/// Time to read what an ended child left in its pipes: with a gateway to tell it to, and without.
const LEFTOVERS: (Duration, Duration) = (Duration::from_secs(2), Duration::from_millis(500));
/// Time for the link to tell everything.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// Runs the command; the exit code is the child's.
pub fn run(args: Run) -> anyhow::Result<ExitCode> {
    // The child has our user: so it cannot read our environment and memory below /proc.
    nix::sys::prctl::set_dumpable(false).context("cannot close /proc to the child")?;
    let keys = std::env::var("AWAKEN_GATEWAY_KEYS").context("AWAKEN_GATEWAY_KEYS is not set")?;
    let keys = challenge::parse_keys(&keys).context("AWAKEN_GATEWAY_KEYS")?;
    let pod_uid = std::env::var("AWAKEN_POD_UID").context("AWAKEN_POD_UID is not set")?;
    anyhow::ensure!(!pod_uid.is_empty(), "AWAKEN_POD_UID is empty");
    let identity = Identity {
        pod_uid,
        session_uid: args.session_uid.clone(),
        attachment_uid: args.attachment_uid.clone(),
        generation: args.generation,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, live(args, Fence::new(identity, keys)))
}

#[expect(clippy::disallowed_methods, reason = "the one place that asks for the time")]
fn milliseconds_since_1970() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

async fn live(args: Run, fence: Fence) -> anyhow::Result<ExitCode> {
    // Orphans below the child come to us, as they do when we are PID 1.
    let _ = nix::sys::prctl::set_child_subreaper(true);
    let mut reaper = Reaper::new()?;
    let mut stop = Stop::new()?;
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("cannot listen on {}", args.listen))?;
    let address = listener.local_addr()?;

    let env: Vec<_> = std::env::vars_os().collect();
    let mut process = match child::spawn(&args.command, &env) {
        Ok(process) => process,
        Err(error) => {
            eprintln!("awaken-shim: {error}");
            termination::write(&args.termination_log, &termination::not_started(&error));
            return Ok(ExitCode::from(error.exit_code()));
        }
    };
    reaper.watch(process.id());
    let readable = env.into_iter().filter(|(name, _)| !child::is_withheld(&name.to_string_lossy()));
    let readable = readable.map(|(name, value)| {
        (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
    });
    let hub = Rc::new(Hub {
        scrubber: Scrubber::new(readable, &args.secret_env),
        log: Log::start()?,
        limit: args.max_message_bytes,
        state: RefCell::new(State {
            fence,
            outbox: Outbox::default(),
            inbox: Inbox::new(args.max_message_bytes),
            unreported: 0,
            dropped: 0,
            sample: String::new(),
            initialize: Initialize::None,
            initialized: false,
            child: ChildInfo { pid: process.id(), started: milliseconds_since_1970() },
            exit: None,
            running: true,
            tail: Tail::default(),
            link: None,
            links: 0,
        }),
        output: Notify::new(),
        room: Notify::new(),
        input: Notify::new(),
        broken: Notify::new(),
        link_gone: Notify::new(),
    });
    hub.log.say(&format!("listening on {address}"));
    let piped = "all three streams are pipes";
    let stdin = ChildStdin::from_std(process.stdin.take().expect(piped))?;
    let stdout = ChildStdout::from_std(process.stdout.take().expect(piped))?;
    let stderr = ChildStderr::from_std(process.stderr.take().expect(piped))?;
    let tasks = Tasks {
        stdin: spawn_local(pump::write_stdin(hub.clone(), stdin)),
        stdout: spawn_local(pump::read_stdout(hub.clone(), stdout)),
        stderr: spawn_local(stderr::drain(hub.clone(), stderr)),
    };
    let port = spawn_local(attach::listen(hub.clone(), listener));

    let ended = until_ended(&hub, &mut reaper, &mut stop, &tasks.stdin).await;
    hub.state.borrow_mut().running = false;
    tell_end(&hub, ended, tasks).await;
    termination::write(
        &args.termination_log,
        &termination::ended(
            ended,
            was_out_of_memory(ended),
            &hub.state.borrow().tail.text(&hub.scrubber),
        ),
    );
    tokio::join!(reaper.end_group(), last_words(&hub));
    port.abort();
    hub.log.finish();
    Ok(exit_code(ended))
}

struct Tasks {
    stdin: JoinHandle<()>,
    stdout: JoinHandle<()>,
    stderr: JoinHandle<()>,
}

/// SIGTERM and SIGINT.
struct Stop {
    term: tokio::signal::unix::Signal,
    int: tokio::signal::unix::Signal,
}

impl Stop {
    fn new() -> std::io::Result<Self> {
        Ok(Self { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    async fn asked(&mut self) -> Signal {
        tokio::select! {
            _ = self.term.recv() => Signal::SIGTERM,
            _ = self.int.recv() => Signal::SIGINT,
        }
    }
}

/// Waits until the child ends, and ends it when asked to or when its pipes broke: closes stdin,
/// waits, SIGTERM, waits, SIGKILL.
async fn until_ended(
    hub: &Hub,
    reaper: &mut Reaper,
    stop: &mut Stop,
    stdin: &JoinHandle<()>,
) -> Ended {
    let mut asked = Signal::SIGTERM;
    tokio::select! {
        ended = reaper.ended() => return ended,
        signal = stop.asked() => asked = signal,
        () = hub.broken.notified() => {
            if let Some(ended) = reaper.ended_within(AFTER_STDIN).await {
                return ended;
            }
            hub.log.say("the server closed its stdin or stdout and goes on; it is ended");
        }
    }
    stdin.abort();
    tokio::select! {
        ended = reaper.ended_within(AFTER_STDIN) => if let Some(ended) = ended { return ended },
        signal = stop.asked() => asked = signal,
    }
    reaper.signal_group(asked);
    if let Some(ended) = reaper.ended_within(GRACE).await {
        return ended;
    }
    reaper.signal_group(Signal::SIGKILL);
    reaper.ended().await
}

/// Reads what is left, then lets the link tell how it ended.
async fn tell_end(hub: &Hub, ended: Ended, tasks: Tasks) {
    let attached = hub.state.borrow().link.is_some();
    let leftovers = if attached { LEFTOVERS.0 } else { LEFTOVERS.1 };
    tasks.stdin.abort();
    let both = async { tokio::join!(tasks.stdout, tasks.stderr) };
    let _ = timeout(leftovers, both).await;
    let (code, signal) = match ended {
        Ended::Code(code) => (Some(code), None),
        Ended::Signal(signal) => (None, Some(signal)),
    };
    let mut state = hub.state.borrow_mut();
    state.tail.end_line(&hub.scrubber);
    if was_out_of_memory(ended) {
        state.tail.feed(format!("{}\n", OUT_OF_MEMORY).as_bytes(), &hub.scrubber);
    }
    let stderr_tail = state.tail.text(&hub.scrubber);
    state.exit = Some(Exited { code, signal, stderr_tail });
    drop(state);
    hub.output.notify_one();
}

fn was_out_of_memory(ended: Ended) -> bool {
    matches!(ended, Ended::Signal(signal) if signal == Signal::SIGKILL as i32) && oom::happened()
}

async fn last_words(hub: &Hub) {
    let told = async {
        while hub.state.borrow().link.is_some() {
            hub.link_gone.notified().await;
        }
    };
    let _ = timeout(LAST_WORDS, told).await;
}

fn exit_code(ended: Ended) -> ExitCode {
    let code = match ended {
        Ended::Code(code) => code,
        Ended::Signal(signal) => 128 + signal,
    };
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
