//! What becomes of generations, on record: published, drained, lost. Not on the way of a call.

use super::{Parts, post::Post};
use crate::{
    domain::record::{Entry, Kind},
    gateway::handle::target_text,
};

/// Appends one lifecycle record. A journal that does not take it is logged: calls are refused by
/// themselves then.
pub fn lifecycle(
    parts: &Parts,
    post: &Post,
    generation: i64,
    what: &str,
) -> impl Future<Output = ()> + use<> {
    let entry = post.units.get(&generation).map(|unit| Entry {
        session: Some(post.hosted.label.clone()),
        attachment: Some(unit.generation.attachment.clone()),
        generation: Some(generation),
        target: Some(target_text(&unit.generation.target)),
        reason: unit.charge.lost.as_ref().map(|f| f.reason),
        message: Some(match &unit.charge.lost {
            Some(failure) => format!("{what}: {}", failure.message),
            None => what.to_owned(),
        }),
        ..Entry::new(parts.clock.now(), Kind::Lifecycle)
    });
    let (append, metrics) = (parts.append.clone(), parts.metrics.clone());
    let (chain, epoch) = (post.hosted.chain.clone(), post.seat.epoch);
    async move {
        let Some(entry) = entry else { return };
        if let Err(error) = append.append(&chain, epoch, entry).await {
            metrics.unrecorded.inc();
            tracing::error!(%error, ?chain, "a lifecycle record was not taken");
        }
    }
}
