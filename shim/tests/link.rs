//! The link of a running shim: challenge, fence, messages, hand-over, bounds.
#![allow(clippy::unwrap_used, reason = "test code")]

mod support;

use awaken_shim::frame::{Control, Initialize, KEEP, TooLarge, WINDOW};
use awaken_shim::{Kind, Refusal};
use ed25519_dalek::SigningKey;
use support::{LIMIT, Said, Shim, answer, claim, key, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn only_the_right_key_and_claim_attach() {
    let shim = Shim::scripted(&[]).await;
    let stranger = SigningKey::from_bytes(&[12; 32]);
    let mut wrong_pod = claim(9, "a");
    wrong_pod.pod_uid = "pod-9".into();
    let mut wrong_generation = claim(9, "a");
    wrong_generation.generation = 3;
    let table = [
        (claim(9, "a"), &stranger, Refusal::BadSignature),
        (wrong_pod, &key(), Refusal::WrongPod),
        (wrong_generation, &key(), Refusal::WrongGeneration),
    ];
    for (claim, key, expected) in table {
        let refused = shim.try_attach(&claim, key).await.map(|_| ()).unwrap_err();
        assert_eq!(refused.0, expected, "{}", refused.1);
    }
    let mut link = shim.attach(1, "a").await;
    link.call("1-1", "echo", "{\"a\":1}").await;
    assert_eq!(link.message().await, (1, answer("1-1", "{\"a\":1}")));
}

#[tokio::test]
async fn a_signature_is_good_for_one_link() {
    let shim = Shim::scripted(&[]).await;
    let mut first = shim.connect().await;
    let mut second = shim.connect().await;
    use futures_util::{SinkExt, StreamExt};
    let nonce = |text: &str| match Control::from_text(text).unwrap() {
        Control::Challenge { nonce, .. } => awaken_shim::challenge::parse_nonce(&nonce).unwrap(),
        other => panic!("{other:?}"),
    };
    let seen = nonce(first.next().await.unwrap().unwrap().to_text().unwrap());
    assert_ne!(seen, nonce(second.next().await.unwrap().unwrap().to_text().unwrap()));
    let signature = awaken_shim::challenge::sign(&key(), &seen, &claim(1, "a"));
    let replayed = Control::Attach { claim: claim(1, "a"), signature }.to_text();
    second.send(tokio_tungstenite::tungstenite::Message::text(replayed)).await.unwrap();
    let said = second.next().await.unwrap().unwrap().into_text().unwrap();
    assert!(said.contains("BadSignature"), "{said}");
}

#[tokio::test]
async fn a_stranger_may_send_only_small_frames() {
    let shim = Shim::scripted(&[]).await;
    let mut socket = shim.connect().await;
    // The head of a masked text frame of 16 KiB, and nothing of it.
    let head = [0x81, 0xFE, 0x40, 0x00, 1, 2, 3, 4];
    socket.get_mut().write_all(&head).await.unwrap();
    let mut said = Vec::new();
    use futures_util::StreamExt;
    while let Some(Ok(message)) = socket.next().await {
        said.push(message.to_string());
    }
    assert!(said.iter().any(|text| text.contains("first frame")), "{said:?}");
}

#[tokio::test]
async fn payloads_pass_verbatim_and_as_one_line() {
    let shim = Shim::scripted(&[]).await;
    let mut link = shim.attach(1, "a").await;
    let odd = r#"{"z":1.0, "a":123456789012345678901234567890,"é":"\u00e9\u2028","e":1E400}"#;
    link.call("1-1", "echo", odd).await;
    assert_eq!(link.message().await.1, answer("1-1", odd));
    let smuggled = "{\"jsonrpc\":\"2.0\",\"id\":\"1-2\",\"method\":\"line\"\n,\"params\":\r\n{}}";
    link.send(Kind::Message, smuggled.as_bytes()).await;
    let line = smuggled.replace(['\r', '\n'], " ");
    assert_eq!(link.message().await.1, answer("1-2", &serde_json::to_string(&line).unwrap()));
}

#[tokio::test]
async fn a_higher_epoch_cuts_a_lower_is_refused_and_the_child_stays() {
    let shim = Shim::scripted(&[]).await;
    let mut first = shim.attach(5, "a").await;
    let mut second = shim.attach(6, "b").await;
    assert_eq!(first.refused().await, Refusal::Superseded);
    assert!(first.hear().await.is_none(), "then it is closed");
    for (stale, expected) in
        [(claim(5, "a"), Refusal::StaleEpoch), (claim(6, "c"), Refusal::EpochTaken)]
    {
        let refused = shim.try_attach(&stale, &key()).await.map(|_| ()).unwrap_err();
        assert_eq!(refused.0, expected);
    }
    second.call("6-1", "echo", "[]").await;
    assert_eq!(second.message().await.1, answer("6-1", "[]"), "refusals leave it alone");
    let third = shim.attach(6, "b").await;
    assert_eq!(second.refused().await, Refusal::Superseded, "the same gateway came back");
    assert_eq!(first.state().child, third.state().child);
    assert_eq!(third.state().received, 1);
}

#[tokio::test]
async fn output_that_nobody_acknowledged_is_handed_over_once() {
    let shim = Shim::scripted(&[]).await;
    let mut first = shim.attach(1, "a").await;
    for n in 1..=3 {
        first.call(&format!("1-{n}"), "echo", &n.to_string()).await;
        assert_eq!(first.message().await.0, n);
    }
    first.acknowledge(2).await;
    first.call("1-4", "slow", "{\"ms\":200}").await;
    first.call("1-5", "echo", "5").await;
    assert_eq!(first.message().await, (4, answer("1-5", "5")), "so the slow one was taken");
    drop(first);

    let mut second = shim.attach(2, "b").await;
    assert_eq!((second.state().acknowledged, second.state().received), (2, 0));
    assert_eq!(second.message().await, (3, answer("1-3", "3")));
    assert_eq!(second.message().await, (4, answer("1-5", "5")));
    assert_eq!(second.message().await, (5, answer("1-4", "{\"slept\":200}")));
    second.call("2-1", "echo", "0").await;
    assert_eq!(second.message().await, (6, answer("2-1", "0")));
    second.acknowledge(6).await;
    second.call("2-2", "echo", "0").await;
    second.message().await;
    drop(second);

    let mut third = shim.attach(2, "b").await;
    assert_eq!((third.state().acknowledged, third.state().received), (6, 2));
    assert_eq!(third.message().await, (7, answer("2-2", "0")));
}

#[tokio::test]
async fn initialize_is_kept_and_never_repeated() {
    let shim = Shim::scripted(&[]).await;
    let mut first = shim.attach(1, "a").await;
    assert!(matches!(first.state().initialize, Initialize::None));
    first.call("1-1", "initialize", "{}").await;
    let (sequence, text) = first.message().await;
    first.acknowledge(sequence).await;
    first
        .send(Kind::Initialized, b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}")
        .await;
    first.call("1-2", "echo", "0").await;
    first.message().await;
    drop(first);

    let mut second = shim.attach(2, "b").await;
    let Initialize::Answered { id, answer: kept } = &second.state().initialize else {
        panic!("not kept")
    };
    assert_eq!((id.get(), kept.get()), ("\"1-1\"", &*text));
    assert!(second.state().initialized);
    second.call("2-1", "initialize", "{}").await;
    second.call("2-2", "counts", "{}").await;
    assert!(second.answer("2-2").await.1.contains("\"initialize\":1"));
}

#[tokio::test]
async fn hostile_output_between_answers_breaks_nothing() {
    let shim = Shim::scripted(&["--banner", "36"]).await;
    let mut link = shim.attach(1, "a").await;
    for (id, ms) in [("1-1", 300), ("1-2", 200), ("1-3", 100)] {
        link.call(id, "slow", &format!("{{\"ms\":{ms}}}")).await;
    }
    let junk = b"\xC3\x28\n\n\r\n[1]\n{\"level\":30}\n{\"jsonrpc\":\n\x00\xff\n\xEF\xBB\xBF";
    link.call("1-4", "raw", &format!("{{\"bytes\":{:?}}}", junk.to_vec())).await;
    let (mut ids, mut reports) = (Vec::new(), Vec::new());
    while ids.len() < 4 {
        match link.hear().await.unwrap() {
            Said::Data(_, payload) => {
                ids.push(String::from_utf8_lossy(&payload[22..27]).into_owned())
            }
            Said::Control(Control::Noise { dropped, sample }) => reports.push((dropped, sample)),
            Said::Control(other) => panic!("{other:?}"),
        }
    }
    assert_eq!(ids, ["\"1-4\"", "\"1-3\"", "\"1-2\"", "\"1-1\""]);
    assert_eq!(reports.len(), 1, "once, not 36 times: {reports:?}");
    assert_eq!(reports[0].1, "Starting up, line 0");
}

#[tokio::test]
async fn a_message_over_the_limit_is_named_and_the_stream_lives_on() {
    let shim = Shim::scripted(&[]).await;
    let mut link = shim.attach(1, "a").await;
    link.call("1-1", "big", &format!("{{\"size\":{}}}", 3 * LIMIT)).await;
    link.call("1-2", "big", &format!("{{\"size\":{}}}", LIMIT - 100)).await;
    let Said::Data(header, payload) = link.hear().await.unwrap() else { panic!("no notice") };
    assert_eq!((header.kind, header.sequence), (Kind::TooLarge, 1));
    let notice: TooLarge = serde_json::from_slice(&payload).unwrap();
    assert_eq!((notice.limit, notice.id.unwrap().get()), (LIMIT as u64, "\"1-1\""));
    assert!(notice.bytes > 3 * LIMIT as u64);
    let (sequence, text) = link.message().await;
    assert_eq!(sequence, 2);
    assert!(text.len() > LIMIT - 100 && text.len() <= LIMIT);
}

#[tokio::test]
async fn both_directions_run_while_the_child_reads_nothing() {
    let shim = Shim::scripted(&["--notify", &(512 << 10).to_string()]).await;
    let mut link = shim.attach(1, "a").await;
    let text = format!("\"{}\"", "y".repeat(512 << 10));
    link.call("1-1", "echo", &text).await;
    assert_eq!(link.answer("1-1").await.1, answer("1-1", &text));
}

#[tokio::test]
async fn unacknowledged_output_stops_the_child_and_acknowledging_lets_it_go_on() {
    let shim = Shim::scripted(&[]).await;
    let mut link = shim.attach(1, "a").await;
    let total = (KEEP / 1024) as u64 + 2048;
    link.call("1-1", "notify", &format!("{{\"size\":{}}}", total * 1024)).await;
    let mut last = 0;
    let mut bytes = 0;
    while bytes < KEEP {
        let (sequence, text) = link.message().await;
        assert_eq!(sequence, last + 1);
        last = sequence;
        bytes += text.len();
    }
    // What one read took may follow; then there is silence until something is acknowledged.
    let silence = std::time::Duration::from_millis(300);
    let mut more = 0;
    while let Ok((sequence, text)) = tokio::time::timeout(silence, link.message()).await {
        (last, more) = (sequence, more + text.len());
    }
    assert!(more <= 64 << 10, "{more} bytes beyond the bound");
    while last <= total {
        link.acknowledge(last).await;
        let (sequence, _) = link.message().await;
        assert_eq!(sequence, last + 1);
        last = sequence;
    }
    assert_eq!(last, total + 1, "every notification and the answer, once");
}

#[tokio::test]
async fn output_without_a_gateway_waits_for_one() {
    let shim = Shim::scripted(&["--notify", &(2 * KEEP).to_string()]).await;
    let child = shim.attach(1, "a").await.state().child;
    let mut link = shim.attach(1, "a").await;
    assert_eq!(link.state().child, child);
    link.call("1-1", "echo", "7").await;
    let mut expected = 0;
    loop {
        let (sequence, text) = link.message().await;
        expected += 1;
        assert_eq!(sequence, expected);
        link.acknowledge(sequence).await;
        if text == answer("1-1", "7") {
            break;
        }
    }
    assert_eq!(expected, 2 * KEEP as u64 / 1024 + 1);
}

#[tokio::test]
async fn a_child_that_does_not_read_costs_its_link_not_itself() {
    let shim = Shim::scripted(&[]).await;
    let mut link = shim.attach(1, "a").await;
    link.call("1-1", "busy", "{\"ms\":1500}").await;
    let text = format!("\"{}\"", "y".repeat(WINDOW / 2));
    let mut sent = 1;
    let refusal = loop {
        sent += 1;
        let call = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":\"1-{sent}\",\"method\":\"silent\",\"params\":{text}}}"
        );
        link.send(Kind::Message, call.as_bytes()).await;
        if sent == 6 {
            break link.refused().await;
        }
    };
    assert_eq!(refusal, Refusal::WindowExceeded);
    let mut again = shim.attach(1, "a").await;
    assert_eq!(again.state().child, link.state().child);
    let taken = again.state().received;
    while again.written < taken {
        again.hear().await.unwrap();
    }
    again.call("1-9", "echo", "0").await;
    again.answer("1-9").await;
}

