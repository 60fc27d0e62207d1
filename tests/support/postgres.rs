//! A Postgres of the tests' own: real server, its files in a folder that goes with it, reached over
//! a socket in that folder. It ends with the test program, however that ends.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
};
use tempfile::TempDir;

/// A running server, or one that was killed.
pub struct Server {
    dir: TempDir,
    child: Option<Child>,
    /// At which port of localhost it speaks TLS. Otherwise it is reached over its socket alone.
    tls: Option<u16>,
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().unwrap().stdout == b"0\n"
}

/// Postgres refuses to run as root.
fn as_its_user(program: PathBuf) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if is_root() {
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
    }
    command.arg("--").arg(program);
    command
}

fn program(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<_> = versions.map(|v| v.path().join("bin").join(name)).collect();
    found.retain(|p| p.exists());
    found.sort();
    found.pop().expect("Postgres is installed: scripts/install-deps does it")
}

fn children(parent: u32) -> Vec<String> {
    let all = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    all.split_whitespace().map(str::to_owned).collect()
}

/// Whether it runs; one that only waits for its parent to see its end does not.
fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

impl Server {
    /// A new server, ready.
    pub fn start() -> Self {
        let mut server = Self::made();
        server.again();
        server
    }

    /// A new server that speaks TLS as `localhost`: with the certificate that `certify` leaves in
    /// `server.crt` of the folder it is given, and its key in `server.key`.
    pub fn start_with_tls(certify: impl FnOnce(&Path)) -> Self {
        let mut server = Self::made();
        certify(server.dir.path());
        let key = server.dir.path().join("server.key");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        if is_root() {
            let done = Command::new("chown").arg("postgres:").arg(&key).status().unwrap();
            assert!(done.success());
        }
        let free = std::net::TcpListener::bind("localhost:0").unwrap();
        server.tls = Some(free.local_addr().unwrap().port());
        drop(free);
        server.again();
        server
    }

    fn made() -> Self {
        let dir = tempfile::Builder::new().prefix("journal-postgres-").tempdir().unwrap();
        if is_root() {
            let done = Command::new("chown").arg("postgres:").arg(dir.path()).status().unwrap();
            assert!(done.success());
        }
        let mut init = as_its_user(program("initdb"));
        init.args(["--username=journal", "--auth=trust", "--encoding=UTF8", "--no-sync", "-D"]);
        let out = init.arg(dir.path().join("data")).env("LC_ALL", "C").output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        Self { dir, child: None, tls: None }
    }

    /// Starts it again after [`Self::kill`].
    pub fn again(&mut self) {
        let mut command = as_its_user(program("postgres"));
        command.arg("-D").arg(self.dir.path().join("data"));
        command.arg("-k").arg(self.dir.path());
        command.args(["-c", "max_connections=200", "-c", "restart_after_crash=on"]);
        match self.tls {
            None => command.args(["-h", ""]),
            Some(port) => {
                command.args(["-h", "localhost", "-p", &port.to_string(), "-c", "ssl=on"]);
                for (setting, file) in
                    [("ssl_cert_file", "server.crt"), ("ssl_key_file", "server.key")]
                {
                    let file = self.dir.path().join(file);
                    command.args(["-c", &format!("{setting}={}", file.display())]);
                }
                &mut command
            }
        };
        command.stderr(Stdio::piped());
        let (ready, is_ready) = mpsc::channel();
        // The signal for the end of a parent comes when its thread ends: this one never does.
        std::thread::spawn(move || {
            let mut child = command.spawn().unwrap();
            let lines = BufReader::new(child.stderr.take().unwrap()).lines();
            let mut said = String::new();
            let mut child = Some(child);
            for line in lines.map_while(Result::ok) {
                if line.contains("ready to accept connections") {
                    ready.send(Ok(child.take())).ok();
                }
                said.push_str(&line);
                said.push('\n');
            }
            ready.send(Err(said)).ok();
            loop {
                std::thread::park();
            }
        });
        let limit = std::time::Duration::from_secs(60);
        let child = is_ready.recv_timeout(limit).expect("Postgres is ready within a minute");
        self.child = child.unwrap_or_else(|said| panic!("Postgres does not start:\n{said}"));
    }

    /// Ends it as a crash of its machine would, without any farewell: every process of it is gone.
    pub fn kill(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let rest = children(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        // they would see that their parent is gone, but may take a statement until then
        let _ = Command::new("kill").arg("-KILL").args(&rest).stderr(Stdio::null()).status();
        let since = std::time::Instant::now();
        while rest.iter().any(|pid| is_alive(pid)) {
            assert!(since.elapsed().as_secs() < 60, "processes of Postgres stay");
            std::thread::yield_now();
        }
    }

    /// Stops the whole server in its tracks, or lets it go on: `STOP` or `CONT`.
    pub fn signal(&self, signal: &str) {
        let parent = self.child.as_ref().unwrap().id();
        let mut kill = Command::new("kill");
        kill.arg(format!("-{signal}")).arg(parent.to_string()).args(children(parent));
        assert!(kill.status().unwrap().success());
    }

    /// The URL of a database that nobody else uses.
    pub fn database(&self) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("journal{}", COUNT.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        format!("host={} user=journal dbname={name} sslmode=disable", self.dir.path().display())
    }

    /// The URL of such a database over TLS, with the server under this name.
    pub fn database_at(&self, host: &str) -> String {
        let port = self.tls.expect("started with TLS");
        let url = self.database();
        let rest = url.split_once(' ').expect("a host and more").1;
        let rest = rest.replace("sslmode=disable", "sslmode=require");
        format!("host={host} port={port} {rest}")
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join(".s.PGSQL.5432")
    }

    /// Runs a statement as an administrator; gives what it prints.
    pub fn sql(&self, database: &str, statement: &str) -> String {
        let mut psql = Command::new(program("psql"));
        psql.args([
            "-X",
            "-q",
            "-t",
            "-A",
            "-U",
            "journal",
            "-v",
            "ON_ERROR_STOP=1",
            "-d",
            database,
        ]);
        psql.args(self.tls.map(|port| format!("-p{port}")));
        let out = psql.arg("-h").arg(self.dir.path()).args(["-c", statement]).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// One server for all tests of a program.
pub fn shared() -> &'static Server {
    static SHARED: OnceLock<Server> = OnceLock::new();
    SHARED.get_or_init(Server::start)
}
