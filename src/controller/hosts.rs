//! Which gateway serves a Session: live gateways by their Leases, rendezvous hashing, sticky.
//!
//! A Lease is live until it was seen unchanged for its whole duration on our own monotonic clock;
//! times of other machines are not compared.

use crate::{api::session::Host, domain::identity::Fingerprint};
use k8s_openapi::api::coordination::v1::Lease;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::watch, time::Instant};

/// A gateway that may serve.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gateway {
    /// Name of its pod and of its Lease.
    pub name: String,
    /// Which start of it.
    pub incarnation: String,
}

/// Where a Session is or shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// What belongs into `status.host`.
    pub host: Option<Host>,
    /// Whether that gateway is alive.
    pub alive: bool,
}

/// Places a Session. A live host stays; otherwise the live gateway with the highest hash over both
/// names takes over under the next epoch. Without any, the last host stays on record, not alive.
pub fn place(session_uid: &str, present: Option<&Host>, live: &[Gateway]) -> Placement {
    if let Some(host) = present
        && live.iter().any(|g| g.name == host.gateway && g.incarnation == host.incarnation)
    {
        return Placement { host: Some(host.clone()), alive: true };
    }
    let same_name = live.iter().find(|g| present.is_some_and(|h| h.gateway == g.name));
    let weight =
        |g: &&Gateway| Fingerprint::new("placement").field(session_uid).field(&g.name).finish();
    match same_name.or_else(|| live.iter().max_by_key(weight)) {
        None => Placement { host: present.cloned(), alive: false },
        Some(g) => Placement {
            host: Some(Host {
                gateway: g.name.clone(),
                incarnation: g.incarnation.clone(),
                epoch: present.map_or(0, |h| h.epoch) + 1,
            }),
            alive: true,
        },
    }
}

/// The gateways' Leases as they were seen to change.
#[derive(Debug, Default)]
pub struct Gateways {
    seen: Mutex<BTreeMap<String, Seen>>,
    listed: watch::Sender<bool>,
}

#[derive(Debug)]
struct Seen {
    incarnation: String,
    renewed: Option<k8s_openapi::jiff::Timestamp>,
    expires: Instant,
}

impl Gateways {
    /// Takes a Lease in as it is now; tells whether who is alive changed.
    pub fn apply(&self, lease: &Lease, now: Instant) -> bool {
        let (Some(name), Some(spec)) = (&lease.metadata.name, &lease.spec) else { return false };
        let Some(incarnation) = spec.holder_identity.clone().filter(|i| !i.is_empty()) else {
            return self.forget(name);
        };
        let seconds = spec.lease_duration_seconds.unwrap_or(15).max(1);
        let expires = now + Duration::from_secs(u64::from(seconds.unsigned_abs()));
        let renewed = spec.renew_time.as_ref().map(|t| t.0);
        let mut all = self.lock();
        match all.get_mut(name) {
            Some(seen) if seen.incarnation == incarnation => {
                let was_alive = seen.expires > now;
                if seen.renewed != renewed {
                    (seen.renewed, seen.expires) = (renewed, expires);
                }
                !was_alive && seen.expires > now
            }
            _ => {
                all.insert(name.clone(), Seen { incarnation, renewed, expires });
                true
            }
        }
    }

    /// A Lease is gone.
    pub fn forget(&self, name: &str) -> bool {
        self.lock().remove(name).is_some()
    }

    /// Takes in all Leases there are, and no other; tells whether who is alive changed.
    pub fn list(&self, leases: &[Arc<Lease>], now: Instant) -> bool {
        let there = |name: &String| leases.iter().any(|l| l.metadata.name.as_ref() == Some(name));
        let mut all = self.lock();
        let before = all.len();
        all.retain(|name, _| there(name));
        let gone = all.len() != before;
        drop(all);
        let changed = leases.iter().fold(gone, |changed, l| self.apply(l, now) || changed);
        self.listed.send_replace(true);
        changed
    }

    /// Waits for the first list: before, nobody can be said to be gone.
    pub async fn ready(&self) {
        // The sender is our own, so it cannot be closed.
        let _ = self.listed.subscribe().wait_for(|listed| *listed).await;
    }