#[tokio::test]
async fn what_breaks_the_protocol_is_named() {
    let shim = Shim::scripted(&[]).await;
    let mut gap = shim.attach(1, "a").await;
    gap.sequence = 1;
    gap.call("1-1", "echo", "0").await;
    assert_eq!(gap.refused().await, Refusal::Protocol);
    let mut early = shim.attach(1, "a").await;
    early.acknowledge(1).await;
    assert_eq!(early.refused().await, Refusal::Protocol);
    let mut other_epoch = shim.attach(1, "a").await;
    other_epoch.epoch = 2;
    other_epoch.call("2-1", "echo", "0").await;
    assert_eq!(other_epoch.refused().await, Refusal::Protocol);
    let mut text = shim.attach(1, "a").await;
    text.control(&Control::Noise { dropped: 1, sample: String::new() }).await;
    assert_eq!(text.refused().await, Refusal::Protocol);
    let mut good = shim.attach(1, "a").await;
    good.call("1-1", "echo", "0").await;
    assert_eq!(good.message().await.1, answer("1-1", "0"));
}

#[tokio::test]
async fn health_and_strangers_on_the_port() {
    let shim = Shim::scripted(&[]).await;
    let ask = async |bytes: &[u8]| {
        let mut stream = TcpStream::connect(&shim.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said).await;
        String::from_utf8_lossy(&said).into_owned()
    };
    assert!(ask(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.starts_with("HTTP/1.1 200 "));
    assert!(ask(b"GET /secret HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 404 "));
    assert!(ask(&[b'x'; 20_000]).await.len() < 200);
    let silent: Vec<_> = {
        let mut held = Vec::new();
        for _ in 0..8 {
            held.push(TcpStream::connect(&shim.address).await.unwrap());
        }
        held
    };
    let mut link = shim.attach(1, "a").await;
    link.call("1-1", "echo", "0").await;
    link.message().await;
    drop(silent);
}

#[tokio::test]
async fn a_dead_link_leaves_the_child_alone() {
    let shim = Shim::scripted(&[]).await;
    let mut link = shim.attach(1, "a").await;
    link.call("1-1", "slow", "{\"ms\":100}").await;
    link.call("1-2", "echo", "0").await;
    link.message().await;
    drop(link);
    let mut again = shim.attach(1, "a").await;
    let mut seen = String::new();
    while !seen.contains("slept") {
        seen = again.message().await.1;
    }
    until(|| !shim.log.lock().unwrap().contains("panic")).await;
}
