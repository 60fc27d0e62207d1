//! The peer's housekeeping: acknowledgements, pings, cancellations and refusals. Nothing here may
//! wait for the window.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use awaken_shim::frame::{DEAD_AFTER_SECONDS, Draft, PING_AFTER_SECONDS};
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior};

use super::core::Core;

const TICK_SECONDS: u64 = 5;

/// Runs until the peer stops.
pub async fn keep(core: Arc<Core>, posted: mpsc::Receiver<Draft>) {
    tokio::select! {
        biased;
        () = core.stop.cancelled() => {}
        () = send(&core, posted) => {}
        () = listen(&core) => {}
    }
}

fn ticks() -> Interval {
    let mut tick = tokio::time::interval(Duration::from_secs(TICK_SECONDS));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick
}

/// Cuts a link on which nothing is heard. It takes no lock: a sender that is stuck holds it.
async fn listen(core: &Core) {
    let mut tick = ticks();
    let (mut heard, mut silent) = (0, 0);
    loop {
        tick.tick().await;
        let now = core.heard.load(Ordering::Relaxed);
        silent = if now == heard { silent + TICK_SECONDS } else { 0 };
        heard = now;
        if silent >= DEAD_AFTER_SECONDS {
            silent = 0;
            core.cut_link();
        } else if silent >= PING_AFTER_SECONDS {
            core.ping_now.notify_one();
        }
    }
}

/// Sends what is small, as soon as it may.
async fn send(core: &Core, mut posted: mpsc::Receiver<Draft>) {
    let mut tick = ticks();
    let mut held: Option<Draft> = None;
    loop {
        let opened = core.window_opened.notified();
        tokio::pin!(opened);
        opened.as_mut().enable();
        if let Some(draft) = held.take() {
            held = core.send_small(draft).await.err();
        }
        tokio::select! {
            biased;
            () = core.acknowledge_now.notified() => core.send_control(false).await,
            () = core.flush_now.notified() => core.flush(&mut *core.writer.lock().await).await,
            draft = posted.recv(), if held.is_none() => held = draft,
            () = opened, if held.is_some() => {}
            () = core.ping_now.notified() => core.send_control(true).await,
            _ = tick.tick() => core.send_control(false).await,
        }
    }
}