    /// Who is alive, by name.
    pub fn live(&self, now: Instant) -> Vec<Gateway> {
        let all = self.lock();
        let live = all.iter().filter(|(_, seen)| seen.expires > now);
        live.map(|(name, seen)| Gateway {
            name: name.clone(),
            incarnation: seen.incarnation.clone(),
        })
        .collect()
    }

    /// When the next of those alive expires, if it is not renewed.
    pub fn next_expiry(&self, now: Instant) -> Option<Instant> {
        self.lock().values().map(|seen| seen.expires).filter(|at| *at > now).min()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::{
        api::coordination::v1::LeaseSpec, apimachinery::pkg::apis::meta::v1::MicroTime, jiff,
    };

    fn gateway(name: &str, incarnation: &str) -> Gateway {
        Gateway { name: name.to_owned(), incarnation: incarnation.to_owned() }
    }

    fn host(gateway: &str, incarnation: &str, epoch: i64) -> Host {
        Host { gateway: gateway.to_owned(), incarnation: incarnation.to_owned(), epoch }
    }

    #[test]
    fn a_live_host_stays_and_keeps_its_epoch() {
        let live = [gateway("gw-a", "i1"), gateway("gw-b", "i2"), gateway("gw-c", "i3")];
        let present = host("gw-b", "i2", 7);
        let placed = place("s", Some(&present), &live);
        assert_eq!(placed, Placement { host: Some(present), alive: true });
    }

    #[test]
    fn a_new_start_of_the_same_gateway_is_a_move() {
        let live = [gateway("gw-a", "i1"), gateway("gw-b", "i9")];
        let placed = place("s", Some(&host("gw-b", "i2", 7)), &live);
        assert_eq!(placed.host, Some(host("gw-b", "i9", 8)));
    }

    #[test]
    fn without_a_gateway_the_last_host_stays_on_record() {
        let present = host("gw-b", "i2", 7);
        assert_eq!(
            place("s", Some(&present), &[]),
            Placement { host: Some(present), alive: false }
        );
        assert_eq!(place("s", None, &[]), Placement { host: None, alive: false });
    }

    #[test]
    fn only_sessions_of_a_lost_gateway_move() {
        let all: Vec<_> = ["gw-a", "gw-b", "gw-c"].iter().map(|n| gateway(n, "i")).collect();
        for n in 0..50 {
            let uid = format!("session-{n}");
            let first = place(&uid, None, &all).host.unwrap();
            let rest: Vec<_> = all.iter().filter(|g| g.name != "gw-c").cloned().collect();
            let second = place(&uid, None, &rest).host.unwrap();
            assert!(first.gateway == "gw-c" || first.gateway == second.gateway);
        }
    }

    fn lease(holder: &str, renewed: i64) -> Lease {
        let mut lease = Lease::default();
        lease.metadata.name = Some("gw-a".to_owned());
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            renew_time: Some(MicroTime(jiff::Timestamp::from_second(renewed).unwrap())),
            ..LeaseSpec::default()
        });
        lease
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_does_not_change_expires_by_our_clock() {
        let (gateways, start) = (Gateways::default(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        assert!(gateways.apply(&lease("i1", 100), at(0)), "new");
        assert!(!gateways.apply(&lease("i1", 105), at(5)), "renewed");
        assert!(!gateways.apply(&lease("i1", 105), at(10)), "seen again, not renewed");
        assert_eq!(gateways.live(at(19)), [gateway("gw-a", "i1")]);
        assert_eq!(gateways.next_expiry(at(19)), Some(at(20)));
        assert_eq!(gateways.live(at(20)), []);
        assert!(gateways.apply(&lease("i1", 121), at(21)), "back");
        assert!(gateways.apply(&lease("i2", 121), at(22)), "another start");
        assert_eq!(gateways.live(at(22)), [gateway("gw-a", "i2")]);
        assert!(gateways.forget("gw-a"));
        assert_eq!(gateways.live(at(22)), []);
    }
}
