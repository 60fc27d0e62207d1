//! Reading the body of a request up to the limit, without a copy where it came in one piece.

use crate::mcp::wire::{Id, IdScan};
use axum::body::{Body, HttpBody as _};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;

/// How much of a body over the limit is read to its end, as a multiple of the limit, so that the
/// connection stays; beyond it the connection is closed.
const SKIP: u64 = 4;
/// So much is set aside at once for a body that says its length.
const ROOM: u64 = 1 << 20;

/// Why there is no body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BodyError {
    /// It is over the limit. The id of the message, if it could be told.
    TooLarge(Option<Id>),
    /// The client broke off.
    Broken,
}

pub(super) async fn read(mut body: Body, limit: usize) -> Result<Bytes, BodyError> {
    let announced = body.size_hint().lower();
    let Some(first) = next(&mut body).await? else { return Ok(Bytes::new()) };
    if first.len() > limit || announced > limit as u64 {
        return Err(skip(body, &first, limit).await);
    }
    let Some(second) = next(&mut body).await? else { return Ok(first) };
    let room = announced.min(ROOM) as usize;
    let mut whole = BytesMut::with_capacity(room.max(first.len() + second.len()));
    whole.extend_from_slice(&first);
    let mut piece = second;
    loop {
        if whole.len() + piece.len() > limit {
            whole.extend_from_slice(&piece);
            return Err(skip(body, &whole, limit).await);
        }
        whole.extend_from_slice(&piece);
        match next(&mut body).await? {
            Some(next) => piece = next,
            None => return Ok(whole.freeze()),
        }
    }
}

async fn next(body: &mut Body) -> Result<Option<Bytes>, BodyError> {
    while let Some(frame) = body.frame().await {
        match frame.map_err(|_| BodyError::Broken)?.into_data() {
            Ok(data) if !data.is_empty() => return Ok(Some(data)),
            _ => {}
        }
    }
    Ok(None)
}

async fn skip(mut body: Body, start: &[u8], limit: usize) -> BodyError {
    let (mut scan, mut read) = (IdScan::default(), start.len() as u64);
    scan.push(start);
    while read <= SKIP * limit as u64 {
        match next(&mut body).await {
            Ok(Some(piece)) => {
                read += piece.len() as u64;
                scan.push(&piece);
            }
            Ok(None) => break,
            Err(error) => return error,
        }
    }
    BodyError::TooLarge(scan.id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;
    use std::convert::Infallible;

    fn pieces(pieces: &[&str]) -> Body {
        let pieces: Vec<Result<_, Infallible>> =
            pieces.iter().map(|p| Ok(Bytes::copy_from_slice(p.as_bytes()))).collect();
        Body::from_stream(stream::iter(pieces))
    }

    #[tokio::test]
    async fn one_piece_is_not_copied() {
        let whole = Bytes::from("x".repeat(100));
        let read = read(Body::from(whole.clone()), 100).await.unwrap();
        assert_eq!(read.as_ptr(), whole.as_ptr());
    }

    #[tokio::test]
    async fn pieces_are_joined_up_to_the_limit() {
        assert_eq!(read(pieces(&["ab", "", "cd", "e"]), 5).await.unwrap(), "abcde");
        assert_eq!(read(pieces(&[]), 5).await.unwrap(), "");
        assert_eq!(read(pieces(&["ab", "cd", "e"]), 4).await, Err(BodyError::TooLarge(None)));
    }

    #[tokio::test]
    async fn the_id_of_a_message_over_the_limit_is_found() {
        let id = Some(Id::number(41));
        let late = pieces(&["{\"a\":\"xxxxxxx\"", ",\"i", "d\":41", "}"]);
        assert_eq!(read(late, 20).await, Err(BodyError::TooLarge(id.clone())));
        let whole = Body::from("{\"id\":41,\"a\":\"xxxxxxx\"}");
        assert_eq!(read(whole, 20).await, Err(BodyError::TooLarge(id)));
    }
}
