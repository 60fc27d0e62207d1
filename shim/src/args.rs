//! The command line and the environment of the shim. Pure: both are arguments.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// What is printed for a wrong command line.
pub const USAGE: &str = "usage:
  awaken-shim copy DEST
  awaken-shim run --session-uid U --attachment-uid U --generation N --max-message-bytes B
      [--listen 0.0.0.0:7411] [--termination-log /dev/termination-log]
      [--secret-env NAME[,NAME…]] -- command [args…]
environment of run: AWAKEN_POD_UID, AWAKEN_GATEWAY_KEYS (base64 Ed25519 public keys, by comma)";

/// The port of a Session pod.
const PORT: u16 = 7411;

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    /// Copy the own executable.
    Copy(PathBuf),
    /// Run a server.
    Run(Box<Run>),
}

/// Arguments of `run`.
#[derive(Debug, PartialEq, Eq)]
pub struct Run {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Uid of the Session.
    pub session_uid: String,
    /// Uid of the attachment.
    pub attachment_uid: String,
    /// Generation.
    pub generation: u64,
    /// Largest message, in bytes.
    pub max_message_bytes: usize,
    /// File that the kubelet reads after the end.
    pub termination_log: PathBuf,
    /// Variables whose values are hidden in what is reported.
    pub secret_env: Vec<String>,
    /// The command and its arguments; never empty.
    pub command: Vec<String>,
}

/// A wrong command line.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ArgsError {
    /// Neither `copy` nor `run`.
    #[error("say copy or run")]
    NoCommand,
    /// A flag that does not exist.
    #[error("unknown argument {0}")]
    Unknown(String),
    /// A flag without its value.
    #[error("{0} needs a value")]
    NoValue(String),
    /// A required flag is missing.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// An address that is not `ip:port`; names are not resolved.
    #[error("--listen must be ip:port")]
    Address,
    /// A value that is no number, or a zero.
    #[error("{0} must be a whole number above 0")]
    Number(&'static str),
}

/// Reads the arguments after the program's name.
pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Command, ArgsError> {
    let mut args = args.into_iter();
    match args.next().as_deref() {
        Some("copy") => {
            let dest = args.next().ok_or(ArgsError::Missing("DEST"))?;
            match args.next() {
                Some(extra) => Err(ArgsError::Unknown(extra)),
                None => Ok(Command::Copy(dest.into())),
            }
        }
        Some("run") => parse_run(args).map(|run| Command::Run(Box::new(run))),
        _ => Err(ArgsError::NoCommand),
    }
}

fn parse_run(mut args: impl Iterator<Item = String>) -> Result<Run, ArgsError> {
    let mut run = Run {
        listen: (Ipv4Addr::UNSPECIFIED, PORT).into(),
        session_uid: String::new(),
        attachment_uid: String::new(),
        generation: 0,
        max_message_bytes: 0,
        termination_log: "/dev/termination-log".into(),
        secret_env: Vec::new(),
        command: Vec::new(),
    };
    let (mut generation, mut max) = (String::new(), String::new());
    while let Some(flag) = args.next() {
        if flag == "--" {
            run.command = args.collect();
            break;
        }
        let mut value = || args.next().ok_or_else(|| ArgsError::NoValue(flag.clone()));
        match flag.as_str() {
            "--listen" => run.listen = value()?.parse().map_err(|_| ArgsError::Address)?,
            "--session-uid" => run.session_uid = value()?,
            "--attachment-uid" => run.attachment_uid = value()?,
            "--generation" => generation = value()?,
            "--max-message-bytes" => max = value()?,
            "--termination-log" => run.termination_log = value()?.into(),
            "--secret-env" => run.secret_env.extend(value()?.split(',').map(str::to_owned)),
            _ => return Err(ArgsError::Unknown(flag)),
        }
    }
    run.generation = number("--generation", &generation)?;
    run.max_message_bytes = usize::try_from(number("--max-message-bytes", &max)?)
        .map_err(|_| ArgsError::Number("--max-message-bytes"))?;
    for (name, value) in
        [("--session-uid", &run.session_uid), ("--attachment-uid", &run.attachment_uid)]
    {
        if value.is_empty() {
            return Err(ArgsError::Missing(name));
        }
    }
    if run.command.first().is_none_or(String::is_empty) {
        return Err(ArgsError::Missing("-- command"));
    }
    Ok(run)
}

fn number(name: &'static str, text: &str) -> Result<u64, ArgsError> {
    if text.is_empty() {
        return Err(ArgsError::Missing(name));
    }
    text.parse().ok().filter(|number| *number > 0).ok_or(ArgsError::Number(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn read(line: &str) -> Result<Command, ArgsError> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn a_whole_command_line() {
        let line = "run --listen 127.0.0.1:1 --session-uid s --attachment-uid a --generation 3 \
                    --max-message-bytes 99 --termination-log /t --secret-env A,B -- cmd --listen x --";
        let Command::Run(run) = read(line).unwrap() else { panic!("not run") };
        let expected = Run {
            listen: ([127, 0, 0, 1], 1).into(),
            session_uid: "s".into(),
            attachment_uid: "a".into(),
            generation: 3,
            max_message_bytes: 99,
            termination_log: "/t".into(),
            secret_env: vec!["A".into(), "B".into()],
            command: ["cmd", "--listen", "x", "--"].map(str::to_owned).into(),
        };
        assert_eq!(*run, expected);
        assert_eq!(read("copy /x"), Ok(Command::Copy("/x".into())));
    }

    const WHOLE: &str =
        "run --session-uid s --attachment-uid a --generation 3 --max-message-bytes 9";

    #[rstest]
    #[case::nothing("", ArgsError::NoCommand)]
    #[case::copy("copy", ArgsError::Missing("DEST"))]
    #[case::copy_more("copy a b", ArgsError::Unknown("b".into()))]
    #[case::no_command(WHOLE, ArgsError::Missing("-- command"))]
    #[case::empty_command(&format!("{WHOLE} --"), ArgsError::Missing("-- command"))]
    #[case::unknown(&format!("{WHOLE} --colour red -- x"), ArgsError::Unknown("--colour".into()))]
    #[case::a_name("run --listen localhost:1 -- x", ArgsError::Address)]
    #[case::no_value("run --listen", ArgsError::NoValue("--listen".into()))]
    #[case::no_session(
        "run --attachment-uid a --generation 3 --max-message-bytes 9 -- x",
        ArgsError::Missing("--session-uid")
    )]
    #[case::generation_zero(
        "run --session-uid s --attachment-uid a --generation 0 --max-message-bytes 9 -- x",
        ArgsError::Number("--generation")
    )]
    #[case::no_limit(
        "run --session-uid s --attachment-uid a --generation 1 -- x",
        ArgsError::Missing("--max-message-bytes")
    )]
    fn wrong_lines_are_named(#[case] line: &str, #[case] expected: ArgsError) {
        assert_eq!(read(line), Err(expected));
    }
}
