//! Several gateways with the journal in Postgres, under load, while things end and break:
//! `cargo test --test fleet -- --nocapture`.
//!
//! Needs the bundled cluster (it ends processes and drops packets inside it), `AWAKEN_E2E_KUBECONFIG`
//! or `AWAKEN_TEST_KUBECONFIG`, and the product as `install_fleet` of scripts/product.sh installs it.
//! `AWAKEN_FLEET_SEED` repeats the choices of a run; `AWAKEN_FLEET_STEPS=ac` takes these steps only.
//! `AWAKEN_E2E_PATIENCE` makes limits longer, as for the end-to-end tests.

#![allow(clippy::unwrap_used, reason = "a test ends where it goes wrong")]

mod audit;
mod changes;
mod fleet;
mod load;
mod moves;
mod node;
mod outages;
#[path = "../e2e/support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the end-to-end tests use the rest")]
mod support;

use fleet::Fleet;
use std::env;
use tokio::time::Instant;

/// The choices of a run.
struct Chance(u64);

impl Chance {
    fn new() -> Self {
        let given = env::var("AWAKEN_FLEET_SEED").ok().and_then(|v| v.parse().ok());
        let seed = given.unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0);
        println!("AWAKEN_FLEET_SEED={seed}");
        Self(seed)
    }

    /// One of them (splitmix64).
    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        &of[usize::try_from((z ^ (z >> 31)) % of.len() as u64).expect("below a length")]
    }
}

/// In one test, since all of it happens to one installation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_live_through_what_happens_to_gateways() {
    let mut chance = Chance::new();
    let steps = env::var("AWAKEN_FLEET_STEPS").unwrap_or("abcdefgh".to_owned());
    let started = Instant::now();
    let fleet = Fleet::up().await;
    println!("{} Sessions served after {:.1?}", fleet.sessions.len(), started.elapsed());
    for step in steps.chars() {
        let started = Instant::now();
        let said = match step {
            'a' => moves::spread(&fleet).await,
            'b' => moves::rolled(&fleet).await,
            'c' => moves::killed(&fleet, &mut chance).await,
            'd' => moves::operator_killed(&fleet).await,
            'e' => changes::edits_and_rotation(&fleet, &mut chance).await,
            'f' => changes::session_pod_killed(&fleet, &mut chance).await,
            'g' => outages::postgres_killed(&fleet).await,
            'h' => outages::cut_off(&fleet, &mut chance).await,
            other => panic!("no step {other}"),
        };
        println!("{step} {said} ({:.1?})", started.elapsed());
    }
    fleet.team.end().await;
}
